"""Which snapshot rows go when room is needed: the least recently used, but never a row that another one builds on."""

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """A stored row, as far as eviction is concerned."""

    key: str
    parent: str
    last_used: float
    bytes: int


def choose_victims(residents: Sequence[Resident], need_bytes: int, protected: Collection[str]) -> list[Resident]:
    """Rows that free at least `need_bytes` (or all evictable ones), children before their parents."""
    by_key = {resident.key: resident for resident in residents}
    children = Counter(resident.parent for resident in residents)
    leaves = [(row.last_used, row.key) for row in residents if not children[row.key] and row.key not in protected]
    heapq.heapify(leaves)
    victims: list[Resident] = []
    freed = 0
    while leaves and freed < need_bytes:
        victim = by_key[heapq.heappop(leaves)[1]]
        victims.append(victim)
        freed += victim.bytes
        children[victim.parent] -= 1
        parent = by_key.get(victim.parent)
        if parent is not None and not children[parent.key] and parent.key not in protected:
            heapq.heappush(leaves, (parent.last_used, parent.key))
    return victims
