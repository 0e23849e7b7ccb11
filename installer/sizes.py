"""How much a set-up fetches and keeps, by kind, and whether the disk has room for it.

The numbers were measured on Linux x86-64 with Python 3.11 (docs/decisions/0003-installer.md says how); they are printed
as "about", and `PEAK` adds what pip holds for a while: the fetched files, once in its cache and once unpacked.
"""

from __future__ import annotations

from dataclasses import dataclass

from console import size_text

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes: to fetch, kept on disk afterwards, and needed at the same time while it works."""

    fetch: int
    disk: int

    @property
    def peak(self) -> int:
        return self.disk + self.fetch


# (uses a GPU, with test tools) -> bytes
NEEDS = {
    (False, False): Need(475 * MB, 1_510 * MB),
    (False, True): Need(865 * MB, 3_020 * MB),
    (True, False): Need(3_365 * MB, 6_820 * MB),
    (True, True): Need(3_515 * MB, 7_220 * MB),
}


def need(uses_gpu: bool, with_tests: bool) -> Need:
    return NEEDS[uses_gpu, with_tests]


def remaining(full: Need, present: int) -> Need:
    """What is still needed when `present` bytes of the environment are there already."""
    share = 1 - min(present / full.disk, 1.0)
    return Need(int(full.fetch * share), int(full.disk * share))


def shortfall(what: Need, free: int) -> str:
    """Nothing when it fits, else one sentence and one hint."""
    if free >= what.peak:
        return ""
    return (
        f"The set-up needs {size_text(what.peak)} of free disk while it works and there are {size_text(free)}. "
        f"Free {size_text(what.peak - free)} or move this folder to a larger disk, then type the same command again."
    )
