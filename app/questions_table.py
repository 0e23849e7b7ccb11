"""Many questions answered one after another as a table: each by itself, each with its pages and how far they hold.

Rows are stored as they come, so that Stop and the end of the app keep the finished ones. The table is no part of the
conversation's prompt.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from app.citation_report import file_object, short_place
from app.citations import Citation
from app.errors import WrongUse, as_app_error
from app.jobs import Job
from app.parts.state import citation_from
from app.turn import TurnState

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.wiring import App

MOST_QUESTIONS = 500
LONGEST_QUESTION = 2000
STATUS_ORDER = ("verified", "near", "attributed", "not_found")
STATUS_NAMES = {
    "verified": "quote found",
    "near": "similar text",
    "attributed": "matched by the app",
    "not_found": "quote not found",
}
COLUMNS = ("question", "answer", "pages", "quote_status", "error")
NO_SOURCE = "no source"
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])")
_FORMULA = re.compile(r"\s*[-=@+＝＠＋－]|[\t\r]")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One answered question. error: the sentence of what went wrong, else ""."""

    question: str
    answer: str = ""
    citations: tuple[Citation, ...] = ()
    error: str = ""

    @property
    def pages(self) -> str:
        """'manual.pdf p. 3, p. 5; docs/notes.pdf p. 1' in the order of the citations."""
        by_document: dict[str, dict[str, None]] = {}
        for citation in self.citations:
            if citation.page:
                document, page = short_place(citation.document, citation.page, citation.label)
                by_document.setdefault(document, {})[page] = None
        return "; ".join(f"{document} {', '.join(pages)}" for document, pages in by_document.items())

    @property
    def quote_status(self) -> str:
        """How far the sources hold: each status that occurs with its number, best first."""
        counts = {status: sum(c.status == status for c in self.citations) for status in STATUS_ORDER}
        shown = [f"{STATUS_NAMES[status]} ({number})" for status, number in counts.items() if number]
        return ", ".join(shown) or ("" if self.error else NO_SOURCE)

    def cells(self) -> dict[str, str]:
        return {
            "question": self.question,
            "answer": self.answer,
            "pages": self.pages,
            "quote_status": self.quote_status,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class TableState:
    """questions: all that were sent. rows: those that are answered, from the first on."""

    questions: tuple[str, ...]
    rows: tuple[TableRow, ...] = ()

    @property
    def current(self) -> str:
        """The question that is being answered, "" when all are."""
        return self.questions[len(self.rows)] if len(self.rows) < len(self.questions) else ""

    def as_dict(self) -> dict[str, Any]:
        return {"questions": list(self.questions), "rows": [asdict(row) for row in self.rows]}


def table_from(details: Mapping[str, Any]) -> TableState | None:
    """The table that an answer's message has stored."""
    stored = details.get("table")
    if not stored:
        return None
    rows = [TableRow(**{**row, "citations": tuple(map(citation_from, row["citations"]))}) for row in stored["rows"]]
    return TableState(tuple(stored["questions"]), tuple(rows))


def read_questions(text: str) -> tuple[str, ...]:
    """One question a line, without list marks, empty lines and lines that start with #. WrongUse for none or too many.

    Lines of a CSV file give their first cell; a first cell "question" is a header.
    """
    questions = []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines()):
        line = line.strip()
        if line.startswith('"'):
            line = next(iter(csv.reader([line])), [""])[0].strip()
        line = re.sub(r"^(?:[-*•]|\(?\d{1,3}[.)])\s+", "", line)
        if not line or line.startswith("#") or (number == 0 and line.casefold() in ("question", "questions")):
            continue
        if len(line) > LONGEST_QUESTION:
            raise WrongUse(
                f"Question {len(questions) + 1} has {len(line):,} characters; {LONGEST_QUESTION:,} are the limit.",
                "Write each question on a line of its own.",
            )
        questions.append(line)
    if not questions:
        raise WrongUse("There is no question in the list.", "Write one on each line.")
    if len(questions) > MOST_QUESTIONS:
        raise WrongUse(
            f"The list has {len(questions):,} questions; {MOST_QUESTIONS} are answered at once.", "Send it in parts."
        )
    return tuple(questions)


def answer_table(app: App, conversation_id: str, questions: Sequence[str], *, reading: str = "auto") -> Job:
    """Stores the list and puts its table into the queue as one job. Errors: WrongUse, storage's own."""
    if not app.library.documents(conversation_id):
        raise WrongUse("There is no document to ask about.", "Add one first.")
    listed = read_questions("\n".join(questions))
    if not app.library.conversation(conversation_id).title:
        app.library.rename_conversation(conversation_id, f"{len(listed)} questions")
    app.library.add_message(conversation_id, "user", "\n".join(listed), questions=len(listed))
    work = _TableWork(app, conversation_id, listed, reading)
    job = Job(conversation_id, work.run, work.store, work.first_state)
    try:
        return app.engine_service.submit(job)
    except Exception as error:
        job.finish("failed", error=as_app_error(error))
        return job


