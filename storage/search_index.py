"""Keeps the search index in step with the passages: the only place that writes to either."""

from collections.abc import Sequence

from sqlite_utils import Database

from storage.passages import Passage

_COLUMNS = {"passages_words": "text, heading, pairs", "passages_parts": "text"}


def index_document(db: Database, document_id: str, passages: Sequence[Passage]) -> None:
    """Stores passages of a document and makes them findable."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM passages").fetchone()
    db.conn.executemany(
        "INSERT INTO passages (document_id, page, heading, text, pairs) VALUES (?, ?, ?, ?, ?)",
        [(document_id, part.page, part.heading, part.text, part.pairs) for part in passages],
    )
    for index, columns in _COLUMNS.items():
        db.execute(
            f"INSERT INTO {index} (rowid, {columns}) SELECT id, {columns} FROM passages"
            " WHERE document_id = ? AND id > ?",
            (document_id, last),
        )


def unindex_document(db: Database, document_id: str) -> None:
    """Removes a document's passages and every trace of their words."""
    for index, columns in _COLUMNS.items():
        db.execute(
            f"INSERT INTO {index} ({index}, rowid, {columns})"
            f" SELECT 'delete', id, {columns} FROM passages WHERE document_id = ?",
            (document_id,),
        )
        # An FTS index keeps the words of deleted rows until its segments are merged.
        db.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")
    db.execute("DELETE FROM passages WHERE document_id = ?", (document_id,))


def check_index(db: Database) -> None:
    """Raises sqlite3.DatabaseError if the index does not agree with the passages."""
    for index in _COLUMNS:
        db.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)")
