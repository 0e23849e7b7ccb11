"""Which attention a cache needs: one for all KV heads, or in the two-pool cache one for each class of heads."""

from collections.abc import Callable
from dataclasses import replace

import torch

from engine.attention import AttentionPlan, CardPrefillAttention, DecodeAttention, PrefillAttention, SharedLists
from engine.cache import PAGE, KvCache, Sequence
from engine.errors import EngineError
from engine.model import Attention
from engine.patterns.policy import WindowPolicy
from engine.two_pools import TwoPoolCache
from kernels import triton_jit


def attend_prefill(
    cache: KvCache,
    sequence: Sequence,
    tokens: int,
    dtype: torch.dtype,
    poll: Callable[[], None],
    plan: AttentionPlan,
) -> Attention:
    """How the next `tokens` tokens of a prepared sequence attend."""
    if not isinstance(cache, TwoPoolCache):
        if triton_jit.available(cache.device):
            return CardPrefillAttention(cache, sequence, tokens, dtype, poll, plan)
        return PrefillAttention(cache, sequence, tokens, dtype, poll, plan)
    gone, window, policy = cache.split.gone(sequence.length), cache.window_of(sequence), plan.reading.retrieval
    newest = WindowPolicy(policy, gone)
    return SplitAttention(
        cache,
        PrefillAttention(cache, sequence, tokens, dtype, poll, plan, policy),
        PrefillAttention(cache.window, window, tokens, dtype, poll, plan, newest, gone // PAGE),
    )


def attend_decode(cache: KvCache, sequence: Sequence, plan: AttentionPlan) -> "DecodeAttention | SplitAttention":
    """How the next token of a prepared sequence attends."""
    if not isinstance(cache, TwoPoolCache):
        return DecodeAttention(cache, sequence, plan)
    gone, window, policy = cache.split.gone(sequence.length), cache.window_of(sequence), plan.answering.retrieval
    # What streaming heads see is no evidence, and their pages have other numbers.
    newest, unshared = WindowPolicy(policy, gone), replace(plan, shared=SharedLists(), evidence=None)
    return SplitAttention(
        cache,
        DecodeAttention(cache, sequence, plan, policy),
        DecodeAttention(cache.window, window, unshared, newest, gone // PAGE),
    )


def check_plan(cache: KvCache, plan: AttentionPlan) -> None:
    """EngineError if `plan` reads what streaming heads do not keep in this cache."""
    for policy in (plan.reading, plan.answering):
        if isinstance(cache, TwoPoolCache) and not policy.compact:
            raise EngineError(
                f"The mode {policy.mode} reads everything, but with this streaming_ratio some heads cannot.",
                "Choose balanced or fast, or a streaming_ratio below 0.25.",
            )


class SplitAttention:
    """Lets each class of KV heads attend by itself and puts the query heads together again."""

    def __init__(self, cache: TwoPoolCache, retrieval: Attention, streaming: Attention) -> None:
        self._heads, self._parts = cache.heads, (retrieval, streaming)
        self.sparse = True  # streaming heads never read everything

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        for part, (heads, _) in zip(self._parts, self._heads[layer]):
            if heads.shape[0]:
                part.append(layer, k[:, heads], v[:, heads])

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        for part, (_, heads) in zip(self._parts, self._heads[layer]):
            if heads.shape[0]:
                out[:, heads] = part.attend(layer, q[:, heads]).to(out.dtype)
        return out
