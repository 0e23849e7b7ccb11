"""Attention of one new token to the listed pages of its sequence."""

import torch

from kernels import cpu_jit
from kernels.block_index import BlockIndex
from kernels.decode_attention import reference
from kernels.decode_attention.paged import PAGE, PagedKv

__all__ = ["PAGE", "PagedKv", "decode_attention"]


def decode_attention(
    q: torch.Tensor, kv: PagedKv, table: torch.Tensor, index: BlockIndex, length: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """q float32 [heads, d] -> out float32 [heads, d], mass float32 [listed].

    `table` int32 [pages]: place of each KV page of the sequence, in the exact pool or ~place in the packed ones
    (`PagedKv`).
    `index`: a row for each KV head, every one with at least one page. `length`: tokens of the sequence; the last page
    may be unfinished. `mass`: for each listed page the attention that its KV head's query heads pay to it; over a row
    it sums to their number.
    """
    if q.device.type == "cpu" and cpu_jit.available():
        from kernels.decode_attention import cpu

        return cpu.decode_attention(q, kv, table, index, length, scale)
    return reference.decode_attention(q, kv, table, index, length, scale)
