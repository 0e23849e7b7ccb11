"""Newer versions of documents within a conversation, and which pages a person chose there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from storage.base import LibraryPart, storable
from storage.documents import document_of
from storage.errors import NotFound
from storage.rows import Document

VersionState = Literal["offered", "updated", "replaced"]


@dataclass(frozen=True, slots=True)
class Version:
    """In one conversation `newer_id` is a newer version of `document_id`.

    offered: it waits for a decision and is not read. updated: it holds the changed files and stands behind the older
    document. replaced: it took the older one's place, which is kept only so that earlier citations open.
    """

    document_id: str
    newer_id: str
    state: VersionState


class Versions(LibraryPart):
    def versions(self, conversation_id: str) -> list[Version]:
        """In the order in which they came."""
        query = "SELECT document_id, newer_id, state FROM document_versions WHERE conversation_id = ? ORDER BY rowid"
        with self._writer.use() as db:
            return [Version(*row) for row in db.execute(query, (conversation_id,)).fetchall()]

    def set_version(self, conversation_id: str, version: Version) -> None:
        with self._writer.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO document_versions (conversation_id, document_id, newer_id, state)"
                " VALUES (?, ?, ?, ?)",
                (conversation_id, version.document_id, version.newer_id, version.state),
            )

    def forget_offers(self, conversation_id: str, document_id: str) -> None:
        with self._writer.transaction() as db:
            db.execute(
                "DELETE FROM document_versions WHERE conversation_id = ? AND document_id = ? AND state = 'offered'",
                (conversation_id, document_id),
            )

    def forget_versions(self, conversation_id: str, document_ids: Sequence[str]) -> None:
        """Nothing in this conversation remembers these documents as a version of another one."""
        with self._writer.transaction() as db:
            for id in document_ids:
                db.execute(
                    "DELETE FROM document_versions WHERE conversation_id = ? AND ? IN (document_id, newer_id)",
                    (conversation_id, id),
                )

    def replace_attached(self, conversation_id: str, document_id: str, newer_id: str) -> None:
        """The newer document takes the older one's place in the conversation; what updated the older one goes too.

        Raises NotFound where the older one has been taken out."""
        with self._writer.transaction() as db:
            arguments = {"conversation": conversation_id, "old": document_id, "new": newer_id}
            updates = [
                row[0]
                for row in db.execute(
                    "SELECT newer_id FROM document_versions WHERE conversation_id = :conversation"
                    " AND document_id = :old AND state = 'updated'",
                    arguments,
                ).fetchall()
            ]
            place = db.execute(
                "SELECT position, after_message FROM conversation_documents"
                " WHERE conversation_id = :conversation AND document_id = :old",
                arguments,
            ).fetchone()
            if place is None:
                raise NotFound("The document is not in the conversation any more.", "Add it again.")
            for gone in (document_id, newer_id, *updates):
                db.execute(
                    "DELETE FROM conversation_documents WHERE conversation_id = ? AND document_id = ?",
                    (conversation_id, gone),
                )
            db.execute(
                "INSERT INTO conversation_documents (conversation_id, document_id, position, after_message)"
                " VALUES (?, ?, ?, ?)",
                (conversation_id, newer_id, *place),
            )
            db.execute(
                "UPDATE OR REPLACE document_versions SET newer_id = :new, state = 'replaced'"
                " WHERE conversation_id = :conversation AND newer_id = :old AND state = 'replaced'",
                arguments,
            )
            for gone in (document_id, *updates):
                db.execute(
                    "DELETE FROM document_versions WHERE conversation_id = ? AND ? IN (document_id, newer_id)"
                    " AND state <> 'replaced'",
                    (conversation_id, gone),
                )
                db.execute(
                    "INSERT OR REPLACE INTO document_versions (conversation_id, document_id, newer_id, state)"
                    " VALUES (?, ?, ?, 'replaced')",
                    (conversation_id, gone, newer_id),
                )
            db.execute(
                "DELETE FROM document_versions WHERE conversation_id = ? AND document_id = newer_id", (conversation_id,)
            )

    def earlier_documents(self, conversation_id: str) -> list[Document]:
        """Documents that a newer one has replaced in this conversation; earlier answers may cite them."""
        query = """
            SELECT * FROM documents WHERE id IN (
                SELECT document_id FROM document_versions WHERE conversation_id = ? AND state = 'replaced'
            ) ORDER BY added
        """
        with self._writer.use() as db:
            return [document_of(row) for row in db.query(query, (conversation_id,))]

    def set_choice(self, conversation_id: str, choice: str) -> None:
        """What a person chose to be read in this conversation, in the app's own words; "" for everything."""
        with self._writer.transaction() as db:
            db.execute("DELETE FROM choices WHERE conversation_id = ?", (conversation_id,))
            if choice:
                db.execute("INSERT INTO choices VALUES (?, ?)", (conversation_id, storable(choice)))

    def choice(self, conversation_id: str) -> str:
        with self._writer.use() as db:
            row = db.execute("SELECT choice FROM choices WHERE conversation_id = ?", (conversation_id,)).fetchone()
        return "" if row is None else row[0]
