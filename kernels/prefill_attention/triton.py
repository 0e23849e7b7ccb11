"""Prefill attention on a GPU: one launch for dense, streaming and retrieval heads, over all keys or a block index.

A tile of queries is some positions times some query heads of one KV head, so that the heads share the keys they read.
Tiles are cut at absolute multiples of their positions and lie inside one query block. Each attends to whole KV pages
first, without a mask (those of its block's list that lie before the block's own first page, or without an index all
that lie before the tile), and then to what is left, token by token up to each query. Softmax runs online, in base 2.

Nothing here waits for the device: lengths of lists are read by the kernel.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false
# Triton passes constants to its functions as ordinary values, which its own annotations do not allow.

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.block_index import PAGE, BlockIndex
from kernels.card import capability


@dataclass(frozen=True, slots=True)
class Config:
    """`rows`: queries of a tile, positions times heads. `keys`: keys of a step, with a block index at most a page.
    `descriptors`: load K and V through the tensor memory accelerator, where their strides allow it. `max_registers` of
    a thread, None: as many as it takes.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    descriptors: bool = False
    max_registers: int | None = None


def configuration(capability: tuple[int, int], head_dim: int, itemsize: int, sparse: bool = False) -> Config:
    """The fixed choice for a card, a head_dim and the bytes of an element (4 only serves tests), and for block indices
    or without one. For Hopper as measured: smaller tiles let several programs of a multiprocessor take turns."""
    wide = triton.next_power_of_2(head_dim)
    if itemsize == 4:
        return Config(rows=32, keys=32 if wide <= 128 else 16, num_warps=4, num_stages=1)
    if capability[0] == 9 and wide <= 128:
        return Config(rows=64 if sparse else 128, keys=64, num_warps=4, num_stages=2, descriptors=True)
    if capability[0] in (9, 10):
        return Config(rows=128, keys=64, num_warps=8, num_stages=3 if wide <= 128 else 2, descriptors=True)
    if wide <= 64:
        return Config(rows=128, keys=64, num_warps=8, num_stages=3)
    if wide <= 128:
        return Config(rows=128, keys=32, num_warps=8, num_stages=3)
    return Config(rows=64, keys=32, num_warps=8, num_stages=2)


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: BlockIndex | None,
    scale: float,
    query_block: int = 128,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """q [t, heads, d]; k and v [kv_heads, n, d] with the chunk's own t tokens last, of one dtype -> [t, heads, d].

    `index`: a row for each (KV head, query block), pages ascending, as `check_index` demands; None: every query attends
    to all before it. Query blocks are cut at absolute multiples of `query_block`. The block's own pages count as
    listed, whether they are or not. `scale`, above 0, multiplies the scores. Any strides except that the last is 1.
    """
    tokens, heads, dim = q.shape
    kv_heads, length = k.shape[0], k.shape[1]
    out = torch.empty_like(q) if out is None else out
    config = config or configuration(capability(q.device), dim, q.element_size(), index is not None)
    if config.descriptors and not (_describable(k) and _describable(v)):
        config = replace(config, descriptors=False)
    width = config.keys if index is None else min(config.keys, PAGE)
    group = heads // kv_heads
    packed = math.gcd(group, 4)
    positions = math.gcd(config.rows // packed, query_block)
    start = length - tokens
    tiles = (length - 1) // positions - start // positions + 1
    blocks = (length - 1) // query_block - start // query_block + 1
    wide = triton.next_power_of_2(dim)
    if config.descriptors:
        keys, values = _descriptor(k, width, wide), _descriptor(v, width, wide)
    else:
        keys, values = k, v
    offsets, pages = (q, q) if index is None else index
    kernel: Any = _prefill_attention_kernel
    kernel[(tiles * kv_heads * (group // packed),)](
        q, keys, values, out, offsets, pages,
        pages.shape[0], start, length, tiles, blocks, scale * math.log2(math.e),
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), out.stride(0), out.stride(1),
        HEAD_DIM=dim, BLOCK_D=wide, GROUP=group, PACKED=packed, POSITIONS=positions, ROWS=config.rows, KEYS=width,
        QUERY_BLOCK=query_block, PAGE=PAGE, SPARSE=index is not None, DESCRIPTORS=config.descriptors,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps, num_stages=config.num_stages, maxnreg=config.max_registers,
    )  # fmt: skip
    return out


def _describable(x: torch.Tensor) -> bool:
    bytes_of = x.element_size()
    return x.data_ptr() % 16 == 0 and all(stride * bytes_of % 16 == 0 for stride in x.stride()[:-1])


def _descriptor(x: torch.Tensor, keys: int, wide: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, keys, wide])


@triton.jit
def _load(
    source, head, key, length, head_stride, token_stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, KEYS: tl.constexpr, DESCRIPTORS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """KEYS tokens of one head from `key` on -> [KEYS, BLOCK_D]; WHOLE: all of them lie before `length`."""
    if DESCRIPTORS:
        return source.load([head, key, 0]).reshape(KEYS, BLOCK_D)
    else:
        token = tl.arange(0, KEYS)[:, None]
        column = tl.arange(0, BLOCK_D)[None, :]
        base = source + tl.cast(head, tl.int64) * head_stride + tl.cast(key, tl.int64) * token_stride
        pointers = base + token * token_stride + column
        if not WHOLE:
            return tl.load(pointers, mask=(column < HEAD_DIM) & (key + token < length), other=0.0)
        elif HEAD_DIM < BLOCK_D:
            return tl.load(pointers, mask=column < HEAD_DIM, other=0.0)
        else:
            return tl.load(pointers)


@triton.jit
def _softmax_step(scores, best, total, acc, scale):
    """Scores of one step -> (weights, new best, new total, acc scaled to it); `best` and `total` as in flash attention,
    in units of `scale`."""
    new = tl.maximum(best, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new[:, None])
    shrink = tl.exp2(best - new)
    return weights, new, total * shrink + tl.sum(weights, 1), acc * shrink[:, None]


@triton.jit(
    do_not_specialize=["capacity", "start", "length", "tiles", "blocks"],
    do_not_specialize_on_alignment=["offsets", "pages"],
)
def _prefill_attention_kernel(
    q, k, v, out, offsets, pages,
    capacity, start, length, tiles, blocks, scale,
    q_token, q_head, k_head, k_token, v_head, v_token, out_token, out_head,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, PACKED: tl.constexpr,
    POSITIONS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    QUERY_BLOCK: tl.constexpr, PAGE: tl.constexpr, SPARSE: tl.constexpr, DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    SHARES: tl.constexpr = GROUP // PACKED  # programs that divide the query heads of a KV head among themselves
    program = tl.program_id(0)
    share = program % SHARES
    tile = tiles - 1 - program // SHARES % tiles  # those with most keys first, and neighbours share what they read
    head = program // SHARES // tiles
    first_position = (start // POSITIONS + tile) * POSITIONS

    row = tl.arange(0, ROWS)
    position = first_position + row // PACKED
    query_head = head * GROUP + share * PACKED + row % PACKED
    real = (position >= start) & (position < length) & (row < POSITIONS * PACKED)
    column = tl.arange(0, BLOCK_D)
    inside = real[:, None] & (column < HEAD_DIM)[None, :]
    place = (position - start).to(tl.int64)
    queries = tl.load(q + (place * q_token + query_head * q_head)[:, None] + column[None, :], mask=inside, other=0.0)

    if SPARSE:
        block = first_position // QUERY_BLOCK - start // QUERY_BLOCK
        own = tl.maximum(first_position // QUERY_BLOCK * QUERY_BLOCK, start) // PAGE
        entry = offsets + head * blocks + block
        listed = tl.minimum(tl.load(entry), capacity)
        count = tl.minimum(tl.load(entry + 1), capacity) - listed
        listed = pages + listed
        # The block's own pages, if listed, are the last ones, and these are at most as many.
        OWN: tl.constexpr = (QUERY_BLOCK + PAGE - 2) // PAGE + 1
        last = count - 1 - tl.arange(0, triton.next_power_of_2(OWN))
        tail = tl.load(listed + last, mask=last >= 0, other=-1)
        count -= tl.sum((tail >= own).to(tl.int32), 0)
        whole = count * (PAGE // KEYS)
        rest = own * PAGE
    else:
        listed = pages
        whole = (first_position + 1) // KEYS
        rest = whole * KEYS
    end = tl.minimum(first_position + POSITIONS, length)

    best = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)

    for step in range(0, whole):
        if SPARSE:
            key = tl.load(listed + step // (PAGE // KEYS)) * PAGE + step % (PAGE // KEYS) * KEYS
        else:
            key = step * KEYS
        keys = _load(k, head, key, length, k_head, k_token, HEAD_DIM, BLOCK_D, KEYS, DESCRIPTORS, True)
        scores = tl.dot(queries, keys.T, input_precision=PRECISION)
        weights, best, total, acc = _softmax_step(scores, best, total, acc, scale)
        values = _load(v, head, key, length, v_head, v_token, HEAD_DIM, BLOCK_D, KEYS, DESCRIPTORS, True)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=PRECISION)

    for key in range(rest, end, KEYS):
        keys = _load(k, head, key, length, k_head, k_token, HEAD_DIM, BLOCK_D, KEYS, DESCRIPTORS, False)
        scores = tl.dot(queries, keys.T, input_precision=PRECISION)
        seen = (key + tl.arange(0, KEYS))[None, :] <= position[:, None]
        scores = tl.where(seen, scores, -float("inf"))
        weights, best, total, acc = _softmax_step(scores, best, total, acc, scale)
        values = _load(v, head, key, length, v_head, v_token, HEAD_DIM, BLOCK_D, KEYS, DESCRIPTORS, False)
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=PRECISION)

    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (place * out_token + query_head * out_head)[:, None] + column[None, :], result, mask=inside)
