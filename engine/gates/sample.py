"""A sample of calibration: a context that is read densely once, and a tail in which gates are judged."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.cache import PAGE, KvCache, Sequence
from engine.errors import EngineError
from engine.model import Decoder
from engine.prefill import prefill_chunk

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1)."""
CHUNK = 512


class Cancelled(EngineError):
    """The calibration was stopped before it was done."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids. `answers`: positions in `tail` whose hidden states foresee the answers; those are compared."""

    context: tuple[int, ...]
    tail: tuple[int, ...]
    answers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.context or len(self.tail) < 9:
            raise ValueError(f"tail: got {len(self.context)} + {len(self.tail)} tokens, need at least 1 + 9")
        if not self.answers or min(self.answers) < 0 or max(self.answers) >= len(self.tail):
            raise ValueError(f"answers: got {self.answers}, need positions in the tail's {len(self.tail)} tokens")


@dataclass(frozen=True, slots=True)
class ReadContext:
    """A sample whose context has been read. `keys`, `values`: bfloat16 [layers, kv_heads, context, d]."""

    sample: Sample
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def start(self) -> int:
        """Where the tail begins."""
        return len(self.sample.context)


def bytes_of(decoder: Decoder, sample: Sample) -> int:
    """What `read_context` keeps."""
    config = decoder.config
    return len(sample.context) * config.layers * config.kv_heads * config.head_dim * 2 * torch.bfloat16.itemsize


def read_context(decoder: Decoder, sample: Sample, poll: Callable[[], None]) -> ReadContext:
    """The context's keys and values, as the engine computes and keeps them. `poll` may raise to give up."""
    tokens = len(sample.context)
    cache, sequence = KvCache(decoder.config, "bf16", -(-tokens // PAGE), device=str(decoder.embed.device)), Sequence()
    cache.prepare(sequence, tokens)
    for first in range(0, tokens, CHUNK):
        prefill_chunk(decoder, cache, sequence, sample.context[first : first + CHUNK], poll)
    # The pages of a new cache are neighbours, so the first slots are the first tokens.
    return ReadContext(sample, cache.memory.keys[:, :, :tokens], cache.memory.values[:, :, :tokens])


def poll_of(cancel: threading.Event | None) -> Callable[[], None]:
    """Raises `Cancelled` once `cancel` is set."""

    def poll() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled("The calibration was stopped; nothing was stored.", "Run it again to start anew.")

    return poll
