"""The longest run of words that two texts share, in time linear in both, however often their words repeat.

By a suffix automaton of the second text (Blumer and others, 1985), which the first one is run through.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shared:
    """size words from place a of the first text are those from place b of the second."""

    a: int
    b: int
    size: int


def longest_shared(first: Sequence[Hashable], second: Sequence[Hashable]) -> Shared:
    """Of several longest runs the one that begins earliest in the first text, then in the second: what
    `difflib.SequenceMatcher.find_longest_match` gives without junk."""
    follow: list[dict[Hashable, int]] = [{}]  # of each state: the state behind a word
    length, suffix = [0], [-1]  # its longest run; the state of that run's longest suffix that is of another one
    ends = [0]  # one past the first place where its runs end
    last = 0
    for place, word in enumerate(second):
        state = len(follow)
        follow.append({})
        length.append(length[last] + 1)
        suffix.append(0)
        ends.append(place + 1)
        at = last
        while at >= 0 and word not in follow[at]:
            follow[at][word] = state
            at = suffix[at]
        if at >= 0:
            behind = follow[at][word]
            if length[behind] == length[at] + 1:
                suffix[state] = behind
            else:
                copy = len(follow)
                follow.append(dict(follow[behind]))
                length.append(length[at] + 1)
                suffix.append(suffix[behind])
                ends.append(ends[behind])
                suffix[behind] = suffix[state] = copy
                while at >= 0 and follow[at].get(word) == behind:
                    follow[at][word] = copy
                    at = suffix[at]
        last = state
    best = Shared(0, 0, 0)
    at = size = 0
    for place, word in enumerate(first):
        while at and word not in follow[at]:
            at = suffix[at]
            size = length[at]
        if word in follow[at]:
            at, size = follow[at][word], size + 1
        if size > best.size:
            best = Shared(place + 1 - size, ends[at] - size, size)
    return best
