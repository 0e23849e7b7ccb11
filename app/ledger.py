"""The exact token ids of a conversation's prompt so far, turn by turn, as they were computed and as they are stored.

What a turn put into the prompt is stored with the answer that came of it, beside that answer's ids: another try has a
record of its own. The next prompt is the stored ids followed by new ones, so that the KV prefix stays valid whatever
else changes: the clock, a template, the way this app writes page markers. Whole documents are stored as a reference
with a digest of their ids, not as a second copy of their text; if the same ids cannot be made again, the record does
not count and the prompt is made anew.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

Pages = tuple[tuple[str, tuple[int, ...]], ...]
"""(document id, page indices from 1) of documents whose text is in the prompt."""
Resolve = Callable[[str, Sequence[int]], Sequence[int] | None]
"""(document id, page indices) -> the token ids of these pages; None when the document is gone."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of token ids; with a document's id, the ids are those of its pages."""

    ids: tuple[int, ...]
    document: str = ""
    pages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Where a document's page stands in a prompt: its tokens from `start` to before `end`."""

    start: int
    end: int
    document: str
    page: int


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """What one turn put into the prompt, up to where its answer begins.

    model: fingerprint of the model whose tokenizer made the ids; another model cannot use them. start: the ids begin a
    prompt of their own, nothing before them belongs to it. open_thinking: they end inside a thinking block.
    """

    model: str
    start: bool
    parts: tuple[Part, ...]
    open_thinking: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(part.ids for part in self.parts))

    @property
    def checkpoint(self) -> int:
        """How many of the ids lie before and inside the documents; 0 without documents."""
        done = end = 0
        for part in self.parts:
            done += len(part.ids)
            end = done if part.document else end
        return end

    @property
    def pages(self) -> Pages:
        return merge_pages([(part.document, part.pages) for part in self.parts if part.document])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        parts = [
            {"document": part.document, "pages": list(part.pages), "digest": _digest(part.ids)}
            if part.document
            else {"ids": pack_ids(part.ids)}
            for part in self.parts
        ]
        return {"model": self.model, "start": self.start, "parts": parts, "open_thinking": self.open_thinking}


def read_record(row: Mapping[str, Any], resolve: Resolve) -> TurnRecord | None:
    """A stored record; None when one of its documents no longer gives the same ids."""
    parts = []
    for part in row["parts"]:
        if "document" not in part:
            parts.append(Part(unpack_ids(part["ids"])))
            continue
        ids = resolve(part["document"], part["pages"])
        if ids is None or _digest(ids) != part["digest"]:
            return None
        parts.append(Part(tuple(ids), part["document"], tuple(part["pages"])))
    return TurnRecord(row["model"], row["start"], tuple(parts), row["open_thinking"])


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An answered turn: its texts, and its ids where this model wrote them (None: encode the text anew)."""

    question: str
    answer: str
    record: TurnRecord | None
    answer_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The prompt so far. ids: everything up to and including the last answer. pages: all that it shows in full.
    placed: each part with a document's pages and the place of its first id."""

    ids: tuple[int, ...]
    pages: Pages
    placed: tuple[tuple[int, Part], ...] = ()

    @property
    def documents_end(self) -> int:
        """How many of the ids lie before and inside the documents; 0 without documents."""
        return max((start + len(part.ids) for start, part in self.placed), default=0)


def read_ledger(turns: Sequence[PastTurn], model: str) -> Ledger | None:
    """The ids so far, or None when they must be made anew: another model wrote them, or a turn was never recorded."""
    ids: list[int] = []
    pages: list[tuple[str, tuple[int, ...]]] = []
    placed: list[tuple[int, Part]] = []
    known = False
    for turn in turns:
        record = turn.record
        if record is None or record.model != model or turn.answer_ids is None:
            known = False
            continue
        if record.start:
            ids, pages, placed, known = [], [], [], True
        if known:
            placed += document_parts(record.parts, len(ids))
            ids += record.ids
            ids += turn.answer_ids
            pages += record.pages
    return Ledger(tuple(ids), merge_pages(pages), tuple(placed)) if known else None


def document_parts(parts: Sequence[Part], start: int) -> Iterator[tuple[int, Part]]:
    """Those with a document's pages, each with the place of its first id in a prompt where `parts` begin at `start`."""
    for part in parts:
        if part.document:
            yield start, part
        start += len(part.ids)


def merge_pages(pages: Sequence[tuple[str, tuple[int, ...]]]) -> Pages:
    """One entry a document, in order of first appearance."""
    merged: dict[str, dict[int, None]] = {}
    for document, indices in pages:
        merged.setdefault(document, {}).update(dict.fromkeys(indices))
    return tuple((document, tuple(indices)) for document, indices in merged.items())


def pack_ids(ids: Sequence[int]) -> str:
    """Token ids as text, about 2.5 characters a token."""
    return base64.b85encode(zlib.compress(array("I", ids).tobytes(), 6)).decode("ascii")


def unpack_ids(text: str) -> tuple[int, ...]:
    ids = array("I")
    ids.frombytes(zlib.decompress(base64.b85decode(text)))
    return tuple(ids)


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(array("I", ids).tobytes()).hexdigest()[:32]
