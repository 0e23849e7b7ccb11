"""The values that storage hands out. Times are seconds since 1970 (UTC); ids are opaque strings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

MessageState = Literal["complete", "streaming", "stopped", "failed", "interrupted"]
MESSAGE_STATES: tuple[str, ...] = ("complete", "streaming", "stopped", "failed", "interrupted")
PAGE_FLAGS: tuple[str, ...] = ("", "scanned", "empty", "garbled")


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    title: str
    created: float
    updated: float
    pinned: bool


@dataclass(frozen=True, slots=True)
class Message:
    """`index` counts from 0 within the conversation. An answer is `streaming` until its last update."""

    id: str
    conversation_id: str
    index: int
    role: str
    text: str
    state: str
    created: float
    details: dict[str, Any] = field(default_factory=dict)


TEXT_COLUMNS = "page, label, text, flag, pictures, formulas, ocr"
PAGE_COLUMNS = f"{TEXT_COLUMNS}, words"
"""Of the table of pages, in the order of PageRow's fields; words, the last, can be longer than the text."""


@dataclass(frozen=True, slots=True)
class PageRow:
    """One page of a document: `index` from 1, `label` as printed on it, `flag` one of PAGE_FLAGS.

    pictures, formulas: how many it shows that its text does not hold. ocr: its text was recognised on a picture; words
    are then its words with their places there, in the app's own form ("" where they are not known).
    """

    index: int
    label: str
    text: str
    flag: str = ""
    pictures: int = 0
    formulas: int = 0
    ocr: bool = False
    words: str = ""

    def __post_init__(self) -> None:
        if self.index < 1:
            raise ValueError(f"index: got {self.index}, need 1 or more")
        if self.flag not in PAGE_FLAGS:
            raise ValueError(f"flag: got {self.flag!r}, need one of {PAGE_FLAGS}")


@dataclass(frozen=True, slots=True)
class Document:
    """`pages` and `characters` are counts, `size` is the file's bytes, `source` where it came from."""

    id: str
    sha256: str
    name: str
    kind: str
    pages: int
    characters: int
    size: int
    added: float
    extractor: str
    source: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """A document of a conversation; `after_message` messages stood in the conversation when it was added."""

    document: Document
    after_message: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that fits a question: it lies on one page, `heading` is the section it stands in ("" if unknown)."""

    document_id: str
    document: str
    page: int
    label: str
    text: str
    score: float
    heading: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotStats:
    """`bytes` counts what the rows hold, `file_bytes` what the files take on disk."""

    rows: int
    blocks: int
    checkpoints: int
    owners: int
    bytes: int
    file_bytes: int
    quota_bytes: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What one owner's snapshot rows hold; rows of several owners count for each. `tokens`: the longest prefix."""

    owner: str
    rows: int
    tokens: int
    bytes: int
    last_used: float
    pinned: bool


@dataclass(frozen=True, slots=True)
class Backup:
    """A verified copy of library.db; `reason` is "daily" or "before-<migration>"."""

    path: Path
    created: float
    reason: str
    bytes: int
