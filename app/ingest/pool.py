"""How many reading children run at once: one for each core, shared by all files that are read at the same time.

A file takes one slot. A large PDF takes free slots besides for ranges of its pages, so that one file uses all cores and
many files share them.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from app.errors import Cancelled

POLL_SECONDS = 0.05
MOST_CHILDREN = 16
T = TypeVar("T")


class Flag(Protocol):
    """What tells that the work is no longer wanted."""

    def is_set(self) -> bool: ...


class AnyOf:
    """Set as soon as one of its flags is."""

    def __init__(self, *flags: Flag | None) -> None:
        self._flags = [flag for flag in flags if flag is not None]

    def is_set(self) -> bool:
        return any(flag.is_set() for flag in self._flags)


def cores() -> int:
    """Processors that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, MOST_CHILDREN))


class Slots:
    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)

    @contextmanager
    def one(self, cancel: Flag | None = None) -> Iterator[None]:
        """Waits for a free slot. Raises Cancelled."""
        while not self._free.acquire(timeout=POLL_SECONDS):
            if cancel is not None and cancel.is_set():
                raise Cancelled("Reading was cancelled.", "Open the file again to read it.")
        try:
            yield
        finally:
            self._free.release()

    def take_free(self, most: int) -> int:
        """Takes up to `most` slots that are free now; each is given back with `give_back`."""
        taken = 0
        while taken < most and self._free.acquire(blocking=False):
            taken += 1
        return taken

    def give_back(self) -> None:
        self._free.release()


SLOTS = Slots(cores())


def ahead(
    tasks: Sequence[Callable[[Callable[..., None]], T]], report: Callable[..., None], width: int | None = None
) -> Iterator[Future[T]]:
    """Runs tasks on threads and yields their futures, done, in the order of the tasks.

    At most `width` (one for each core) are running or waiting to be taken, so that results do not pile up. Each task
    gets a function to report progress with; `report` is called in the caller's thread, with the same arguments.
    """
    width = width or cores()
    told: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()

    def tell(*news: object) -> None:
        told.put(news)

    def pass_on(wait: float) -> None:
        try:
            news = told.get(timeout=wait) if wait else told.get_nowait()
            while True:
                report(*news)
                news = told.get_nowait()
        except queue.Empty:
            return

    waiting: list[Future[T]] = []
    with ThreadPoolExecutor(width) as threads:
        following = iter(tasks)
        for task in following:
            waiting.append(threads.submit(task, tell))
            if len(waiting) == width:
                break
        while waiting:
            while not waiting[0].done():
                pass_on(POLL_SECONDS)
            pass_on(0)
            yield waiting.pop(0)
            if (task := next(following, None)) is not None:
                waiting.append(threads.submit(task, tell))
