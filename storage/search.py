"""Finds the passages that best fit a question: candidates from the index, put into order by `ranking`."""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from sqlite_utils import Database

from storage.analyzer import Analyzer
from storage.base import storable
from storage.indexing import Indexing
from storage.ranking import SYNONYM, Candidate, Concept, rank
from storage.ranking import Collection as Counted
from storage.rows import Hit
from storage.synonyms import synonyms
from storage.text import character_pairs, question_words, quoted

MOST_CHARACTERS = 10_000
MOST_TERMS = 64
CANDIDATES = 150

_CANDIDATES = """
    SELECT passages.document_id, passages.page, passages.heading, passages.text, passages.pairs
    FROM {index} JOIN passages ON passages.id = {index}.rowid
    WHERE {index} MATCH :match
        AND (:documents IS NULL OR passages.document_id IN (SELECT value FROM json_each(:documents)))
        AND passages.document_id || ' ' || passages.page NOT IN (SELECT value FROM json_each(:without))
    ORDER BY {order} LIMIT :limit
"""
_BY_WORDS = _CANDIDATES.format(index="passages_words", order="bm25(passages_words, 1.0, 1.0, 1.0)")
_BY_PARTS = _CANDIDATES.format(index="passages_parts", order="bm25(passages_parts)")
_BY_READING = """
    SELECT document_id, page, heading, text, pairs FROM passages
    WHERE instr(lower(text), :match)
        AND (:documents IS NULL OR document_id IN (SELECT value FROM json_each(:documents)))
        AND document_id || ' ' || page NOT IN (SELECT value FROM json_each(:without))
    ORDER BY id LIMIT :limit
"""
# A document's passages are stored in one go, so their ids are a range, and FTS5 finds rows of a range fast.
_RANGES = """
    SELECT min(id), max(id), count(*) FROM passages
    WHERE document_id IN (SELECT value FROM json_each(?)) GROUP BY document_id
"""
_COUNT_IN_RANGE = "SELECT count(*) FROM passages_words WHERE passages_words MATCH ? AND rowid BETWEEN ? AND ?"
_COUNT = "SELECT count(*) FROM passages_words WHERE passages_words MATCH ?"
MOST_RANGES = 8
_analyzer = Analyzer()


class Search(Indexing):
    def search(
        self,
        question: str,
        document_ids: Sequence[str] | None,
        limit: int,
        *,
        without: Mapping[str, Collection[int]] = MappingProxyType({}),
    ) -> list[Hit]:
        """The best passages for a question in plain words, best first; near copies of a better one are left out.

        `document_ids` None searches the whole library. Any string is a valid question: it has no query syntax. Scripts
        without spaces are searched by pairs of characters; if no word is found, words that contain the question's.
        without: pages of documents that are passed over.
        """
        if limit < 1 or (document_ids is not None and not document_ids):
            return []
        self.finish_index(document_ids)
        question = storable(question)[:MOST_CHARACTERS]
        documents = None if document_ids is None else json.dumps(list(document_ids))
        passed = json.dumps([f"{document} {page}" for document, pages in without.items() for page in pages])
        words = question_words(question)[:MOST_TERMS]
        pairs = list(dict.fromkeys(character_pairs(question).split()))[:MOST_TERMS]
        concepts, words_of = _concepts(words, pairs)
        with self._writer.use() as db:
            candidates = _find(
                db, _BY_WORDS, " OR ".join(quoted(word) for word in words_of.values()), documents, passed
            )
            if candidates:
                ordered = rank(concepts, candidates, _collection(db, words_of, documents), _analyzer, limit)
            else:
                candidates = _find(db, _BY_PARTS, _parts_query(words), documents, passed)
                for piece in _short_pieces(words, pairs):
                    candidates = candidates or _find(db, _BY_READING, piece, documents, passed)
                ordered = [(candidate, 1 / (place + 1)) for place, candidate in enumerate(candidates)]
            return [_hit(db, candidate, score) for candidate, score in ordered[:limit]]


def _concepts(words: Sequence[str], pairs: Sequence[str]) -> tuple[list[Concept], dict[str, str]]:
    """The question's words (with others of the same sense) and pairs as index terms, and a word for each term.

    The index must be asked by word, since stemming a stem again can change it.
    """
    joined = ["".join(two) for two in pairwise(words)]  # "file name" is often written "filename"
    others = {word: synonyms(word) for word in words}
    texts = [*words, *joined, *pairs, *(other for word in words for other in others[word])]
    stems = dict(zip(texts, _analyzer.terms(texts), strict=True))
    words_of: dict[str, str] = {}
    concepts: list[Concept] = []
    for word in (*words, *joined, *pairs):
        own = {stem: 1.0 for stem in stems[word] if stem not in words_of}
        words_of.update((stem, word) for stem in own)
        if own:
            concepts.append(Concept({**_other_terms(others.get(word, ()), stems), **own}))
    for word in texts:
        for stem in stems[word]:
            words_of.setdefault(stem, word)
    return concepts, words_of


def _other_terms(others: Sequence[str], stems: dict[str, list[str]]) -> dict[str, float]:
    return {stem: SYNONYM for other in others for stem in stems[other]}


def _parts_query(words: Sequence[str]) -> str:
    """Passages that hold all three-letter pieces of one of the words."""
    groups = []
    for word in words:
        pieces = [quoted(word[start : start + 3]) for start in range(len(word) - 2)]
        if pieces:
            groups.append("(" + " AND ".join(pieces) + ")")
    return " OR ".join(groups)


def _short_pieces(words: Sequence[str], pairs: Sequence[str]) -> list[str]:
    """What is too short for either index: single characters of scripts without spaces, words of one or two letters."""
    return [piece for piece in (*pairs, *words) if len(piece) < 3]


def _find(db: Database, sql: str, match: str, documents: str | None, passed: str) -> list[Candidate]:
    if not match:
        return []
    rows = db.execute(sql, {"match": match, "documents": documents, "without": passed, "limit": CANDIDATES})
    return [Candidate(*row) for row in rows]


def _collection(db: Database, words_of: Mapping[str, str], documents: str | None) -> Counted:
    """Counts within the documents asked about; within the whole library if those are many."""
    ranges = [] if documents is None else db.execute(_RANGES, (documents,)).fetchall()
    if documents is not None and len(ranges) <= MOST_RANGES:
        counts = {
            term: sum(db.execute(_COUNT_IN_RANGE, (quoted(word), low, high)).fetchone()[0] for low, high, _ in ranges)
            for term, word in words_of.items()
        }
        return Counted(sum(count for _, _, count in ranges), counts)
    counts = {term: db.execute(_COUNT, (quoted(word),)).fetchone()[0] for term, word in words_of.items()}
    return Counted(db.execute("SELECT count(*) FROM passages").fetchone()[0], counts)


def _hit(db: Database, candidate: Candidate, score: float) -> Hit:
    query = """
        SELECT documents.name, pages.label FROM documents JOIN pages ON pages.document_id = documents.id
        WHERE documents.id = ? AND pages.page = ?
    """
    name, label = db.execute(query, (candidate.document_id, candidate.page)).fetchone()
    return Hit(candidate.document_id, name, candidate.page, label, candidate.text, score, candidate.heading)
