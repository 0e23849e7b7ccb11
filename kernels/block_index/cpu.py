"""The block index compiled for the CPU: one pass over the mask."""

import torch

from kernels.block_index.reference import BlockIndex
from kernels.cpu_jit import jit


def from_mask(mask: torch.Tensor) -> BlockIndex:
    """mask bool [kv_heads, query_blocks, pages] -> its index, `pages` as long as the list."""
    offsets = torch.empty(mask.shape[0] * mask.shape[1] + 1, dtype=torch.int32)
    pages = torch.empty(mask.numel(), dtype=torch.int32)
    listed = _list(mask.numpy(), offsets.numpy(), pages.numpy())
    return BlockIndex(offsets, pages[:listed])


@jit()
def _list(mask, offsets, pages):
    heads, blocks, count = mask.shape
    listed = 0
    offsets[0] = 0
    for head in range(heads):
        for block in range(blocks):
            for page in range(count):
                if mask[head, block, page]:
                    pages[listed] = page
                    listed += 1
            offsets[head * blocks + block + 1] = listed
    return listed
