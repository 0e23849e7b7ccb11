"""What `Engine.generate` yields, in this order: Reused, Prefilled and Checkpoint as the prompt is read, Token, Done."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Reused:
    """`tokens` of the prompt need no computing; `restored` of them came from a snapshot, the rest was in memory."""

    tokens: int
    restored: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`done` of `total` prompt tokens have their KV, re-used ones included; `seconds` since the call."""

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The first `tokens` tokens of the prompt are complete and can be exported as they are."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. `text` is what can be shown since the last one.

    It is empty while a character is incomplete or a stop text may be under way. The token that ends the answer is
    yielded too; its text is what had been held back.
    `looked`: float32 [KV pages of the sequence], the attention that each drew in the step that chose the token, summed
    over retrieval heads and the layers behind the first two; None unless the engine was loaded with `evidence`.
    """

    id: int
    text: str
    looked: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Counts of one call, all counted as they happened. Times in seconds and milliseconds, None if there was no token.

    prompt_tokens = reused_tokens + computed_tokens, unless cancelled. restored_tokens: the re-used ones that were read
    from a snapshot. kv_pages_read_share: KV pages that decode read, of those it could have read, over all layers and KV
    heads; selected_pages_read_share: the same without the first two layers, which read densely;
    prompt_pages_read_share: KV pages that the prompt's query blocks read, of those they could have read.
    demoted_pages: KV pages of the sequence whose values are kept in 2 bits, because memory was short.
    sparse_tokens: re-used tokens whose KV an earlier answer made while it read less than everything.
    """

    prompt_tokens: int
    reused_tokens: int
    restored_tokens: int
    computed_tokens: int
    output_tokens: int
    ttft_s: float | None
    tpot_ms: float | None
    finish_reason: FinishReason
    kv_pages_read_share: float
    selected_pages_read_share: float
    prompt_pages_read_share: float
    peak_memory_bytes: int
    demoted_pages: int = 0
    sparse_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a model finds a given continuation: the sum of -ln p over its `tokens`, and how many of them it would
    have chosen itself. The shares are those of `GenerationStats`."""

    nll_sum: float
    tokens: int
    greedy_matches: int
    kv_pages_read_share: float
    selected_pages_read_share: float
    prompt_pages_read_share: float


@dataclass(frozen=True, slots=True)
class Done:
    """Always the last event."""

    stats: GenerationStats


Event = Reused | Prefilled | Checkpoint | Token | Done
