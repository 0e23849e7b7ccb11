"""Which KV pages each query block reads: the one structure between attention patterns and attention kernels."""

import torch

from kernels import cpu_jit
from kernels.block_index import reference
from kernels.block_index.reference import PAGE, BlockIndex, PageLists, check_index, to_mask

__all__ = ["PAGE", "BlockIndex", "PageLists", "check_index", "from_mask", "to_mask"]


def from_mask(mask: torch.Tensor, capacity: int | None = None) -> BlockIndex:
    """mask bool [kv_heads, query_blocks, pages] -> the index of its true entries.

    On the CPU `pages` is as long as the list. On other devices, and with `capacity`, its length is fixed beforehand
    (without `capacity`: that of the mask), so that nothing waits for the device. What exceeds a given capacity is
    left out of `pages` but counted in `offsets`, and `check_index` finds it.
    """
    if capacity is None and mask.device.type == "cpu" and cpu_jit.available():
        from kernels.block_index import cpu

        return cpu.from_mask(mask)
    return reference.from_mask(mask, capacity)
