"""A limit on the processor time of one piece of work inside the reading child."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(Exception):
    """The time is over."""


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in Python code that runs longer. Windows has no such timer: there the wall limit holds."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def strike(_signal: int, _frame: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGVTALRM, strike)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
