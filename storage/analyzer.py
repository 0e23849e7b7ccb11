"""Stems words exactly as the search index does, by asking SQLite's own tokenizer."""

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

TOKENIZER = "porter unicode61 remove_diacritics 2"


class Analyzer:
    """Keeps nothing between calls; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize='{TOKENIZER}')")
        self._connection.execute("CREATE VIRTUAL TABLE terms USING fts5vocab (texts, instance)")

    def terms(self, texts: Sequence[str]) -> list[list[str]]:
        """Each text's index terms in reading order."""
        found: list[list[tuple[int, str]]] = [[] for _ in texts]
        with self._holding(texts) as connection:
            for term, row, offset in connection.execute("SELECT term, doc, offset FROM terms"):
                found[row].append((offset, term))
        return [[term for _, term in sorted(entry)] for entry in found]

    def places(self, texts: Sequence[str], terms: Collection[str]) -> list[dict[str, list[int]]]:
        """For each text: term -> ascending places (in terms) where it stands, for those of `terms` that it has."""
        found: list[dict[str, list[int]]] = [defaultdict(list) for _ in texts]
        with self._holding(texts) as connection:
            for term in set(terms):
                for row, offset in connection.execute("SELECT doc, offset FROM terms WHERE term = ?", (term,)):
                    found[row][term].append(offset)
        return [{term: sorted(places) for term, places in entry.items()} for entry in found]

    @contextmanager
    def _holding(self, texts: Sequence[str]) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(texts))
                yield self._connection
            finally:
                self._connection.execute("ROLLBACK")
