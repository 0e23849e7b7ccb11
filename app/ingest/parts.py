"""The pages of one PDF from several children at once: each reads a range, the ranges are joined in order.

A page that breaks its reader is skipped by the next child. A range that meets a limit ends there; pages behind it are
not kept, so that a document never has a hole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from app.errors import AppError, Cancelled
from app.ingest.child import ChildStopped, run_child
from app.ingest.extracted import Limits
from app.ingest.layout import PageText
from app.ingest.pool import SLOTS, AnyOf, Flag

CRASHES = 3  # so many pages of one range may break the reader before it is given up
LEAST_PAGES = 64  # a range is no shorter: starting a child costs as much as some dozens of pages

Request = Callable[[int, int], bytes]
"""(first page, last page; 0 for all that follow) -> the line that starts a child"""


class _Enough(Exception):
    """The part has all of its pages."""


class Part:
    """Pages `first` to `last` (0: the last of the document) and how their reading ended."""

    def __init__(self, first: int, last: int = 0) -> None:
        self.first, self.last = first, last
        self.pages: list[PageText] = []
        self.stop_reason = ""

    @property
    def following(self) -> int:
        return self.first + len(self.pages)

    def read(
        self,
        request: Request,
        other: Callable[[dict[str, Any]], None],
        *,
        limits: Limits,
        cancel: Flag | None,
        pass_fds: Sequence[int],
    ) -> None:
        """Fill `pages`; messages that are no pages go to `other`. Raises what `run_child` raises, but ChildStopped."""
        total = 0

        def take(message: dict[str, Any]) -> None:
            nonlocal total
            if message["type"] == "start":
                total = message["total"]
            if message["type"] != "page":
                other(message)
                return
            page = message["page"]
            page["edges"] = tuple((place, top) for place, top in page["edges"])
            self.pages.append(PageText(**page))
            other(message)
            if self.last and self.following > self.last:
                raise _Enough

        for _ in range(CRASHES + 1):
            try:
                run_child(request(self.following, self.last), take, limits=limits, cancel=cancel, pass_fds=pass_fds)
                self.stop_reason = ""
                return
            except _Enough:
                self.stop_reason = ""
                return
            except ChildStopped as stop:
                self.stop_reason = stop.reason
                if not (stop.crashed and self.following <= (self.last or total)):
                    return
                broken = self.following
                self.pages.append(PageText(broken, str(broken), "", damaged=True))
                if self.following > (self.last or total):
                    self.stop_reason = ""
                    return
        self.pages.pop()  # it was given up here

    @property
    def complete(self) -> bool:
        return not self.stop_reason


class Helpers:
    """The parts behind the first one, on threads of their own."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    def start(
        self,
        first: Part,
        total: int,
        request: Request,
        other: Callable[[dict[str, Any]], None],
        *,
        limits: Limits,
        cancel: Flag | None,
        pass_fds: Sequence[int],
        least: int = LEAST_PAGES,
    ) -> None:
        """Share the pages out among the first part and as many helpers as there are free slots."""
        total = min(total, limits.pages)
        count = SLOTS.take_free(total // least - 1)
        if not count:
            return
        cuts = [total * place // (count + 1) for place in range(1, count + 1)]
        first.last = cuts[0]
        flag = AnyOf(cancel, self._stop)
        for begin, end in zip(cuts, [*cuts[1:], 0], strict=True):
            part = Part(begin + 1, end)
            self.parts.append(part)

            def work(part: Part = part) -> None:
                try:
                    part.read(request, other, limits=limits, cancel=flag, pass_fds=pass_fds)
                except Cancelled:
                    part.stop_reason = "it was cancelled"
                except AppError as error:
                    part.stop_reason = f"its reader failed ({error.message})"
                finally:
                    SLOTS.give_back()

            self._threads.append(threading.Thread(target=work, name="reading pages", daemon=True))
            self._threads[-1].start()

    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Stop what still runs, and wait for it."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
