"""Attention of a chunk of new tokens to the past and to themselves: dense, or to listed KV pages only."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch

from kernels import triton_jit
from kernels.block_index import BlockIndex
from kernels.prefill_attention import reference, sparse

__all__ = ["prefill_attention", "sparse_prefill_attention"]


def prefill_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, poll: Callable[[], None] | None = None
) -> torch.Tensor:
    """q [t, heads, d]; k and v [kv_heads, n, d] with the chunk's own t tokens last, of one dtype -> [t, heads, d].

    `poll` is called between parts and may raise to give up; on a card there is one part.
    """
    if triton_jit.available(q.device):
        from kernels.prefill_attention import triton

        return triton.prefill_attention(q, k, v, None, scale)
    return reference.prefill_attention(q, k, v, scale, poll)


def sparse_prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: BlockIndex,
    blocks: SequenceOf[tuple[int, int]],
    scale: float,
    poll: Callable[[], None] | None = None,
) -> torch.Tensor:
    """q [t, heads, d]; k and v [kv_heads, n, d] with the chunk's own t tokens last, of one dtype -> [t, heads, d].

    `blocks`: (first position, end) of each query block, together the chunk, cut at multiples of one size. `index`: a
    row for each (KV head, block); the block's own pages count as listed, whether they are or not. `poll` is called
    between parts and may raise to give up; on a card there is one part.
    """
    if triton_jit.available(q.device):
        from kernels.prefill_attention import triton

        return triton.prefill_attention(q, k, v, index, scale)
    return sparse.sparse_prefill_attention(q, k, v, index, blocks, scale, poll)
