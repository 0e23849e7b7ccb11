"""The sequences that live in memory: for each conversation its newest one and earlier states worth going back to.

When pages run short, whole conversations go first, the longest unused one before others, then early states. Text is
kept elsewhere and snapshots on disk; what goes here costs time, never content. Only then are values demoted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine.cache import KvCache, Sequence

MARKS = 6


@dataclass(slots=True)
class Conversation:
    """`live`: the newest sequence. `marks`: exact earlier states, oldest first; `pinned`: lengths to keep longest."""

    live: Sequence = field(default_factory=Sequence)
    marks: list[Sequence] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)

    def states(self) -> Iterator[Sequence]:
        """The newest state first."""
        yield self.live
        yield from reversed(self.marks)


class Conversations:
    """All conversations of one cache, least recently used first."""

    def __init__(self, cache: KvCache, before_unload: Callable[[str], None] = lambda id: None) -> None:
        """`before_unload(id)` is called when memory is short, just before a conversation goes."""
        self._cache, self._before_unload = cache, before_unload
        self._by_id: dict[str, Conversation] = {}

    def use(self, id: str) -> Conversation:
        """The conversation, new if need be, now the most recently used one."""
        conversation = self._by_id.pop(id, None) or Conversation()
        self._by_id[id] = conversation
        return conversation

    def get(self, id: str) -> Conversation | None:
        return self._by_id.get(id)

    def states(self, first: Conversation) -> Iterator[Sequence]:
        """Every state in memory: those of `first`, then the others' from the most recently used on."""
        yield from first.states()
        for conversation in reversed(self._by_id.values()):
            if conversation is not first:
                yield from conversation.states()

    def mark(self, conversation: Conversation, length: int, pin: bool) -> None:
        """Keep the first `length` tokens of the live sequence as a state to go back to."""
        old = next((mark for mark in conversation.marks if mark.length == length), None)
        if old is not None:
            conversation.marks.remove(old)
            self._cache.free(old)
        conversation.marks.append(self._cache.fork(conversation.live, length))
        if pin:
            conversation.pinned.add(length)
        while len(conversation.marks) > MARKS:
            self._drop_mark(conversation)

    def unload(self, id: str) -> None:
        """Free a conversation's pages; nothing happens if it is not in memory."""
        conversation = self._by_id.pop(id, None)
        if conversation:
            self._free(conversation)

    def free_idle(self, busy: Conversation, spare: Sequence | None) -> bool:
        """Free the least valuable thing that is not the live sequence of `busy` or `spare` -> whether there was one."""
        if self._unload_idle(busy, spare):
            return True
        if any(mark is not spare for mark in busy.marks):
            self._drop_mark(busy, spare)
            return True
        return False

    def free_packed(self, busy: Conversation) -> bool:
        """As `free_idle`, for packed pages: of the states of `busy` only one that holds some which `live` does not."""
        if self._unload_idle(busy, None):
            return True
        shared = set(busy.live.table)
        for mark in busy.marks:
            if any(place < 0 and place not in shared for place in mark.table):
                busy.marks = [other for other in busy.marks if other is not mark]
                self._cache.free(mark)
                return True
        return False

    def _unload_idle(self, busy: Conversation, spare: Sequence | None) -> bool:
        for id, conversation in self._by_id.items():
            if conversation is not busy and all(state is not spare for state in conversation.states()):
                self._before_unload(id)
                self.unload(id)
                return True
        return False

    def _drop_mark(self, conversation: Conversation, spare: Sequence | None = None) -> None:
        """Free the oldest mark that is not pinned, else the oldest."""
        marks = [mark for mark in conversation.marks if mark is not spare]
        victim = next((mark for mark in marks if mark.length not in conversation.pinned), marks[0])
        conversation.marks = [mark for mark in conversation.marks if mark is not victim]
        self._cache.free(victim)

    def _free(self, conversation: Conversation) -> None:
        for state in conversation.states():
            self._cache.free(state)
