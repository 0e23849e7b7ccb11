"""What this card gives at most, measured in the same run: reading memory, and multiplying matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_BYTES = 4 << 30
_SIDE = 8192
_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Limits:
    """read: bytes per second of a large reduction; multiply: bf16 operations per second of a square product."""

    read: float
    multiply: float


def measure_limits(device: torch.device) -> Limits:
    read = milliseconds(torch.randint(0, 1 << 40, (_BYTES // 8,), device=device).amax)
    a = torch.empty(_SIDE, _SIDE, dtype=torch.bfloat16, device=device).normal_()
    multiply = milliseconds(lambda: a @ a)
    return Limits(_BYTES / read * 1e3, 2 * _SIDE**3 / multiply * 1e3)


def milliseconds(run: Callable[[], object], repeats: int = _REPEATS) -> float:
    """The median of `repeats` runs on the device, after two that do not count."""
    times = []
    for number in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        if number >= 2:
            times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]
