"""The visible state of one turn. A job replaces its TurnState as a whole, so that any thread may read it at any time.

Times are seconds unless a name says otherwise, sizes are tokens or bytes as named.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from app.citations import Citation
    from app.errors import AppError
    from app.evidence import Evidence
    from app.parts.state import PartsState
    from app.questions_table import TableState

Phase = Literal["queued", "loading", "reading", "answering", "done", "stopped", "failed"]
Reading = Literal["passages", "whole", "parts", "none"]
FINISHED: frozenset[str] = frozenset({"done", "stopped", "failed"})


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of a document that fits the question. page counts from 1; label is what is printed on the page."""

    document_id: str
    document: str
    page: int
    label: str
    text: str
    score: float


READ_BY = "read_by"
"""Key of the frozen value that names the mode in which a conversation's documents are read."""


@dataclass(frozen=True, slots=True)
class TurnStats:
    """What one answer cost.

    reused_tokens counts all tokens that needed no computing, restored_tokens those of them that came from a snapshot.
    ttft_s and tpot_ms are 0 where no token came. kv_pages_read_share is 1.0 when every KV page was read.
    demoted_pages: KV pages whose values are kept in 2 bits, because memory was short.
    """

    prompt_tokens: int
    reused_tokens: int
    restored_tokens: int
    computed_tokens: int
    ttft_s: float
    tpot_ms: float
    output_tokens: int
    finish_reason: str
    kv_pages_read_share: float
    peak_memory_bytes: int
    profile: str
    model: str
    kv_format: str
    mode: str
    reading: Reading
    read_by: str = "exact"
    demoted_pages: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TurnState:
    """One moment of a turn.

    read_done and read_total: while phase is "reading", tokens of the prompt; while it is "loading", thousandths of the
    model file. eta_s is None while unknown. position: how many jobs run before this one while phase is "queued".
    evidence: where the model looked, once it has answered from whole documents.
    answer is what is meant to be read, thinking what the model wrote before it. message_id is the answer's message.
    task: the kind of question (`app.tasks`); for one about the whole text, passages are its key sentences. parts: the
    windows of a reading in parts; while they are asked, read_done and read_total are thousandths of a window. table:
    the rows of many questions, of which the other fields then show the current one.
    """

    phase: Phase
    read_done: int = 0
    read_total: int = 0
    eta_s: float | None = None
    answer: str = ""
    thinking: str = ""
    passages: tuple[Passage, ...] = ()
    citations: tuple[Citation, ...] = ()
    evidence: Evidence | None = None
    stats: TurnStats | None = None
    error: AppError | None = None
    message_id: str = ""
    warnings: tuple[str, ...] = ()
    reading: Reading = "none"
    position: int = 0
    task: str = "question"
    parts: PartsState | None = None
    table: TableState | None = None

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED
