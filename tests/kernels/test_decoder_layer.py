"""One token through a layer in one compiled call, against the operations that it stands for, one by one."""

from types import SimpleNamespace

import pytest
import torch

from kernels import cpu_jit
from kernels.decoder_layer import StepState, layer_step, next_queries
from kernels.decoder_layer.reference import begin, finish
from kernels.linear import DenseWeight, pack_int4, pack_int8

pytestmark = pytest.mark.skipif(not cpu_jit.available(), reason=cpu_jit.unavailable_reason() or "compiled")
HIDDEN, FFN, HEADS, KV_HEADS, D, EPS = 96, 160, 6, 2, 16, 1e-5


def int8(random, out, inner, bias=None):
    return pack_int8(torch.randn(out, inner, generator=random), bias)


def nibbles(random, out, inner, bias=None):
    codes = torch.randint(0, 16, (out, inner), generator=random)
    scales, minimums = (torch.randn(out, inner // 32, generator=random) for _ in range(2))
    return pack_int4(codes, scales, minimums, 32, bias)


def make_layer(random, qkv, others, bias, normed):
    rows = (HEADS + 2 * KV_HEADS) * D
    return SimpleNamespace(
        attn_norm=torch.rand(HIDDEN, generator=random) + 0.5,
        qkv=qkv(random, rows, HIDDEN, torch.randn(rows, generator=random) if bias else None),
        o=others(random, HIDDEN, HEADS * D),
        ffn_norm=torch.rand(HIDDEN, generator=random) + 0.5,
        gate_up=others(random, 2 * FFN, HIDDEN),
        down=others(random, HIDDEN, FFN),
        q_norm=torch.rand(D, generator=random) + 0.5 if normed else None,
        k_norm=torch.rand(D, generator=random) + 0.5 if normed else None,
    )


@pytest.mark.parametrize(("qkv", "others"), [(nibbles, nibbles), (int8, int8), (int8, nibbles)])
@pytest.mark.parametrize(("bias", "normed"), [(False, False), (True, False), (False, True)])
def test_two_layers(qkv, others, bias, normed, random):
    layers = [make_layer(random, qkv, others, bias, normed) for _ in range(2)]
    steps = [layer_step(layer) for layer in layers]
    x, half = torch.randn(1, HIDDEN, generator=random), torch.randn(1, D // 2, generator=random)
    angles = torch.cat((half.cos(), half.cos()), 1), torch.cat((-half.sin(), half.sin()), 1)
    mix = torch.randn(HEADS, HEADS + 2 * KV_HEADS, generator=random)

    def attended_of(q, k, v):
        return mix @ torch.cat((q, k, v), 1)  # [1, heads, d]

    poison = torch.full((1, HEADS + 2 * KV_HEADS, D), torch.nan)
    q, k, v = poison.split((HEADS, KV_HEADS, KV_HEADS), 1)
    state = StepState(x.clone(), q, k, v, *angles)
    expected, finished, attended = x, None, None
    for layer, step in zip(layers, steps, strict=True):
        assert step is not None
        next_queries(state, EPS, finished, attended, step)
        wanted = begin(expected, layer, EPS, (HEADS, KV_HEADS), angles)
        expected = finish(expected, attended_of(*wanted), layer, EPS)
        for got, want in zip((q, k, v), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
        finished, attended = step, attended_of(q, k, v)
    next_queries(state, EPS, finished, attended, None)
    torch.testing.assert_close(state.x, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_other_weights_are_left_to_single_operations(random):
    layer = make_layer(random, int8, nibbles, False, False)
    layer.down = DenseWeight(torch.zeros(HIDDEN, FFN))
    assert layer_step(layer) is None
    layer.down = int8(random, HIDDEN, FFN, torch.zeros(HIDDEN))
    assert layer_step(layer) is None
