"""Where the keys and values of one layer lie, as decode attention reads them."""

from typing import NamedTuple

import torch

from kernels.kv_codec import PackedFormat, PackedPages

PAGE = 64


class PagedKv(NamedTuple):
    """keys and values: the exact pool, [kv_heads, slots, d] of float32 or bfloat16, a page being 64 slots.

    packed: pages of a KV format, [kv_heads, pages, ...], and its `format`; None where the cache has no packed pool.
    cold: more such pages whose values were demoted, and their `cold_format`, with as many key bits; or None. In a page
    table ~n is page n of `packed`; numbers behind its last page go on in `cold`.
    Values in packed pages are rotated; where there is a packed pool, those in exact pages are as well.
    """

    keys: torch.Tensor
    values: torch.Tensor
    packed: PackedPages | None = None
    format: PackedFormat | None = None
    cold: PackedPages | None = None
    cold_format: PackedFormat | None = None
