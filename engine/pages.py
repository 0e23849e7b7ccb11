"""Which KV pages are free and how often each one is used. Knows numbers of pages, not what is in them."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np

from engine.errors import EngineError


class PagePool:
    """Pages 0 to size - 1 with reference counts. Takes neighbouring pages where it can: one run reads fastest."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = np.zeros(size, dtype=np.int32)

    @property
    def free(self) -> int:
        return int((self._references == 0).sum())

    def take(self, count: int, after: int | None = None) -> list[int]:
        """`count` pages with one reference each, continuing behind page `after` where that is free.

        Otherwise from the smallest gap that holds them all, else from the largest gaps. EngineError if too few.
        """
        if count > self.free:
            raise EngineError(
                f"The KV cache has {self.free} free pages and {count} are needed.", "Close a conversation."
            )
        taken: list[int] = []
        if after is not None:
            behind = self._references[after + 1 : after + 1 + count]
            run = int(np.argmax(behind != 0)) if (behind != 0).any() else len(behind)
            taken += self._mark(after + 1, run)
        while len(taken) < count:
            missing = count - len(taken)
            starts, lengths = self._gaps()
            fitting = np.flatnonzero(lengths >= missing)
            gap = fitting[np.argmin(lengths[fitting])] if len(fitting) else np.argmax(lengths)
            taken += self._mark(int(starts[gap]), min(missing, int(lengths[gap])))
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One reference more for each page."""
        np.add.at(self._references, self._in_use(pages), 1)

    def release(self, pages: Iterable[int]) -> None:
        """One reference less for each page; at zero it is free."""
        np.subtract.at(self._references, self._in_use(pages), 1)

    def references(self, page: int) -> int:
        """How often a page is used; 0 if it is free."""
        return int(self._references[page])

    def _in_use(self, pages: Iterable[int]) -> np.ndarray:
        numbers = np.fromiter(pages, dtype=np.int64)
        if (self._references[numbers] < 1).any():
            raise ValueError(f"pages: got {numbers.tolist()}, of which some are free, need pages in use")
        return numbers

    def _mark(self, start: int, count: int) -> list[int]:
        self._references[start : start + count] = 1
        return list(range(start, start + count))

    def _gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """(first page, length) of every run of free pages."""
        free = np.concatenate(([0], self._references == 0, [0])).astype(np.int8)
        edges = np.diff(free)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        return starts, ends - starts


def runs(table: SequenceOf[int], page_size: int, start: int, end: int) -> list[tuple[bool, int, int]]:
    """Tokens start to end - 1 of a page table as runs of neighbouring slots: (packed pool?, first slot, tokens).

    `table`: page numbers of the exact pool, or ~number (negative) for packed ones.
    """
    if start >= end:
        return []
    first_page = start // page_size
    pages = np.asarray(table[first_page : -(-end // page_size)], dtype=np.int64)
    packed = pages < 0
    numbers = np.where(packed, ~pages, pages)
    cuts = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(packed.astype(np.int8)) != 0)) + 1
    firsts = np.concatenate(([0], cuts))
    lasts = np.concatenate((cuts, [len(pages)]))
    begins = np.maximum((first_page + firsts) * page_size, start)
    ends = np.minimum((first_page + lasts) * page_size, end)
    slots = numbers[firsts] * page_size + begins - (first_page + firsts) * page_size
    return list(zip(packed[firsts].tolist(), slots.tolist(), (ends - begins).tolist()))
