"""Documents, their pages, and which conversation uses them."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from sqlite_utils import Database

from storage.base import checked_hex64, new_id, not_found, now, storable
from storage.indexing import INDEXED_AT_ONCE, Indexing
from storage.passages import split_pages
from storage.rows import PAGE_COLUMNS, TEXT_COLUMNS, Attachment, Document, PageRow
from storage.search_index import index_document

_DOCUMENTS_OF = """
    SELECT documents.*, conversation_documents.after_message FROM conversation_documents
    JOIN documents ON documents.id = conversation_documents.document_id
    WHERE conversation_documents.conversation_id = ? ORDER BY conversation_documents.position
"""


class Documents(Indexing):
    def add_document(
        self,
        sha256: str,
        name: str,
        kind: str,
        extractor: str,
        pages: Sequence[PageRow],
        size: int,
        source: str = "",
    ) -> Document:
        """Stores a document's text and makes it searchable; the same sha256 and extractor give the stored one back.

        A long one becomes searchable in the background; a search that comes before waits for it.
        """
        checked_hex64("sha256", sha256)
        stored = self.find_document(sha256, extractor)
        if stored is not None:
            return stored
        rows = [
            (
                page.index,
                storable(page.label),
                storable(page.text),
                page.flag,
                page.pictures,
                page.formulas,
                int(page.ocr),
                storable(page.words),
            )
            for page in pages
        ]
        if len({row[0] for row in rows}) != len(rows):
            raise ValueError("pages: got the same index twice, need distinct ones")
        document_id, characters = new_id(), sum(len(row[2]) for row in rows)
        later = characters > INDEXED_AT_ONCE
        passages = [] if later else split_pages([(row[0], row[2]) for row in rows])
        with nullcontext() if later else self._index_lock, self._writer.transaction() as db:
            inserted = db.execute(
                "INSERT INTO documents (id, sha256, extractor, name, kind, pages, characters, size, added, source)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sha256, extractor) DO NOTHING",
                (
                    document_id,
                    sha256,
                    storable(extractor),
                    storable(name),
                    storable(kind),
                    len(rows),
                    characters,
                    size,
                    now(),
                    storable(source),
                ),
            ).rowcount
            if inserted:  # else another thread stored the same document in the meantime
                db.conn.executemany(
                    f"INSERT INTO pages (document_id, {PAGE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    [(document_id, *row) for row in rows],
                )
                if later:
                    db.execute("INSERT INTO index_waits (document_id, next_page) VALUES (?, 1)", (document_id,))
                else:
                    index_document(db, document_id, passages)
        if later:
            self.index_in_background(document_id)
        document = self.find_document(sha256, extractor)
        if document is None:
            raise not_found("document", document_id)
        return document

    def document(self, id: str) -> Document:
        """Raises NotFound."""
        with self._writer.use() as db:
            for row in db.query("SELECT * FROM documents WHERE id = ?", (id,)):
                return document_of(row)
        raise not_found("document", id)

    def find_document(self, sha256: str, extractor: str) -> Document | None:
        with self._writer.use() as db:
            query = "SELECT * FROM documents WHERE sha256 = ? AND extractor = ?"
            for row in db.query(query, (sha256, storable(extractor))):
                return document_of(row)
        return None

    def documents(self, conversation_id: str | None = None) -> list[Document]:
        """A conversation's documents in the order they were attached; without one, all of them, newest first."""
        with self._writer.use() as db:
            if conversation_id is None:
                return [document_of(row) for row in db.query("SELECT * FROM documents ORDER BY added DESC, rowid DESC")]
            return [document_of(row) for row in db.query(_DOCUMENTS_OF, (conversation_id,))]

    def attachments(self, conversation_id: str) -> list[Attachment]:
        """As documents(conversation_id), with the number of messages that stood before each one."""
        with self._writer.use() as db:
            rows = db.query(_DOCUMENTS_OF, (conversation_id,))
            return [Attachment(document_of(row), row["after_message"]) for row in rows]

    def pages(self, document_id: str, *, words: bool = False) -> list[PageRow]:
        """In order; their words are read where asked for, else "". Raises NotFound for an unknown document."""
        with self._writer.use() as db:
            _need(db, "documents", "document", document_id)
            columns = PAGE_COLUMNS if words else TEXT_COLUMNS
            query = f"SELECT {columns} FROM pages WHERE document_id = ? ORDER BY page"
            rows = db.execute(query, (document_id,)).fetchall()
            return [PageRow(*row) for row in rows]

    def page(self, document_id: str, index: int) -> PageRow | None:
        """One page by its number from 1; None if the document, or that page of it, is not there."""
        with self._writer.use() as db:
            query = f"SELECT {PAGE_COLUMNS} FROM pages WHERE document_id = ? AND page = ?"
            row = db.execute(query, (document_id, index)).fetchone()
            return PageRow(*row) if row else None

    def attach(self, conversation_id: str, document_id: str) -> None:
        """Appends the document to the conversation's; attaching it again changes nothing."""
        with self._writer.transaction() as db:
            _need(db, "conversations", "conversation", conversation_id)
            _need(db, "documents", "document", document_id)
            db.execute(
                """
                INSERT INTO conversation_documents (conversation_id, document_id, position, after_message)
                VALUES (
                    :conversation, :document,
                    (SELECT coalesce(max(position) + 1, 0) FROM conversation_documents
                        WHERE conversation_id = :conversation),
                    (SELECT count(*) FROM messages WHERE conversation_id = :conversation)
                ) ON CONFLICT DO NOTHING
                """,
                {"conversation": conversation_id, "document": document_id},
            )

    def detach(self, conversation_id: str, document_id: str) -> None:
        """Takes the document out of the conversation; it stays in the library."""
        with self._writer.transaction() as db:
            db.execute(
                "DELETE FROM conversation_documents WHERE conversation_id = ? AND document_id = ?",
                (conversation_id, document_id),
            )

    def conversations_using(self, document_id: str) -> list[str]:
        """Ids of the conversations that have the document attached, or keep it as another version of one of theirs,
        oldest first."""
        query = """
            SELECT id FROM conversations WHERE id IN (
                SELECT conversation_id FROM conversation_documents WHERE document_id = :id
                UNION SELECT conversation_id FROM document_versions WHERE :id IN (document_id, newer_id)
            ) ORDER BY rowid
        """
        with self._writer.use() as db:
            return [row[0] for row in db.execute(query, {"id": document_id})]


def _need(db: Database, table: str, what: str, id: str) -> None:
    if db.execute(f"SELECT 1 FROM {table} WHERE id = ?", (id,)).fetchone() is None:
        raise not_found(what, id)


def document_of(row: dict[str, Any]) -> Document:
    return Document(**{field: row[field] for field in Document.__slots__})
