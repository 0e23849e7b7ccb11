"""What a folder or archive held when it was read, file by file; token counts of pages; how fast models have read."""

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage.base import LibraryPart, checked_hex64, not_found, storable
from storage.rows import PAGE_COLUMNS, TEXT_COLUMNS, PageRow

KEPT_SPEEDS = 24
"""Measurements of one model, profile and mode that are kept; the oldest go first."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file inside a document that was read from a folder or an archive.

    modified: nanoseconds since 1970, 0 where unknown. first_page and pages: where its text stands, 0 and 0 for a file
    that was left out; skipped then says why. sha256 is "" for a file that was never opened. scanned: of a file that was
    left out because it holds no text, how many of its pages are pictures.
    """

    path: str
    size: int
    modified: int
    sha256: str
    extractor: str = ""
    first_page: int = 0
    pages: int = 0
    skipped: str = ""
    scanned: int = 0

    def __post_init__(self) -> None:
        if self.sha256:
            checked_hex64("sha256", self.sha256)
        if self.size < 0 or self.pages < 0 or self.first_page < (1 if self.pages else 0):
            raise ValueError(f"size, first_page, pages: got {(self.size, self.first_page, self.pages)}, need counts")

    @property
    def page_range(self) -> range:
        return range(self.first_page, self.first_page + self.pages)


@dataclass(frozen=True, slots=True)
class ReadingSpeed:
    """One measured prefill: tokens first to last (positions in the prompt) took so many seconds."""

    first: int
    last: int
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last or not self.seconds > 0:
            raise ValueError(f"first, last, seconds: got {(self.first, self.last, self.seconds)}, need a stretch")


