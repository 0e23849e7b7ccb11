"""One token's keys and values into their slot of the paged cache, in one call."""

import numpy as np
import torch

from kernels.cpu_floats import narrow
from kernels.cpu_jit import jit


def append_one(keys: np.ndarray, values: np.ndarray, slot: int, k: torch.Tensor, v: torch.Tensor) -> None:
    """k and v float32 [1, kv_heads, d] into `slot` of keys and values [kv_heads, slots, d], float32, or int16 with the
    bits of bfloat16 (`PagedKv.arrays`)."""
    _append(keys, values, slot, k.numpy(), v.numpy())


@jit()
def _append(keys, values, slot, k, v):
    for head in range(k.shape[1]):
        _narrowed(k, head, keys, slot)
        _narrowed(v, head, values, slot)


@jit()
def _narrowed(x, head, into, slot):
    for i in range(x.shape[2]):
        into[head, slot, i] = narrow(into, x[0, head, i])
