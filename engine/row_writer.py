"""Stored rows into the KV pages that were taken for them: on a card in one launch, elsewhere tensor by tensor."""

from collections.abc import Sequence as SequenceOf

import torch

from engine.kv_memory import PAGE, KvMemory
from kernels import triton_jit

Runs = SequenceOf[tuple[bool, int, int]]


def write_rows(memory: KvMemory, slots: Runs, rows: torch.Tensor, sizes: SequenceOf[int]) -> None:
    """`rows`, uint8 [payloads, bytes] of one form, store by store, into `slots` (as `pages.runs` says them).

    `sizes`: bytes of one payload in each store.
    """
    if triton_jit.available(memory.device) and place_in_one_launch(memory, slots, rows):
        return
    offset = 0
    for (stored, unit, packed, _), size in zip(memory.stores, sizes):
        part = rows[:, offset : offset + size]
        offset += size
        if not size:
            continue
        if (part.storage_offset() | part.stride(0)) % stored.element_size():
            part = part.clone(memory_format=torch.contiguous_format)  # bytes at odd places have no other type
        part = part.view(stored.dtype).unflatten(1, (stored.shape[0], -1, *stored.shape[2:])).transpose(0, 1)
        mine = [(slot // unit, n // unit) for is_packed, slot, n in slots if is_packed == packed]
        if len(mine) == 1:  # neighbours, as in most cases: no copy in between
            start, units = mine[0]
            stored[:, start : start + units].unflatten(1, part.shape[1:3]).copy_(part)
            continue
        part, done = part.flatten(1, 2), 0
        for start, units in mine:
            stored[:, start : start + units] = part[:, done : done + units]
            done += units


def place_in_one_launch(memory: KvMemory, slots: Runs, rows: torch.Tensor) -> bool:
    """Whether a kernel could write all of `rows`: whole pages of one pool, at whole words."""
    kinds = {packed for packed, _, _ in slots}
    if len(kinds) != 1 or any(slot % PAGE or tokens % PAGE for _, slot, tokens in slots):
        return False
    table = memory.page_table(kinds.pop())
    if table is None or not table.fits(rows):
        return False
    done, pages = 0, rows.shape[1] // table.page_bytes
    for _, slot, tokens in slots:
        table.place(rows, pages, done, slot // PAGE, tokens // PAGE)
        done += tokens // PAGE
    return True
