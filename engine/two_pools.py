"""The compact cache of a forced streaming ratio: retrieval heads keep every KV page, streaming heads a window.

Two caches in one, each with its own pages, KV heads and page tables (LServe's two pools): the outer one, a `KvCache` of
the retrieval heads in any KV format, and `window`, an exact one of the streaming heads. A sequence of the window is the
sink page and the newest pages of the outer one, closed up: what was between is gone, and what is left is numbered
without a gap, so that attention needs to know nothing of it. How much is gone depends on the length alone. What is gone
cannot come back: re-use starts where a state was kept, at the end of a sequence or at a checkpoint.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from engine.cache import PAGE, KvCache, Sequence
from engine.config import ModelConfig
from engine.errors import EngineError
from engine.kv_memory import EXACT_DTYPES, SCORERS
from engine.pages import runs
from engine.patterns import Scorer

_GRID = 128  # query blocks of a prompt are cut at its multiples: the window moves by as much


@dataclass(frozen=True, slots=True, eq=False)
class HeadSplit:
    """`streaming`: bool [layers, kv_heads], which heads stream; `local`: how many newest tokens they must keep."""

    streaming: torch.Tensor
    local: int

    def __post_init__(self) -> None:
        if self.streaming.dtype != torch.bool or self.streaming.ndim != 2:
            raise ValueError(f"streaming: got {self.streaming.dtype}, need bool [layers, kv_heads]")
        if bool(self.streaming.all()) or not bool(self.streaming.any()):
            share = float(self.streaming.float().mean())
            raise ValueError(f"streaming: got {share:.0%} of the KV heads, need some heads of either kind")

    def heads(self, streaming: bool) -> list[int]:
        """For each layer how many KV heads stream, or do not."""
        return (self.streaming == streaming).sum(1).tolist()

    def index(self, layer: int, group: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The KV heads of a layer and their query heads, int64 [n] and [n * group]: that retrieve, and that stream."""
        kinds = (self.streaming[layer] == streams for streams in (False, True))
        return [
            (kind.nonzero().flatten().to(device), kind.repeat_interleave(group).nonzero().flatten().to(device))
            for kind in kinds
        ]

    def gone(self, length: int) -> int:
        """How many tokens of the first `length` streaming heads have given up."""
        return max(0, (length - self.local - PAGE) // _GRID) * _GRID

    def window_pages(self, chunk: int) -> int:
        """The most KV pages that the window of one sequence takes while `chunk` tokens are read."""
        return -(-(self.local + PAGE + _GRID + chunk) // PAGE) + 1


class TwoPoolCache(KvCache):
    """A KvCache for the retrieval heads of `split`, and one for its streaming heads with `window_pages` KV pages."""

    def __init__(
        self,
        model: ModelConfig,
        kv_format: str,
        pages: int,
        exact_pages: int,
        device: str,
        scorers: SequenceOf[Scorer] = SCORERS,
        cold_pages: int = 0,
        *,
        split: HeadSplit,
        window_pages: int,
        wide: SequenceOf[int] = (),
    ) -> None:
        super().__init__(model, kv_format, pages, exact_pages, device, scorers, cold_pages, split.heads(False), wide)
        self.split = split
        self.heads = [split.index(layer, model.heads // model.kv_heads, self.device) for layer in range(model.layers)]
        exact = kv_format if kv_format in EXACT_DTYPES else "bf16"
        self.window = KvCache(model, exact, window_pages, 0, device, (), heads=split.heads(True))

    def window_of(self, sequence: Sequence) -> Sequence:
        """What the streaming heads hold of `sequence`. ValueError if it is not what they would hold at its length."""
        window = self._window(sequence)
        if window.length != self._kept(sequence.length):
            raise ValueError(f"window: got {window.length} tokens, need {self._kept(sequence.length)}")
        return window

    def is_complete(self, sequence: Sequence) -> bool:
        return self._window(sequence).length == self._kept(sequence.length)

    def prepare(self, sequence: Sequence, length: int, final_length: int | None = None) -> None:
        super().prepare(sequence, length, final_length)
        window = self._window(sequence)
        self.window.prepare(window, window.length + length - sequence.length)

    def window_pages_for(self, sequence: Sequence, length: int) -> int:
        """Pages that `prepare` takes from the window's pool."""
        window = self._window(sequence)
        return -(-(window.length + length - sequence.length) // PAGE) - len(window.table)

    def trim(self, sequence: Sequence) -> None:
        super().trim(sequence)
        self.window.trim(self._window(sequence))

    def free(self, sequence: Sequence) -> None:
        super().free(sequence)
        self.window.free(self._window(sequence))

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """As in `KvCache`; the fork has a window only if it is of the whole sequence."""
        fork = super().fork(sequence, length)
        if length == sequence.length:
            try:
                window = self._window(sequence)
                fork.window = self.window.fork(window, window.length)
            except EngineError:
                super().free(fork)
                raise
        return fork

    def commit(self, sequence: Sequence, ids: SequenceOf[int], made_by: int) -> None:
        super().commit(sequence, ids, made_by)
        window = self._window(sequence)
        self.window.commit(window, ids, made_by)
        old = window.length - self._kept(sequence.length)
        self.window.drop(window, 1, 1 + old // PAGE)

    def make_window_room(self, sequence: Sequence, length: int) -> int:
        """Give up the window for another one, at `length` tokens -> its tokens. EngineError if pages are missing."""
        window, kept = self._window(sequence), self._kept(length)
        self.window.free(window)
        if self.window.exact.free < -(-kept // PAGE):
            raise EngineError("The KV cache has too few free pages to restore into.", "Close a conversation.")
        return kept

    def adopt_window(self, sequence: Sequence) -> list[tuple[bool, int, int]]:
        """Take pages for the window of a sequence whose other KV was adopted -> the slots to fill."""
        window, gone = self._window(sequence), self.split.gone(sequence.length)
        self.window.free(window)
        self.window.prepare(window, sequence.length - gone)
        kept = [*range(min(PAGE, sequence.length)), *range(PAGE + gone, sequence.length)]
        window.ids.extend(sequence.ids[at] for at in kept)
        window.made_by.extend(sequence.made_by[at] for at in kept)
        return self.window_runs(sequence)

    def window_runs(self, sequence: Sequence) -> list[tuple[bool, int, int]]:
        """Where the window lies, as `pages.runs` says it."""
        window = self.window_of(sequence)
        return runs(window.table, PAGE, 0, window.length)

    def _kept(self, length: int) -> int:
        return length - self.split.gone(length)

    @staticmethod
    def _window(sequence: Sequence) -> Sequence:
        if sequence.window is None:
            sequence.window = Sequence()
        return sequence.window
