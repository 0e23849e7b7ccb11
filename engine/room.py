"""KV pages for one turn: free ones, then those of idle conversations, then what demoting values sets free.

Exact pages come from unloading alone. Packed pages are set aside for the whole turn where memory holds them; where it
does not, pages are demoted as the sequence grows, just before they are needed.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from engine.cache import EXACT_RECENT, PAGE, Sequence
from engine.conversations import Conversation
from engine.demotion import demote
from engine.errors import DoesNotFitError
from engine.two_pools import TwoPoolCache

if TYPE_CHECKING:
    from engine.engine import Engine


class Room:
    """`tokens`: of prompt and answer together; `marks`: how many states the turn will keep at most."""

    def __init__(self, engine: "Engine", conversation: Conversation, tokens: int, marks: int) -> None:
        self._cache, self._conversations = engine.cache, engine.conversations
        self._conversation, self._tokens, self._marks = conversation, tokens, marks
        self._largest = engine.largest_prompt

    def begin(self) -> None:
        """Unload idle conversations if there are too few pages for the turn, and take what it needs first."""
        cache, live, pages = self._cache, self._conversation.live, -(-self._tokens // PAGE)
        if cache.packs:
            missing = pages - live.packed
            while cache.packed.free < missing and self._conversations.free_packed(self._conversation):
                pass
            if cache.packed.free + cache.cold.free < missing:
                raise self._does_not_fit()
        else:
            self.exact(pages - len(live.table) + self._marks)
        self.grow(live.length + 1)

    def grow(self, length: int) -> None:
        """Take the pages for `length` tokens."""
        cache, live = self._cache, self._conversation.live
        if cache.packs:
            self.exact(-(-length // PAGE) - len(live.table) + self._marks)
            self._packed(cache.pages_to_pack(live, length))
        if isinstance(cache, TwoPoolCache):
            self.window(cache.window_pages_for(live, length) + self._marks)
        cache.prepare(live, length, self._tokens)

    def exact(self, pages: int, spare: Sequence | None = None) -> None:
        """Unload until so many exact pages are free; never the live sequence, nor `spare`."""
        while self._cache.exact.free < pages:
            if not self._conversations.free_idle(self._conversation, spare):
                raise self._does_not_fit()

    def window(self, pages: int, spare: Sequence | None = None) -> None:
        """The same for pages of streaming heads, where they have a pool of their own."""
        while isinstance(self._cache, TwoPoolCache) and self._cache.window.exact.free < pages:
            if not self._conversations.free_idle(self._conversation, spare):
                raise self._does_not_fit()

    def copy(self, spare: Sequence | None = None) -> None:
        """Room for a copy of an unfinished page."""
        self.exact(1, spare)
        self.window(1, spare)

    def begin_restoring(self) -> None:
        """A snapshot brings exact pages: in packed formats sink, recent ones and an incomplete one; windows."""
        with suppress(DoesNotFitError):  # what cannot be restored is computed
            if self._cache.packs:
                self.exact(EXACT_RECENT // PAGE + 2)
            if isinstance(self._cache, TwoPoolCache):
                self.window(self._cache.split.window_pages(0))

    def restore(self, tokens: int) -> None:
        """Set packed pages aside for `tokens` tokens that are about to be restored."""
        if self._cache.cold.size:
            self._packed(-(-tokens // PAGE))
            self._cache.set_aside(self._conversation.live, self._tokens)

    def _packed(self, pages: int) -> None:
        """See to it that `pages` packed pages are set aside or free."""
        cache, busy = self._cache, self._conversation
        missing = pages - len(busy.live.reserve) - cache.packed.free
        if missing > 0:
            others = [state for state in self._conversations.states(busy) if all(state is not s for s in busy.states())]
            if demote(cache, busy.live, busy.states(), others, missing) < missing:
                raise self._does_not_fit()

    def _does_not_fit(self) -> DoesNotFitError:
        return DoesNotFitError(
            f"The KV cache has no room for {self._tokens} tokens.",
            "Choose fewer pages, or ask for a shorter answer.",
            needed_tokens=self._tokens,
            available_tokens=self._largest,
        )
