"""The codec where pages lie: from one pool into another, and from a page table into a workspace.

On a card each is one Triton launch for a layer; elsewhere torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels import triton_jit
from kernels.kv_codec.coarse import coarse_keys
from kernels.kv_codec.formats import PAGE, PackedFormat, PackedPages
from kernels.kv_codec.reference import pack_pages
from kernels.kv_codec.summaries import summarize

if TYPE_CHECKING:
    from kernels.decode_attention.paged import PagedKv


def pack_into(
    keys: torch.Tensor,
    values: torch.Tensor,
    source: torch.Tensor,
    packed: PackedPages,
    fmt: PackedFormat,
    target: torch.Tensor,
) -> None:
    """Pages `source` of the exact pool keys, values [kv_heads, slots, d] into pages `target` of `packed`, [kv_heads,
    pages, ...]. source, target: int64 [n]; values come rotated."""
    if triton_jit.available(keys.device):
        from kernels.kv_codec import triton

        return triton.pack_into(keys, values, source, packed, fmt, target)
    chosen_keys, chosen_values = (x.unflatten(1, (-1, PAGE))[:, source] for x in (keys, values))
    for stored, part in zip(packed, pack_pages(chosen_keys, chosen_values, fmt)):
        stored[:, target] = part


def summarize_into(keys: torch.Tensor, pages: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> None:
    """Mean and standard deviation of pages `pages` int64 [n] of keys [kv_heads, slots, d] into float16 [kv_heads, rows,
    logical pages of a page, d], at rows of the same numbers."""
    if triton_jit.available(keys.device):
        from kernels.kv_codec import triton

        return triton.summarize_into(keys, pages, mean, std)
    made = summarize(keys.unflatten(1, (-1, PAGE))[:, pages], PAGE // mean.shape[2])
    for stored, part in zip((mean, std), made):
        stored[:, pages] = part


def copy_coarsely_into(
    keys: torch.Tensor, pages: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor
) -> None:
    """Coarse copies of pages `pages` int64 [n] of keys [kv_heads, slots, d] into codes uint8 [kv_heads, rows, 64, d /
    4], scale and minimum float16 [kv_heads, rows, d], at rows of the same numbers."""
    if triton_jit.available(keys.device):
        from kernels.kv_codec.triton_coarse import copy_coarsely_into as on_card

        return on_card(keys, pages, codes, scale, minimum)
    made = coarse_keys(keys.unflatten(1, (-1, PAGE))[:, pages])
    for stored, part in zip((codes, scale, minimum), made):
        stored[:, pages] = part


def unpack_into(kv: PagedKv, table: torch.Tensor, count: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """The first `count` pages at places `table` int32, exact, packed or demoted, into keys and values [kv_heads, at
    least 64 * count, d]; tensors on a card."""
    from kernels.kv_codec import triton

    triton.unpack_into(kv, table, count, keys, values)
