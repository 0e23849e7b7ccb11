"""Which pages give up bits of their values when memory is short and nothing is left to unload.

Those that drew least attention while answering; of equals the oldest, whose full format is the likeliest to be stored.
The sink page and the newest pages are exact and never among them.
"""

from collections import Counter
from collections.abc import Iterable

from engine.cache import KvCache, Sequence


def demote(cache: KvCache, live: Sequence, own: Iterable[Sequence], others: Iterable[Sequence], count: int) -> int:
    """Demote up to `count` packed pages of `live`, so that as many packed pages become free -> how many.

    `own`: all states of its conversation, `others`: those of other conversations. Pages that others hold come last.
    """
    own, others = list(own), list(others)
    chosen = victims(cache, live, own)[: min(count, cache.cold.free)]
    if chosen:
        cache.demote(chosen, [*own, *others])
    return len(chosen)


def victims(cache: KvCache, live: Sequence, own: Iterable[Sequence]) -> list[int]:
    """The packed pages of `live` that can be demoted, first those that should be first."""
    held = Counter(place for state in own for place in state.table)
    drawn = dict(enumerate(live.drawn.tolist()))

    def order(index: int) -> tuple[bool, float, int]:
        place = live.table[index]
        return cache.packed.references(~place) > held[place], drawn.get(index, 0.0), index

    pages = [i for i, place in enumerate(live.table) if place < 0 and not cache.is_demoted(place)]
    return [~live.table[i] for i in sorted(pages, key=order)]
