"""One finished turn as a program reads it (JSON object, CSV row) and as a person does (sources, status line)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from app.citation_report import (
    NO_PAGE,
    citation_object,
    citation_place,
    file_object,
    place,
    short_place,
    status_words,
)
from app.citations import Citation
from app.pages import format_pages
from app.questions_table import TableRow, harmless

if TYPE_CHECKING:
    from app.evidence import Evidence, PageShare
    from app.parts.state import PartsState
    from app.turn import Passage, TurnState, TurnStats

EVIDENCE, EVIDENCE_OF_SENTENCE = 10, 3  # pages in JSON and on a terminal
CSV_COLUMNS = (
    "question",
    "answer",
    "pages",
    "quote_status",
    "citations",
    "passages",
    "prompt_tokens",
    "reused_tokens",
    "restored_tokens",
    "computed_tokens",
    "ttft_s",
    "tpot_ms",
    "output_tokens",
    "finish_reason",
    "model",
    "kv_format",
    "mode",
    "warnings",
    "error",
)


def turn_object(state: TurnState, more_warnings: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON object of `ask --json`. `page` counts from 1; times are in seconds or milliseconds as named.

    A reading in parts has `parts` and `coverage` besides.
    Every decode step yields one token in this version, so accepted_per_step is 1.
    """
    stats = state.stats
    if stats is None:
        raise ValueError(f"state: got phase {state.phase!r} without stats, need a finished turn")
    in_parts: dict[str, Any] = {}
    if state.parts is not None:
        in_parts = {"parts": state.parts.public(), "coverage": state.parts.coverage.as_dict()}
    return {
        "answer": state.answer,
        "citations": [citation_object(citation) for citation in state.citations],
        "passages": [
            {
                "document": p.document,
                "page": p.page,
                "label": p.label,
                **file_object(p.label),
                "text": p.text,
                "score": round(p.score, 4),
            }
            for p in state.passages
        ],
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "restored_tokens": stats.restored_tokens,
        "computed_tokens": stats.computed_tokens,
        "ttft_s": round(stats.ttft_s, 4),
        "tpot_ms": round(stats.tpot_ms, 3),
        "output_tokens": stats.output_tokens,
        "accepted_per_step": 1.0,
        "finish_reason": stats.finish_reason,
        "profile": stats.profile,
        "model": stats.model,
        "kv_format": stats.kv_format,
        "mode": stats.mode,
        "read_by": stats.read_by,
        "kv_pages_read_share": stats.kv_pages_read_share,
        "demoted_pages": stats.demoted_pages,
        "peak_memory_bytes": stats.peak_memory_bytes,
        "warnings": list(dict.fromkeys([*more_warnings, *state.warnings])),
        "task": state.task,
        "reading": state.reading,
        **_evidence(state),
        **in_parts,
    }


def _evidence(state: TurnState) -> dict[str, Any]:
    """The pages that drew most attention: of the whole answer, and of each sentence. Empty where none was kept."""
    found = state.evidence
    if found is None:
        return {"evidence": [], "evidence_by_sentence": []}
    sentences = [
        {
            "sentence": state.answer[s.start : s.end].strip(),
            "evidence": [_share(page) for page in found.top_of(s, EVIDENCE_OF_SENTENCE)],
        }
        for s in found.sentences
    ]
    return {"evidence": [_share(page) for page in found.top(EVIDENCE)], "evidence_by_sentence": sentences}


def _share(page: PageShare) -> dict[str, Any]:
    return {"document": page.document, "page": page.page, **file_object(page.label), "share": round(page.share, 4)}


def csv_row(question: str, result: Mapping[str, Any]) -> list[Any]:
    """CSV_COLUMNS of one question; an error is {"error": sentence}."""
    row = dict(result) | {"question": question, "error": result.get("error", "")}
    own = table_row(question, result)
    row["answer"], row["pages"], row["quote_status"] = own.answer, own.pages, own.quote_status
    row["citations"] = "; ".join(_short(c) if c["page"] else NO_PAGE for c in result.get("citations", ()))
    row["passages"] = "; ".join(map(_short, result.get("passages", ())))
    row["warnings"] = " ".join(result.get("warnings", ()))
    cells = (row.get(column, "") for column in CSV_COLUMNS)
    return [harmless(cell) if isinstance(cell, str) else cell for cell in cells]  # an archive's files have any names


def _short(found: Mapping[str, Any]) -> str:
    return " ".join(short_place(found["document"], found["page"], found.get("label", "")))


def table_row(question: str, result: Mapping[str, Any]) -> TableRow:
    """A row of a table of questions from the object of one answer; an error is {"error": sentence}."""
    cited = tuple(
        Citation(
            "",
            c["document"],
            c["page"],
            c.get("label", ""),
            c.get("quote", ""),
            c.get("status", "attributed"),
            said=c.get("said", ""),
        )
        for c in result.get("citations", ())
    )
    return TableRow(question, result.get("answer", ""), cited, result.get("error", ""))


def passage_lines(passages: Iterable[Passage], width: int) -> list[str]:
    """Each passage as its place and its text, wrapped to `width` characters."""
    import textwrap

    lines: list[str] = []
    for passage in passages:
        lines.append(place(passage.document, passage.page, passage.label))
        text = " ".join(passage.text.split())
        lines += textwrap.wrap(text, max(width - 4, 20), initial_indent="    ", subsequent_indent="    ")
    return lines


def part_lines(parts: PartsState) -> list[str]:
    """What was read: the coverage, then each part in which something was found."""
    cover = parts.coverage
    blank = f"; {cover.without_text} more have no text" if cover.without_text else ""
    lines = [f"{cover.pages_read} of {cover.pages} pages read, in {parts.done} of {len(parts.parts)} parts{blank}"]
    for part in parts.parts:
        if part.found:
            number = f": {len(part.quotes)} quote{'' if len(part.quotes) == 1 else 's'}" if part.quotes else ""
            lines.append(f"{part.document}, pages {format_pages(part.pages)}{number}")
    return lines


def evidence_lines(found: Evidence) -> list[str]:
    """A line for each of the pages that drew most attention, with its share."""
    return [f"{100 * page.share:3.0f} %  {place(page.document, page.page, page.label)}" for page in found.top(EVIDENCE)]


def citation_lines(citations: Iterable[Citation]) -> list[str]:
    """One line a citation: its number, its place, how far it was checked, and the quote."""
    lines = []
    for number, citation in enumerate(citations, 1):
        quote = f': "{" ".join(citation.quote.split())}"' if citation.quote else ""
        lines.append(f"{number}. {citation_place(citation)} ({status_words(citation)}){quote}")
    return lines


def stats_line(stats: TurnStats, model: str) -> str:
    """The numbers of one answer in one line."""
    speed = f"{1000 / stats.tpot_ms:.1f} tokens/s" if stats.tpot_ms > 0 else "no speed yet"
    read = {
        "passages": "from the best passages",
        "parts": "from all parts in turn",
        "none": "without a document",
    }.get(stats.reading, "from the whole document")
    return (
        f"{model} | {read} | re-used {stats.reused_tokens} of {stats.prompt_tokens} tokens "
        f"({stats.restored_tokens} restored from disk, {stats.computed_tokens} computed) | "
        f"first token after {stats.ttft_s:.2f} s | {stats.output_tokens} tokens at {speed} | {stats.profile}, "
        f"{stats.kv_format}, {stats.mode}"
    )
