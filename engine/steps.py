"""How an answer goes on: each token sampled from logits, or, greedy on a card, computed one step ahead of the host."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from engine.attention import AttentionPlan
from engine.cache import PAGE, Sequence
from engine.sampling import Sampler

if TYPE_CHECKING:
    from engine.cuda.graph_decode import GraphDecoder, Step

Decode = Callable[[int], torch.Tensor]
Grow = Callable[[int], None]


class Steps(Protocol):
    """`feed` the last token of the prompt, then in turn `next` and, to go on, `feed` with what it gave."""

    def feed(self, token: int) -> None: ...

    def next(self) -> int: ...


class SampledSteps:
    """`decode` a token, sample the next one."""

    def __init__(self, decode: Decode, sampler: Sampler) -> None:
        self._decode, self._sampler = decode, sampler
        self._logits = torch.empty(0)

    def feed(self, token: int) -> None:
        self._logits = self._decode(token)

    def next(self) -> int:
        return self._sampler.next(self._logits)


class AheadSteps:
    """Greedy, on CUDA graphs: while the host handles a token, the card already computes the one behind it.

    `grow(length)` takes pages. `most`: tokens that the answer may have; no step is begun past them. A step that was
    begun and is not wanted leaves nothing behind but a slot that the next one overwrites.
    """

    def __init__(
        self,
        graphs: "GraphDecoder",
        sequence: Sequence,
        plan: AttentionPlan,
        grow: Grow,
        poll: Callable[[], None],
        most: int,
    ) -> None:
        self._graphs, self._sequence, self._plan = graphs, sequence, plan
        self._grow, self._poll, self._left = grow, poll, most
        self._step: Step | None = None  # launched, not committed
        self._chosen: int | None = None

    def feed(self, token: int) -> None:
        self._poll()
        if self._step is None:
            self._launch(token, self._sequence.length)

    def next(self) -> int:
        step, sequence = self._step, self._sequence
        if step is None:
            raise RuntimeError("next: got no token before it, need feed first")
        self._left -= 1
        completes = (sequence.length + 1) % PAGE == 0
        if completes:
            self._commit(step)
        self._step = None
        if self._left > 0:
            self._launch(None, sequence.length + (not completes))
        if not completes:
            self._commit(step)
        self._chosen = step.choice()
        if self._plan.evidence is not None:
            self._plan.evidence.put(step.looked())
        return self._chosen

    def _commit(self, step: "Step") -> None:
        self._graphs.commit(self._sequence, step, self._plan, self._chosen if step.token is None else step.token)

    def _launch(self, token: int | None, position: int) -> None:
        self._grow(position + 1)
        self._step = self._graphs.launch(self._sequence, token, self._plan, position)
