"""Where the keys and values of one layer lie, as decode attention reads them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from kernels.cpu_jit import as_numpy
from kernels.kv_codec import PackedFormat, PackedPages

PAGE = 64


_NO_CODES = np.empty((0, 0, 0, 0), np.uint8)
_NO_SCALES = np.empty((0, 0, 0), np.int16)
_NO_PAGES = (_NO_CODES, _NO_SCALES, _NO_SCALES, _NO_CODES, _NO_SCALES, _NO_SCALES)


@dataclass(frozen=True, eq=False)
class PagedKv:
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

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """The same memory for compiled kernels: keys, values, packed and cold pages. Made once, not for each token."""
        packed, cold = (_NO_PAGES if pool is None else tuple(map(as_numpy, pool)) for pool in (self.packed, self.cold))
        return as_numpy(self.keys), as_numpy(self.values), packed, cold
