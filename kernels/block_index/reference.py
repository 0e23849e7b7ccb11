"""The block index in torch: compressed rows of KV page numbers, one row for each (KV head, query block).

Row = head * query_blocks + block. Row r lists pages[offsets[r]:offsets[r + 1]], ascending, numbered along the sequence.
"""

from typing import NamedTuple

import torch

PAGE = 64  # tokens in a KV page


class BlockIndex(NamedTuple):
    """`offsets` int32 [rows + 1], `pages` int32 [capacity]: entries from offsets[-1] on mean nothing."""

    offsets: torch.Tensor
    pages: torch.Tensor


class PageLists(NamedTuple):
    """Lists at fixed places, one for each KV head: row r lists pages[starts[r]:ends[r]], ascending.

    `starts` and `ends` int32 [kv_heads], `pages` int32 [any]; what lies between the lists means nothing.
    """

    starts: torch.Tensor
    ends: torch.Tensor
    pages: torch.Tensor


def from_mask(mask: torch.Tensor, capacity: int | None = None) -> BlockIndex:
    """As `kernels.block_index.from_mask`."""
    rows = mask.flatten(0, 1)
    offsets = torch.zeros(rows.shape[0] + 1, dtype=torch.int32, device=mask.device)
    torch.cumsum(rows.sum(dim=1), dim=0, dtype=torch.int32, out=offsets[1:])
    if capacity is None and mask.device.type == "cpu":
        return BlockIndex(offsets, rows.nonzero()[:, 1].to(torch.int32))
    capacity = mask.numel() if capacity is None else capacity
    flat = rows.flatten()
    places = flat.cumsum(0) - 1
    places = torch.where(flat & (places < capacity), places, capacity)  # one place more, for all that is not listed
    numbers = torch.arange(rows.shape[1], dtype=torch.int32, device=mask.device).repeat(rows.shape[0])
    pages = torch.zeros(capacity + 1, dtype=torch.int32, device=mask.device).scatter_(0, places, numbers)
    return BlockIndex(offsets, pages[:capacity])


def to_mask(index: BlockIndex, kv_heads: int, query_blocks: int, pages: int) -> torch.Tensor:
    """The index as bool [kv_heads, query_blocks, pages]. Waits for the device."""
    counts = index.offsets.diff().long()
    rows = torch.arange(counts.shape[0], device=counts.device).repeat_interleave(counts)
    mask = torch.zeros(kv_heads * query_blocks, pages, dtype=torch.bool, device=counts.device)
    mask[rows, index.pages[: rows.shape[0]].long()] = True
    return mask.view(kv_heads, query_blocks, pages)


def check_index(
    index: BlockIndex,
    kv_heads: int,
    query_blocks: int,
    pages: int,
    last_page: torch.Tensor | None = None,
    name: str = "block index",
) -> None:
    """ValueError that begins with `name` if a kernel could not trust `index`. Waits for the device.

    `last_page`: int [query_blocks], the page in which each query block ends; a later one must not be listed.
    """
    rows = kv_heads * query_blocks
    for field, tensor in zip(index._fields, index):
        if tensor.dtype != torch.int32 or tensor.ndim != 1:
            got = f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
            raise ValueError(f"{name}: {field} is {got}, need int32 with one dimension")
    if index.offsets.shape[0] != rows + 1:
        raise ValueError(f"{name}: {index.offsets.shape[0]} offsets, need {rows + 1} for {rows} rows")
    counts = index.offsets.diff()
    if int(index.offsets[0]) != 0 or bool((counts < 0).any()) or int(index.offsets[-1]) > index.pages.shape[0]:
        raise ValueError(f"{name}: offsets must rise from 0 to at most the length of pages, {index.pages.shape[0]}")
    if bool((counts == 0).any()):
        raise ValueError(f"{name}: no page for {_row(int((counts == 0).nonzero()[0]), query_blocks)}")
    row = torch.arange(rows, device=counts.device).repeat_interleave(counts.long())
    listed = index.pages[: row.shape[0]].long()
    limit = torch.full_like(listed, pages - 1) if last_page is None else last_page.long()[row % query_blocks]
    wrong = (listed < 0) | (listed >= pages)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        where = _row(int(row[at]), query_blocks)
        raise ValueError(f"{name}: page {int(listed[at])} is out of range for {where}, need 0 to {pages - 1}")
    if bool((listed > limit).any()):
        at = int((listed > limit).nonzero()[0])
        where = _row(int(row[at]), query_blocks)
        raise ValueError(f"{name}: page {int(listed[at])} lies after {where}, which ends in page {int(limit[at])}")
    falls = (listed[1:] <= listed[:-1]) & (row[1:] == row[:-1])
    if bool(falls.any()):
        where = _row(int(row[int(falls.nonzero()[0])]), query_blocks)
        raise ValueError(f"{name}: pages are not ascending for {where}")


def _row(row: int, query_blocks: int) -> str:
    return f"KV head {row // query_blocks}, query block {row % query_blocks}"
