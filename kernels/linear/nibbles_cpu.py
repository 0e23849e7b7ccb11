"""The compiled part of `kernels.linear.nibbles`."""

import numpy as np
from numba import prange

from kernels.cpu_jit import jit
from kernels.cpu_vectors import nibble_dot

_GROUP = 32
_BLOCK = 64  # output rows in a task


@jit()
def _round(x, codes, scales, sums):
    """Each group of 32 entries of x [tokens, in] as 16-bit codes and a scale, and the sum of its entries."""
    for token in range(x.shape[0]):
        for group in range(scales.shape[1]):
            first = group * _GROUP
            largest, total = np.float32(0), np.float32(0)
            for i in range(first, first + _GROUP):
                largest = max(largest, abs(x[token, i]))
                total += x[token, i]
            scales[token, group] = largest / np.float32(32767)
            sums[token, group] = total
            factor = np.float32(32767) / largest if largest > 0 else np.float32(0)
            for i in range(first, first + _GROUP):
                codes[token, i] = np.int16(np.rint(x[token, i] * factor))


@jit()
def _rows(codes, scales, minimums, steps, x, x_scales, sums, out, first, end):
    for row in range(first, end):
        for token in range(out.shape[0]):
            scaled, shifted = nibble_dot(codes, scales, minimums, row, x, x_scales, sums, token)
            out[token, row] = scaled * steps[row, 0] + shifted * steps[row, 1]


@jit(parallel=True)
def product(x, codes, scales, minimums, steps, out):
    tokens, rows = out.shape
    rounded = np.empty(x.shape, np.int16)
    x_scales, sums = np.empty((tokens, scales.shape[1]), np.float32), np.empty((tokens, scales.shape[1]), np.float32)
    _round(x, rounded, x_scales, sums)
    for block in prange((rows + _BLOCK - 1) // _BLOCK):
        _rows(
            codes, scales, minimums, steps, rounded, x_scales, sums, out, block * _BLOCK,
            min(rows, block * _BLOCK + _BLOCK),
        )  # fmt: skip
