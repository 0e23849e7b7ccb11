"""What the page shows of an answer, whether it is being written (TurnState) or stored (a message with its details)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.errors import DoesNotFit
from app.evidence import Evidence, read_evidence
from app.parts.state import PartsState, parts_from
from app.questions_table import TableState, table_from
from app.turn import TurnState
from ui.backend import MessageLike


@dataclass(frozen=True, slots=True)
class PassageView:
    document: str
    page: int
    label: str
    text: str
    document_id: str = ""


@dataclass(frozen=True, slots=True)
class CitationView:
    """As app.citations.Citation; what an answer of an older version did not store is empty."""

    document: str
    page: int
    label: str
    quote: str
    status: str
    document_id: str = ""
    places: tuple[int, ...] = ()
    named: bool = False
    said: str = ""
    last_page: int = 0
    first_line: int = 0
    last_line: int = 0


@dataclass(frozen=True, slots=True)
class ErrorView:
    message: str
    hint: str = ""
    does_not_fit: bool = False


@dataclass(frozen=True, slots=True)
class StatsView:
    model: str
    profile: str
    prompt_tokens: int
    reused_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_ms: float
    finish_reason: str
    restored_tokens: int = 0
    computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AnswerView:
    """state is a message's: complete, streaming, stopped, failed or interrupted."""

    text: str
    state: str
    thinking: str = ""
    passages: tuple[PassageView, ...] = ()
    citations: tuple[CitationView, ...] = ()
    evidence: Evidence | None = None
    warnings: tuple[str, ...] = ()
    error: ErrorView | None = None
    stats: StatsView | None = None
    reading: str = ""
    task: str = "question"
    parts: PartsState | None = None
    table: TableState | None = None
    message_id: str = ""


_STATES = {"done": "complete", "stopped": "stopped", "failed": "failed"}


def answer_of_state(state: TurnState) -> AnswerView:
    error = None
    if state.error is not None:
        error = ErrorView(state.error.message, state.error.hint, isinstance(state.error, DoesNotFit))
    return AnswerView(
        text=state.answer,
        state=_STATES.get(state.phase, "streaming"),
        thinking=state.thinking,
        passages=tuple(PassageView(p.document, p.page, p.label, p.text, p.document_id) for p in state.passages),
        citations=tuple(_citation(asdict(citation)) for citation in state.citations),
        evidence=state.evidence,
        warnings=state.warnings,
        error=error,
        stats=_stats(state.stats.as_dict()) if state.stats else None,
        reading=state.reading,
        task=state.task,
        parts=state.parts,
        table=state.table,
        message_id=state.message_id,
    )


def answer_of_message(message: MessageLike) -> AnswerView:
    """From the stored details; what an older version did not store is left out."""
    details = message.details
    return AnswerView(
        text=message.text,
        state=message.state,
        thinking=str(details.get("thinking") or ""),
        passages=tuple(
            PassageView(
                _text(p, "document"), _number(p, "page"), _text(p, "label"), _text(p, "text"), _text(p, "document_id")
            )
            for p in details.get("passages") or ()
        ),
        citations=tuple(_citation(stored) for stored in details.get("citations") or ()),
        evidence=read_evidence(details.get("evidence")),
        warnings=tuple(map(str, details.get("warnings") or ())),
        error=_error(details.get("error")),
        stats=_stats(details.get("stats")),
        reading=str(details.get("reading") or ""),
        task=str(details.get("task") or "question"),
        parts=parts_from(details),
        table=table_from(details),
        message_id=message.id,
    )


def _citation(stored: Mapping[str, Any]) -> CitationView:
    return CitationView(
        document=_text(stored, "document"),
        page=_number(stored, "page"),
        label=_text(stored, "label"),
        quote=_text(stored, "quote"),
        status=_text(stored, "status"),
        document_id=_text(stored, "document_id"),
        places=tuple(map(int, stored.get("places") or ())),
        named=bool(stored.get("named")),
        said=_text(stored, "said"),
        last_page=_number(stored, "last_page"),
        first_line=_number(stored, "first_line"),
        last_line=_number(stored, "last_line"),
    )


def _error(stored: Any) -> ErrorView | None:
    if not isinstance(stored, Mapping):
        return None
    return ErrorView(_text(stored, "message"), _text(stored, "hint"), stored.get("exit_code") == DoesNotFit.exit_code)


def _stats(stored: Any) -> StatsView | None:
    if not isinstance(stored, Mapping):
        return None
    return StatsView(
        model=_text(stored, "model"),
        profile=_text(stored, "profile"),
        prompt_tokens=_number(stored, "prompt_tokens"),
        reused_tokens=_number(stored, "reused_tokens"),
        output_tokens=_number(stored, "output_tokens"),
        ttft_s=float(stored.get("ttft_s") or 0.0),
        tpot_ms=float(stored.get("tpot_ms") or 0.0),
        finish_reason=_text(stored, "finish_reason"),
        restored_tokens=_number(stored, "restored_tokens"),
        computed_tokens=_number(stored, "computed_tokens"),
    )


def _text(stored: Mapping[str, Any], key: str) -> str:
    return str(stored.get(key) or "")


def _number(stored: Mapping[str, Any], key: str) -> int:
    return int(stored.get(key) or 0)
