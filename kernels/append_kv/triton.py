"""What follows the projection to queries, keys and values, in one launch: norm of the heads, RoPE, writing the cache.

A program takes some heads of one kind (queries, keys or values) of one token; everything is computed in float32.
"""

import torch
import triton
import triton.language as tl

from kernels.triton_overlap import let_next_start, options, overlaps, wait_for_earlier

_FEW_TOKENS = 64  # up to here a program takes one head, so that there are enough of them; beyond, eight


def rope_append(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    rotate: bool,
    heads: int,
) -> torch.Tensor:
    """qkv [t, (heads + 2 * kv_heads) * d] of a float type: rows of queries, keys, values -> q [t, heads, d] turned.

    q_norm, k_norm float32 [d], both or none: RMS norm of each head before RoPE. cos, sin float32 [t, d] as for
    `kernels.rope.rope`. keys, values [kv_heads, capacity, d] of a float type, any strides except that the last is 1:
    written in place at slots int64 [t], which lies on the device; a token whose slot is negative is not written.
    `rotate`: values are stored as `kernels.kv_codec.rotation.hadamard` gives them.
    """
    tokens, (kv_heads, _, dim) = qkv.shape[0], keys.shape
    q = torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
    together = 1 if tokens <= _FEW_TOKENS else 8
    q_blocks, kv_blocks = triton.cdiv(heads, together), triton.cdiv(kv_heads, together)
    overlap = tokens <= _FEW_TOKENS and overlaps(qkv.device)
    _rope_append_kernel[(tokens * (q_blocks + 2 * kv_blocks),)](
        qkv, cos if q_norm is None else q_norm, cos if k_norm is None else k_norm, cos, sin, keys, values, slots, q,
        eps, heads, kv_heads, q_blocks, kv_blocks, qkv.stride(0), cos.stride(0), sin.stride(0),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        DIM=dim, WIDE=triton.next_power_of_2(dim), STAGES=(dim & -dim).bit_length() - 1 if rotate else 0,
        TOGETHER=together, NORMED=q_norm is not None, OVERLAP=overlap,
        num_warps=1 if together == 1 else 4, **options(overlap),  # type: ignore[reportCallIssue]
    )  # fmt: skip
    return q


@triton.jit
def _rope_append_kernel(
    qkv, q_norm, k_norm, cos, sin, keys, values, slots, q,
    eps, heads, kv_heads, q_blocks, kv_blocks, qkv_stride, cos_stride, sin_stride,
    key_head_stride, key_slot_stride, value_head_stride, value_slot_stride,
    DIM: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr, TOGETHER: tl.constexpr, NORMED: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    let_next_start(OVERLAP)
    wait_for_earlier(OVERLAP)
    blocks = q_blocks + 2 * kv_blocks
    token = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    of_block = tl.arange(0, TOGETHER)[:, None]
    slot = tl.load(slots + token)
    written_heads = tl.where(slot < 0, 0, kv_heads)
    row = qkv + token * qkv_stride
    if block < q_blocks + kv_blocks:
        HALF: tl.constexpr = DIM // 2
        at = tl.arange(0, WIDE // 2)[None, :]
        is_key = block >= q_blocks
        head = tl.where(is_key, block - q_blocks, block) * TOGETHER + of_block
        inside = (head < tl.where(is_key, kv_heads, heads)) & (at < HALF)
        pairs = row + (head + tl.where(is_key, heads, 0)) * DIM + at
        low = tl.load(pairs, inside, 0.0).to(tl.float32)
        high = tl.load(pairs + HALF, inside, 0.0).to(tl.float32)
        if NORMED:
            factor = 1 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)[:, None]
            low *= factor * _norm_weight(q_norm, k_norm, is_key, at, HALF)
            high *= factor * _norm_weight(q_norm + HALF, k_norm + HALF, is_key, at, HALF)
        cos_at, sin_at = cos + token * cos_stride + at, sin + token * sin_stride + at
        low_cos, low_sin = tl.load(cos_at, at < HALF, 0.0), tl.load(sin_at, at < HALF, 0.0)
        high_cos, high_sin = tl.load(cos_at + HALF, at < HALF, 0.0), tl.load(sin_at + HALF, at < HALF, 0.0)
        turned_low = low * low_cos + high * low_sin
        turned_high = high * high_cos + low * high_sin
        if is_key:
            into_keys = keys + head.to(tl.int64) * key_head_stride + slot * key_slot_stride + at
            written = inside & (head < written_heads)
            tl.store(into_keys, turned_low.to(keys.dtype.element_ty), written)
            tl.store(into_keys + HALF, turned_high.to(keys.dtype.element_ty), written)
        else:
            into_q = q + (token * heads + head) * DIM + at
            tl.store(into_q, turned_low.to(q.dtype.element_ty), inside)
            tl.store(into_q + HALF, turned_high.to(q.dtype.element_ty), inside)
    else:
        wide = tl.arange(0, WIDE)[None, :]
        value_head = (block - q_blocks - kv_blocks) * TOGETHER + of_block
        source = row + (heads + kv_heads + value_head) * DIM + wide
        value = tl.load(source, (value_head < kv_heads) & (wide < DIM), 0.0).to(tl.float32)
        if STAGES > 0:
            value = tl.reshape(_hadamard(value, TOGETHER * WIDE, STAGES), (TOGETHER, WIDE))
        into_values = values + value_head.to(tl.int64) * value_head_stride + slot * value_slot_stride + wide
        tl.store(into_values, value.to(values.dtype.element_ty), (value_head < written_heads) & (wide < DIM))


@triton.jit
def _norm_weight(q_norm, k_norm, is_key, at, HALF: tl.constexpr):
    of_q, of_k = tl.load(q_norm + at, at < HALF, 0.0), tl.load(k_norm + at, at < HALF, 0.0)
    return tl.where(is_key, of_k, of_q)


@triton.jit
def _hadamard(x, COUNT: tl.constexpr, STAGES: tl.constexpr):
    """x, COUNT elements, in blocks of 2^STAGES adjacent ones, times the orthonormal Hadamard matrix -> [blocks, block].

    A stage adds and subtracts the elements whose places differ in the lowest bit, and makes that bit the highest: after
    as many stages as there are bits, each element is back in its place.
    """
    SIZE: tl.constexpr = 2**STAGES
    x = tl.reshape(x, (COUNT // SIZE, SIZE))
    for _ in tl.static_range(STAGES):  # type: ignore[reportGeneralTypeIssues]
        first, second = tl.split(tl.reshape(x, (COUNT // SIZE, SIZE // 2, 2)))
        pairs = tl.join(first + second, first - second)
        x = tl.reshape(tl.permute(pairs, (0, 2, 1)), (COUNT // SIZE, SIZE))
    return x * SIZE**-0.5