class Manifests(LibraryPart):
    def set_files(self, document_id: str, files: Sequence[FileRow]) -> None:
        """Replaces the list of files of a document; the order given is the order in its text."""
        columns = ", ".join(("document_id", "position", *FileRow.__slots__))
        rows = [
            (document_id, place, storable(f.path), f.size, f.modified, f.sha256, storable(f.extractor), f.first_page,
             f.pages, storable(f.skipped), f.scanned)
            for place, f in enumerate(files)
        ]  # fmt: skip
        with self._writer.transaction() as db:
            if db.execute("SELECT 1 FROM documents WHERE id = ?", (document_id,)).fetchone() is None:
                raise not_found("document", document_id)
            db.execute("DELETE FROM document_files WHERE document_id = ?", (document_id,))
            db.conn.executemany(f"INSERT INTO document_files ({columns}) VALUES ({', '.join('?' * 11)})", rows)

    def files(self, document_id: str) -> list[FileRow]:
        """In the order of the document's text; empty for a document that is one file."""
        query = f"SELECT {', '.join(FileRow.__slots__)} FROM document_files WHERE document_id = ? ORDER BY position"
        with self._writer.use() as db:
            return [FileRow(*row) for row in db.execute(query, (document_id,)).fetchall()]

    def file_of_page(self, document_id: str, page: int) -> FileRow | None:
        """The file inside a folder or archive that a page of the document is of; None where it is of none."""
        query = f"""
            SELECT {", ".join(FileRow.__slots__)} FROM document_files
            WHERE document_id = ? AND first_page <= ? AND first_page + pages > ? AND pages > 0
        """
        with self._writer.use() as db:
            row = db.execute(query, (document_id, page, page)).fetchone()
        return None if row is None else FileRow(*row)

    def flagged_pages(self, document_id: str, flags: Sequence[str]) -> list[int]:
        """Numbers of the document's pages with one of these flags, ascending."""
        marks = ", ".join("?" * len(flags))
        query = f"SELECT page FROM pages WHERE document_id = ? AND flag IN ({marks}) ORDER BY page"
        with self._writer.use() as db:
            return [row[0] for row in db.execute(query, (document_id, *flags)).fetchall()]

    def recognised_pages(self, document_id: str) -> list[int]:
        """Numbers of the document's pages whose text was recognised on a picture, ascending."""
        query = "SELECT page FROM pages WHERE document_id = ? AND ocr = 1 ORDER BY page"
        with self._writer.use() as db:
            return [row[0] for row in db.execute(query, (document_id,)).fetchall()]

    def file_pages(self, sha256: str, extractor: str) -> tuple[str, list[PageRow]] | None:
        """The text that this extractor once made of a file inside some folder: (path it had there, its pages); their
        numbers are those in the folder's document."""
        query = """
            SELECT document_id, path, first_page, pages FROM document_files
            WHERE sha256 = ? AND extractor = ? AND pages > 0 LIMIT 1
        """
        with self._writer.use() as db:
            found = db.execute(query, (sha256, storable(extractor))).fetchone()
            if found is None:
                return None
            document_id, path, first, pages = found
            query = f"""
                SELECT {PAGE_COLUMNS} FROM pages
                WHERE document_id = ? AND page BETWEEN ? AND ? ORDER BY page
            """
            rows = db.execute(query, (document_id, first, first + pages - 1)).fetchall()
        return (path, [PageRow(*row) for row in rows]) if len(rows) == pages else None

    def last_of_source(self, source: str, kind: str) -> str | None:
        """Id of the document that was read from this path last."""
        query = "SELECT id FROM documents WHERE source = ? AND kind = ? ORDER BY added DESC, rowid DESC LIMIT 1"
        with self._writer.use() as db:
            row = db.execute(query, (storable(source), kind)).fetchone()
        return None if row is None else row[0]

    def page_batches(self, document_id: str, characters: int = 1_000_000, first: int = 1) -> Iterator[list[PageRow]]:
        """All pages from the first on, without words, about so many characters at a time, so that memory stays flat."""
        last, query = (
            first - 1,
            f"SELECT {TEXT_COLUMNS} FROM pages WHERE document_id = ? AND page > ? ORDER BY page",
        )
        while True:
            batch: list[PageRow] = []
            held = 0
            with self._writer.use() as db:
                for row in db.execute(query, (document_id, last)):
                    batch.append(PageRow(*row))
                    held += len(batch[-1].text)
                    if held >= characters:
                        break
            if not batch:
                return
            last = batch[-1].index
            yield batch

    def set_token_counts(self, document_id: str, tokenizer: str, counts: Sequence[int]) -> None:
        """tokenizer: names everything that shapes a count. A document that is gone is passed over."""
        with self._writer.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO document_tokens (document_id, tokenizer, counts)"
                " SELECT id, ?, ? FROM documents WHERE id = ?",
                (tokenizer, array("I", counts).tobytes(), document_id),
            )

    def token_counts(self, document_id: str, tokenizer: str) -> tuple[int, ...] | None:
        """Tokens of each page from the first on; None while nobody has counted them."""
        query = "SELECT counts FROM document_tokens WHERE document_id = ? AND tokenizer = ?"
        with self._writer.use() as db:
            row = db.execute(query, (document_id, tokenizer)).fetchone()
        if row is None:
            return None
        counts = array("I")
        counts.frombytes(row[0])
        return tuple(counts)

    def add_reading_speed(self, model: str, profile: str, speed: ReadingSpeed) -> None:
        """model: its fingerprint. profile: everything else that decides the speed, as one word."""
        with self._writer.transaction() as db:
            db.execute(
                "INSERT INTO reading_speeds (model, profile, first, last, seconds, measured) VALUES (?, ?, ?, ?, ?, ?)",
                (model, profile, speed.first, speed.last, speed.seconds, time.time()),
            )
            db.execute(
                "DELETE FROM reading_speeds WHERE model = :model AND profile = :profile AND rowid NOT IN (SELECT rowid"
                " FROM reading_speeds WHERE model = :model AND profile = :profile ORDER BY rowid DESC LIMIT :kept)",
                {"model": model, "profile": profile, "kept": KEPT_SPEEDS},
            )

    def reading_speeds(self, model: str, profile: str) -> list[ReadingSpeed]:
        """Newest first."""
        query = "SELECT first, last, seconds FROM reading_speeds WHERE model = ? AND profile = ? ORDER BY rowid DESC"
        with self._writer.use() as db:
            return [ReadingSpeed(*row) for row in db.execute(query, (model, profile)).fetchall()]
