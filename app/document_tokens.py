"""Token ids of documents, encoded page by page and kept in memory while the app runs.

One source for what enters a prompt and for every count: pages are encoded each by itself, so a count is a sum.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from app.ledger import Span
from app.prompts import DocumentText, document_foot, document_head, page_text
from storage import PageRow

if TYPE_CHECKING:
    from storage import Document, Library

Encode = Callable[[str], list[int]]
CountMany = Callable[[Sequence[str]], list[int]]
MOST_DOCUMENTS = 32
COUNTED_AT_ONCE = 200_000
"""Characters; counting needs some 300 bytes for each of them."""
KEPT_CHARACTERS = 2_000_000
"""The ids of a longer document are not kept from counting: it is chosen from before it is read."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of a document as it enters a prompt: what stands around its pages, and each page from the first on."""

    around: int
    pages: tuple[int, ...]


class DocumentTokens:
    """For one tokenizer. Any thread may call. tokenizer: its fingerprint, under which counts are kept on disk."""

    def __init__(
        self, library: Library, encode: Encode, tokenizer: str = "", count_many: CountMany | None = None
    ) -> None:
        self.library = library
        self.encode = encode
        self.count_many = count_many or (lambda texts: [len(encode(text)) for text in texts])
        # A count holds as long as a page enters a prompt in the same form.
        form = hashlib.sha256(page_text(PageRow(7, "label", "text")).encode()).hexdigest()[:16]
        self._kept_under = f"{tokenizer}:{form}" if tokenizer else ""
        self._pages: dict[str, list[array[int]]] = {}  # document id -> ids of each page
        self._lock = threading.Lock()

    def ids(self, text: DocumentText) -> tuple[int, ...]:
        """Head, the given pages, foot."""
        pages = self._all_pages(text.id)
        chosen = (pages[page.index - 1] for page in text.pages)
        return tuple(chain(self.encode(document_head(text)), *chosen, self.encode(document_foot(text))))

    def resolve(self, document_id: str, indices: Sequence[int]) -> tuple[int, ...] | None:
        """The same for stored page numbers; None when the document or one of the pages is gone."""
        from storage import StorageError

        try:
            document = self.library.document(document_id)
        except StorageError:
            return None
        wanted = set(indices)
        rows = tuple(row for row in self.library.pages(document_id) if row.index in wanted)
        if len(rows) != len(wanted):
            return None
        return self.ids(DocumentText(document.id, document.name, document.pages, rows))

    def spans(self, start: int, document_id: str, indices: Sequence[int]) -> list[Span]:
        """Where pages stand in a prompt whose ids from `start` on are those that `resolve` gives for them."""
        document = self.library.document(document_id)
        wanted = set(indices)
        rows = tuple(row for row in self.library.pages(document_id) if row.index in wanted)
        pages = self._all_pages(document_id)
        start += len(self.encode(document_head(DocumentText(document.id, document.name, document.pages, rows))))
        spans = []
        for row in rows:
            end = start + len(pages[row.index - 1])
            spans.append(Span(start, end, document_id, row.index))
            start = end
        return spans

    def counts(self, document_id: str) -> Counts:
        """Counted once for a tokenizer and kept in the library; memory stays flat however long the document is."""
        document = self.library.document(document_id)
        pages = self.library.token_counts(document_id, self._kept_under) if self._kept_under else None
        if pages is None or len(pages) != document.pages:
            pages = self._count(document)
            if self._kept_under:
                self.library.set_token_counts(document_id, self._kept_under, pages)
        text = DocumentText(document.id, document.name, document.pages, (PageRow(1, "", ""),) * document.pages)
        around = len(self.encode(document_head(text))) + len(self.encode(document_foot(text)))
        return Counts(around, pages)

    def _count(self, document: Document) -> tuple[int, ...]:
        if document.characters <= KEPT_CHARACTERS:
            return tuple(len(page) for page in self._all_pages(document.id))
        batches = self.library.page_batches(document.id, COUNTED_AT_ONCE)
        return tuple(count for batch in batches for count in self.count_many([page_text(row) for row in batch]))

    def forget(self, document_id: str) -> None:
        with self._lock:
            self._pages.pop(document_id, None)

    def _all_pages(self, document_id: str) -> list[array[int]]:
        with self._lock:
            known = self._pages.pop(document_id, None)
            if known is None:
                known = [array("I", self.encode(page_text(row))) for row in self.library.pages(document_id)]
                while len(self._pages) >= MOST_DOCUMENTS:
                    self._pages.pop(next(iter(self._pages)))
            self._pages[document_id] = known  # moved to the end: the latest used
            return known
