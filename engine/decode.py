"""Decode: one token in, the logits of the next one out."""

from collections.abc import Callable

import torch

from engine.attention import AttentionPlan
from engine.cache import DECODE, SPARSE_DECODE, KvCache, Sequence
from engine.model import Decoder
from engine.split_attention import attend_decode


@torch.inference_mode()
def decode_token(
    decoder: Decoder,
    cache: KvCache,
    sequence: Sequence,
    token: int,
    poll: Callable[[], None],
    plan: AttentionPlan | None = None,
) -> torch.Tensor:
    """Append `token` to a prepared sequence -> logits float32 [vocab]. `plan`: how it attends; None: to everything.

    `poll` may raise to give up; the sequence is then as before.
    """
    attention = attend_decode(cache, sequence, plan or AttentionPlan())
    hidden = decoder.next_hidden(token, sequence.length, attention, poll)
    logits = decoder.logits(hidden)[0]
    cache.commit(sequence, [token], SPARSE_DECODE if attention.sparse else DECODE)
    return logits
