"""Prefill: a prompt's KV, chunk by chunk. No logits: the last prompt token is left to decode.

Chunks end at absolute multiples of the chunk size, so a prefix is cut the same way whatever was re-used before it.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf

import torch

from engine.attention import AttentionPlan
from engine.cache import PREFILL, KvCache, Sequence
from engine.model import Decoder
from engine.split_attention import attend_prefill


def chunk_ends(start: int, end: int, chunk: int, stops: Iterable[int] = ()) -> list[int]:
    """Where the chunks from `start` to `end` end: multiples of `chunk`, positions in `stops`, and `end`."""
    grid = range(start - start % chunk + chunk, end, chunk)
    return sorted({*grid, *(stop for stop in stops if start < stop < end), *([end] if end > start else [])})


@torch.inference_mode()
def prefill_chunk(
    decoder: Decoder,
    cache: KvCache,
    sequence: Sequence,
    ids: SequenceOf[int],
    poll: Callable[[], None],
    plan: AttentionPlan | None = None,
    kv_only: bool = True,
) -> torch.Tensor:
    """Append `ids` to a prepared sequence -> hidden states float32 [t, hidden], of use only without `kv_only`.

    `plan`: how they attend; None: to everything.

    `poll` may raise to give up; the sequence is then as before.
    """
    dtype = torch.float32 if cache.device.type == "cpu" else decoder.embed.dtype
    attention = attend_prefill(cache, sequence, len(ids), dtype, poll, plan or AttentionPlan())
    tokens = torch.tensor(ids, device=cache.device)
    hidden = decoder.hidden(tokens, sequence.length, decoder.layers, attention, poll, kv_only)
    cache.commit(sequence, ids, PREFILL)
    return hidden
