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
def half(x):
    """The bits of a finite float16 as float32: exponents differ by 112 in their bias, and so in a factor."""
    bits = np.uint32(np.uint16(x))
    magnitude = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    return -magnitude if bits & np.uint32(0x8000) else magnitude
