"""16-bit floats inside kernels that numba compiles: it knows neither bfloat16 nor, on the CPU, float16.

They travel as int16.
"""

import numpy as np
from numba.extending import overload

from kernels.cpu_jit import jit


def widen(x):
    """An entry as float32: float32 as it is, int16 as the bits of a bfloat16."""
    raise NotImplementedError("only inside compiled code")


@overload(widen, inline="always")
def _(x):
    if x.bitwidth == 32:
        return lambda x: x
    return lambda x: np.uint32(np.uint32(np.uint16(x)) << np.uint32(16)).view(np.float32)


@jit(inline=True)
def bfloat16_bits(x):
    """float32 rounded to the nearest bfloat16, ties to even, as int16."""
    bits = np.float32(x).view(np.uint32)
    if x != x:
        return np.int16(0x7FC0)
    return np.int16(np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)))


def narrow(into, x):
    """float32 as an entry of the array `into`: as it is, or as the bits of a bfloat16 if that holds int16."""
    raise NotImplementedError("only inside compiled code")


@overload(narrow, inline="always")
def _(into, x):
    if into.dtype.bitwidth == 32:
        return lambda into, x: x
    return lambda into, x: bfloat16_bits(x)


@jit(inline=True)
def exp_negative(x):
    """exp of a float32 that is not above 0, to about 2e-7; below -87 it is 1e-38. Unlike numpy's it is vectorized.

    x = n ln 2 + r with |r| <= ln 2 / 2: Taylor's polynomial for exp(r), and n goes into the exponent. As in Cephes,
    ln 2 is taken off in two parts.
    """
    x = max(x, np.float32(-87.0))
    n = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
    r = (x - np.float32(n) * np.float32(0.693359375)) + np.float32(n) * np.float32(2.12194440e-4)
    p = np.float32(1 / 720) * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1)
    p = p * r + np.float32(1)
    return p * np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)


@jit(inline=True)
def half(x):
    """The bits of a finite float16 as float32: the sign is where extending the int16 puts it, and exponents differ by
    112 in their bias, and so in a factor."""
    bits = np.int32(np.int32(np.int32(x) << np.int32(13)) & np.int32(-0x70002000))
    return bits.view(np.float32) * np.float32(2.0**112)
