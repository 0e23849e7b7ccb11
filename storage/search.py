"""Finds the passages that best fit a question."""

import json
from collections.abc import Sequence
from typing import Any

from sqlite_utils import Database

from storage.base import LibraryPart, storable
from storage.ranking import Candidate, rank
from storage.rows import Hit
from storage.text import character_pairs, question_words, quoted

MOST_TERMS = 64
CANDIDATES = 150

_BY_WORDS = """
    SELECT passages.id, passages.document_id, passages.page, passages.heading, passages.text, passages.pairs,
        bm25(passages_words, 1.0, 0.5, 1.0) AS distance
    FROM passages_words JOIN passages ON passages.id = passages_words.rowid
    WHERE passages_words MATCH :match
        AND (:documents IS NULL OR passages.document_id IN (SELECT value FROM json_each(:documents)))
    ORDER BY distance LIMIT :limit
"""
_BY_PARTS = """
    SELECT passages.id, passages.document_id, passages.page, passages.heading, passages.text, passages.pairs,
        bm25(passages_parts) AS distance
    FROM passages_parts JOIN passages ON passages.id = passages_parts.rowid
    WHERE passages_parts MATCH :match
        AND (:documents IS NULL OR passages.document_id IN (SELECT value FROM json_each(:documents)))
    ORDER BY distance LIMIT :limit
"""


class Search(LibraryPart):
    def search(self, question: str, document_ids: Sequence[str] | None, limit: int) -> list[Hit]:
        """The best passages for a question in plain words, best first; near copies of a better one are left out.

        `document_ids` None searches the whole library. Any string is a valid question: it has no query syntax.
        """
        if limit < 1 or (document_ids is not None and not document_ids):
            return []
        question = storable(question)[:10_000]
        documents = None if document_ids is None else json.dumps(list(document_ids))
        terms = question_words(question)[:MOST_TERMS]
        pairs = list(dict.fromkeys(character_pairs(question).split()))[:MOST_TERMS]
        with self._writer.use() as db:
            rows = _find(db, _BY_WORDS, _words_query(terms, pairs), documents)
            if not rows:
                rows = _find(db, _BY_PARTS, _parts_query(terms), documents)
            names = _names(db, {row["document_id"] for row in rows})
            labels = _labels(db, {(row["document_id"], row["page"]) for row in rows})
        candidates = [
            Candidate(row["document_id"], row["page"], row["heading"], row["text"], row["pairs"], -row["distance"])
            for row in rows
        ]
        return [
            Hit(
                best.document_id,
                names[best.document_id],
                best.page,
                labels[best.document_id, best.page],
                best.text,
                score,
                best.heading,
            )
            for best, score in rank(terms, pairs, candidates)[:limit]
        ]


def _words_query(terms: Sequence[str], pairs: Sequence[str]) -> str:
    parts = []
    if terms:
        parts.append("{text heading} : (" + " OR ".join(quoted(term) for term in terms) + ")")
    if pairs:
        parts.append("pairs : (" + " OR ".join(quoted(pair) for pair in pairs) + ")")
    return " OR ".join(parts)


def _parts_query(terms: Sequence[str]) -> str:
    """Passages that hold all three-letter pieces of one of the words."""
    words = []
    for term in terms:
        pieces = [quoted(term[start : start + 3]) for start in range(len(term) - 2)]
        if pieces:
            words.append("(" + " AND ".join(pieces) + ")")
    return " OR ".join(words)


def _find(db: Database, sql: str, match: str, documents: str | None) -> list[dict[str, Any]]:
    if not match:
        return []
    return list(db.query(sql, {"match": match, "documents": documents, "limit": CANDIDATES}))


def _names(db: Database, ids: set[str]) -> dict[str, str]:
    query = "SELECT id, name FROM documents WHERE id IN (SELECT value FROM json_each(?))"
    return dict(db.execute(query, (json.dumps(sorted(ids)),)).fetchall())


def _labels(db: Database, places: set[tuple[str, int]]) -> dict[tuple[str, int], str]:
    query = "SELECT label FROM pages WHERE document_id = ? AND page = ?"
    return {place: db.execute(query, place).fetchone()[0] for place in places}
