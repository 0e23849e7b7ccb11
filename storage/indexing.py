"""The search index of large documents is made in the background, a part at a time; search waits for what it needs.

Passages of one document keep neighbouring ids, as ranking counts by ranges of them: so one is indexed at a time.
"""

import logging
import threading
from collections.abc import Sequence

from storage.errors import StorageError
from storage.manifests import Manifests
from storage.passages import split_pages
from storage.search_index import index_document

log = logging.getLogger(__name__)

INDEXED_AT_ONCE = 2_000_000
"""Characters of a document that is indexed while it is stored; a longer one waits."""
PART_CHARACTERS = 500_000
BEGINS_AFTER_S = 20.0
"""What a person waits for, tokens and times, comes first; a search does not wait so long, it begins by itself."""


class Indexing(Manifests):
    _index_lock: threading.Lock
    _index_thread: threading.Thread | None = None
    _closing: threading.Event

    def index_in_background(self, document_id: str) -> None:
        """Goes on without the caller; closing the library stops it, and the next search takes it up."""

        def work() -> None:
            if self._closing.wait(BEGINS_AFTER_S):
                return
            try:
                self.finish_index([document_id], stop=self._closing)
            except StorageError as error:
                log.warning("a document is not indexed yet: %s", error)

        self._index_thread = threading.Thread(target=work, name="library-index", daemon=True)
        self._index_thread.start()

    def finish_index(self, document_ids: Sequence[str] | None, stop: threading.Event | None = None) -> None:
        """Makes what is missing of the index of these documents (None: of all), unless `stop` is set."""
        for document_id in self._waiting():
            if document_ids is None or document_id in document_ids:
                with self._index_lock:
                    while not (stop is not None and stop.is_set()) and self._index_part(document_id):
                        pass

    def indexing(self, document_id: str) -> bool:
        return document_id in self._waiting()

    def _waiting(self) -> list[str]:
        with self._writer.use() as db:
            return [row[0] for row in db.execute("SELECT document_id FROM index_waits ORDER BY rowid").fetchall()]

    def _index_part(self, document_id: str) -> bool:
        """One part; False when nothing is left, also because the document is gone."""
        with self._writer.use() as db:
            row = db.execute("SELECT next_page FROM index_waits WHERE document_id = ?", (document_id,)).fetchone()
        if row is None:
            return False
        batch = next(self.page_batches(document_id, PART_CHARACTERS, first=row[0]), None)
        passages = split_pages([(page.index, page.text) for page in batch]) if batch else []
        with self._writer.transaction() as db:
            if db.execute("SELECT 1 FROM index_waits WHERE document_id = ?", (document_id,)).fetchone() is None:
                return False
            if not batch:
                db.execute("DELETE FROM index_waits WHERE document_id = ?", (document_id,))
                return False
            index_document(db, document_id, passages)
            db.execute("UPDATE index_waits SET next_page = ? WHERE document_id = ?", (batch[-1].index + 1, document_id))
        return True

    def _close_indexing(self) -> None:
        self._closing.set()
        if self._index_thread is not None:
            self._index_thread.join()
