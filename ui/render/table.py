"""Many questions as a table: what is answered, what is being answered, and the files to take away."""

from __future__ import annotations

from app.questions_table import STATUS_NAMES, STATUS_ORDER, TableRow, TableState
from app.turn import TurnState
from ui.render.html import escape, icon, shorten
from ui.strings import text

ENDINGS = ("csv", "md", "jsonl")
QUESTION_LENGTH = 120


def render_table(table: TableState, message_id: str) -> str:
    """The rows so far and, once there is one, links to download them."""
    rows = "".join(map(_row, table.rows))
    head = "".join(f"<th>{escape(text(f'table.{name}'))}</th>" for name in ("question", "answer", "pages", "status"))
    shown = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f'<div class="ub-table">{shown}</div>{_downloads(table, message_id)}'


def render_table_progress(state: TurnState, table: TableState, inside: str) -> str:
    """inside: the progress of the current question."""
    done, total = len(table.rows), len(table.questions)
    if state.phase == "queued" or not table.current:
        return inside
    now = text("table.now", number=done + 1, total=total)
    share = 100 * done // total
    return (
        f'<div class="ub-progress ub-table-now"><span class="ub-progress-name">{icon("spin")}{escape(now)}</span>'
        f'<span class="ub-bar"><span class="ub-bar-fill" style="width:{share}%"></span></span>'
        f'<span class="ub-progress-facts">{escape(shorten(table.current, QUESTION_LENGTH))}</span></div>'
    )


def _row(row: TableRow) -> str:
    answer = row.answer or row.error
    bad = ' class="ub-table-bad"' if row.error else ""
    counts = {status: sum(c.status == status for c in row.citations) for status in STATUS_ORDER}
    chip = "".join(
        f'<span class="ub-held ub-held-{status}">{escape(f"{STATUS_NAMES[status]} ({number})")}</span>'
        for status, number in counts.items()
        if number
    ) or escape(row.quote_status)
    return (
        f"<tr><td>{escape(row.question)}</td><td{bad}>{escape(answer)}</td>"
        f"<td>{escape(row.pages)}</td><td>{chip}</td></tr>"
    )


def _downloads(table: TableState, message_id: str) -> str:
    if not table.rows or not message_id:
        return ""
    links = "".join(
        f'<a class="ub-tool ub-download" href="/table/{escape(message_id)}.{ending}">'
        f"{escape(text(f'table.download.{ending}'))}</a>"
        for ending in ENDINGS
    )
    done, total = len(table.rows), len(table.questions)
    note = text("table.done", done=done, total=total)
    return f'<div class="ub-downloads"><span class="ub-sources-name">{escape(note)}</span>{links}</div>'