class _Inner(Job):
    """The turn of one question, run inside the table's job: what it does is shown, Stop reaches it."""

    def __init__(self, outer: Job, turn: Any, conversation_id: str, show: Callable[[TurnState], None]) -> None:
        super().__init__(conversation_id, turn.run, turn.store, turn.first_state)
        self.cancelled = outer.cancelled
        self._show = show

    def update(self, **changes: Any) -> None:
        super().update(**changes)
        self._show(self.state)


class _TableWork:
    """The work behind a table's job. run is called in the engine's thread."""

    def __init__(self, app: App, conversation_id: str, questions: tuple[str, ...], reading: str) -> None:
        self.app = app
        self.conversation_id = conversation_id
        self.reading = reading
        self.table = TableState(questions)
        self.answer = app.library.add_message(
            conversation_id, "assistant", "", "streaming", table=self.table.as_dict(), reading=reading
        )
        self.first_state = TurnState("queued", message_id=self.answer.id, table=self.table)

    def run(self, job: Job) -> None:
        from app.table_place import place

        job.update(phase="loading", position=0)
        self.app.engine_service.loaded(
            lambda text, share: job.update(phase="loading", read_done=int(share * 1000), read_total=1000)
        )
        if not job.enter_engine():
            return
        hidden = place(self.app, self.conversation_id)
        for question in self.table.questions:
            if job.cancelled.is_set():
                break
            state = self._answer_one(job, hidden, question)
            if state.phase == "stopped":
                break
            error = state.error.message if state.error is not None else ""
            row = TableRow(question, state.answer, state.citations, error)
            self.table = replace(self.table, rows=(*self.table.rows, row))
            job.update(table=self.table)
            self.app.library.update_message(
                self.answer.id, table=self.table.as_dict(), text=as_markdown(self.table.rows)
            )
        complete = len(self.table.rows) == len(self.table.questions)
        job.finish("done" if complete else "stopped", answer=as_markdown(self.table.rows), table=self.table)

    def _answer_one(self, job: Job, hidden: str, question: str) -> TurnState:
        from app.assistant import turn_for
        from app.commands.file_set import start_over

        start_over(self.app, hidden)
        message = self.app.library.add_message(hidden, "user", question)
        turn = turn_for(self.app, message, reading=self.reading)

        def show(inner: TurnState) -> None:
            job.update(
                phase=inner.phase if not inner.finished else "reading",
                read_done=inner.read_done,
                read_total=inner.read_total,
                eta_s=inner.eta_s,
                parts=inner.parts,
            )

        inner = _Inner(job, turn, hidden, show)
        inner.run()
        return inner.state

    def store(self, state: TurnState) -> None:
        from app.turn_end import store_answer

        if self.table.rows and not state.answer:  # it was stopped or failed between two rows
            state = replace(state, answer=as_markdown(self.table.rows))
        store_answer(self.app.library, self.answer.id, state)
        self.app.library.update_message(self.answer.id, table=self.table.as_dict())


def as_csv(rows: Iterable[TableRow]) -> str:
    """With a header. What a spreadsheet would take for a formula is marked as text."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([harmless(cell) for cell in row.cells().values()])
    return out.getvalue()


def as_markdown(rows: Iterable[TableRow]) -> str:
    """A table in GitHub's way of writing it; line breaks in cells become spaces."""
    lines = ["| Question | Answer | Pages | Sources |", "| --- | --- | --- | --- |"]
    lines += [markdown_row(row) for row in rows]
    return "\n".join(lines)


def markdown_row(row: TableRow) -> str:
    answer = row.answer if not row.error else f"({row.error})"
    return f"| {' | '.join(map(_cell, (row.question, answer, row.pages, row.quote_status)))} |"


def as_json_lines(rows: Iterable[TableRow]) -> str:
    """One object a line: question, answer, pages, quote_status, error, citations."""
    return "".join(f"{json.dumps(_object(row), ensure_ascii=False)}\n" for row in rows)


def _object(row: TableRow) -> dict[str, Any]:
    citations = [
        {"document": c.document, "page": c.page, **file_object(c.label), "quote": c.quote, "status": c.status}
        for c in row.citations
    ]
    return row.cells() | {"citations": citations}


def harmless(cell: str) -> str:
    return f"'{cell}" if _FORMULA.match(cell) else cell


def _cell(text: str) -> str:
    """One line that ends no cell, fetches no picture and holds no HTML; as in an export."""
    text = " ".join(text.split()).replace("\\", "\\\\")
    return _MARKUP.sub(r"\\\g<0>", text).replace("![", "!\\[").replace("|", "\\|")


FORMATS: dict[str, tuple[str, Callable[[Iterable[TableRow]], str]]] = {
    "csv": ("text/csv", as_csv),
    "md": ("text/markdown", as_markdown),
    "jsonl": ("application/jsonl", as_json_lines),
}
"""File endings of a table, each with its media type and its writer."""


def table_file(app: App, message_id: str, ending: str) -> tuple[str, str] | None:
    """(media type, text) of a stored table; None for an unknown ending, or a message that is not there or has none."""
    from storage import StorageError

    if ending not in FORMATS:
        return None
    try:
        table = table_from(app.library.message(message_id).details)
    except StorageError:
        return None
    media_type, write = FORMATS[ending]
    return (media_type, write(table.rows)) if table is not None else None
