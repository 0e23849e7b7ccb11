"""The compiled part of `kernels.decoder_layer`."""

import math

import numpy as np
from numba.extending import overload

from kernels.cpu_jit import jit
from kernels.linear.cpu import int8_product
from kernels.linear.nibbles_cpu import product as nibble_product
from kernels.rms_norm.cpu import add_norm, norm
from kernels.swiglu.cpu import gated


def _product(x, weight, out):
    """x [1, in] -> out [1, out]; weight: the arrays of an Int8Weight or of a NibbleWeight."""
    raise NotImplementedError("only inside compiled code")


@overload(_product)
def _(x, weight, out):
    if len(weight) == 2:
        return lambda x, weight, out: int8_product(x, weight[0], weight[1], out)
    return lambda x, weight, out: nibble_product(x, weight[0], weight[1], weight[2], weight[3], out)


@jit()
def finish(x, attended, o, ffn_norm, gate_up, down, eps):
    """x [1, hidden] += o(attended [1, heads * d]), then += down(silu(gate) * up) of its norm."""
    delta, normed = np.empty_like(x), np.empty_like(x)
    _product(attended, o, delta)
    add_norm(x, delta, ffn_norm, eps, x, normed)
    both = np.empty((1, gate_up[0].shape[0]), np.float32)
    _product(normed, gate_up, both)
    hidden = np.empty((1, both.shape[1] // 2), np.float32)
    gated(both, hidden)
    _product(hidden, down, delta)
    for i in range(x.shape[1]):
        x[0, i] += delta[0, i]


@jit()
def begin(x, attn_norm, qkv, bias, q_norm, k_norm, eps, q, k, v, cos, sin):
    """q, k and v [1, heads, d] of the norm of x [1, hidden]; q and k normed where there are norms, and rotated."""
    normed, rows = np.empty_like(x), np.empty((1, qkv[0].shape[0]), np.float32)
    norm(x, attn_norm, eps, normed)
    _product(normed, qkv, rows)
    for i in range(bias.shape[0]):
        rows[0, i] += bias[i]
    heads, d = q.shape[1], q.shape[2]
    _turned(rows, 0, q_norm, eps, cos, sin, q)
    _turned(rows, heads * d, k_norm, eps, cos, sin, k)
    first = (heads + k.shape[1]) * d
    for head in range(v.shape[1]):
        for i in range(d):
            v[0, head, i] = rows[0, first + head * d + i]


@jit()
def _turned(rows, first, weight, eps, cos, sin, out):
    heads, d = out.shape[1], out.shape[2]
    half = d // 2
    for head in range(heads):
        start = first + head * d
        if weight.shape[0]:
            squares = np.float32(0)
            for i in range(d):
                squares += rows[0, start + i] * rows[0, start + i]
            factor = np.float32(1 / math.sqrt(squares / np.float32(d) + eps))
            for i in range(d):
                rows[0, start + i] *= factor * weight[i]
        for i in range(half):
            low, high = rows[0, start + i], rows[0, start + half + i]
            out[0, head, i] = low * cos[0, i] + high * sin[0, i]
            out[0, head, half + i] = high * cos[0, half + i] + low * sin[0, half + i]
