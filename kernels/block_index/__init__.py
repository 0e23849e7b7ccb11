"""Which KV pages each query block reads: the one structure between attention patterns and attention kernels."""

from kernels.block_index.reference import PAGE, BlockIndex, check_index, from_mask, to_mask

__all__ = ["PAGE", "BlockIndex", "check_index", "from_mask", "to_mask"]
