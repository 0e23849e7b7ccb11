"""How long reading still takes, from how it has gone so far."""

from __future__ import annotations

import time

SHOWN_AFTER_S = 0.3


class ReadingClock:
    """Tokens per second of prefill. The newest steps count most, since later tokens attend to more and take longer."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._done = 0
        self._seconds_per_token: float | None = None

    def begin(self, reused: int) -> None:
        """From here on tokens are computed; the first `reused` ones took no time."""
        self._started = self._last = time.monotonic()
        self._done = reused

    def remaining(self, done: int, total: int) -> float | None:
        """Seconds until `total` tokens are read; None while it is too early to tell."""
        now = time.monotonic()
        if done > self._done:
            newest = (now - self._last) / (done - self._done)
            known = self._seconds_per_token
            self._seconds_per_token = newest if known is None else 0.5 * known + 0.5 * newest
            self._last, self._done = now, done
        if self._seconds_per_token is None or now - self._started < SHOWN_AFTER_S:
            return None
        return self._seconds_per_token * (total - done)
