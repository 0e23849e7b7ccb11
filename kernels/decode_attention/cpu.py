"""Decode attention compiled for the CPU: reads pages where they lie and unpacks them on the way.

Each KV head's listed pages are cut into equal segments of up to 8; a segment is one task. Online softmax inside a
segment (Milakov and Gimelshein, arXiv 1805.02867), then the segments are merged in order by log-sum-exp, as split-K
decoding does (Flash-Decoding). Scales and minima of packed pages are folded into the query and the weights, so that
codes enter products as they are.
"""

import math

import numpy as np
import torch
from numba import prange

from kernels.block_index import BlockIndex
from kernels.cpu_floats import exp_negative, half
from kernels.cpu_jit import jit, parallel_lock
from kernels.cpu_rows import add_rows, row_products
from kernels.decode_attention.paged import PAGE, PagedKv

SEGMENT_PAGES = 8  # at most; segments of a list are of equal length, so that threads have equal work
_FLOAT8 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
_FLOAT8[np.isnan(_FLOAT8)] = 0.0  # codes that packing never makes


def decode_attention(
    q: torch.Tensor, kv: PagedKv, table: torch.Tensor, index: BlockIndex, length: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.decode_attention.decode_attention`; tensors on the CPU, the query float32."""
    heads, d = q.shape
    kv_heads, listed = kv.keys.shape[0], index.pages.shape[0]
    group, segments = heads // kv_heads, kv_heads + listed // SEGMENT_PAGES
    out, mass = torch.empty(heads, d), torch.empty(listed)
    fmt, cold_fmt = kv.format, kv.cold_format
    if fmt is None:
        bits = (0, 0, 0, False)
    else:
        bits = (fmt.key_bits, fmt.value_bits, cold_fmt.value_bits if cold_fmt else 0, fmt.float8)
    with parallel_lock:
        _attend(
            q.contiguous().view(kv_heads, group, d).numpy(),
            *kv.arrays,
            *bits,
            table.numpy(),
            index.offsets.numpy(),
            index.pages.numpy(),
            length,
            np.float32(scale),
            out.view(kv_heads, group, d).numpy(),
            mass.numpy(),
            np.empty((segments, group, d), np.float32),
            np.empty((segments, group), np.float32),
            np.empty((listed, group), np.float32),
            _FLOAT8,
        )
    return out, mass


@jit()
def _codes(rows, bits, float8, float8_table, count, tile):
    """Codes of the first `count` rows, uint8 [64, d * bits / 8], as float32 into tile [64, d]."""
    d = tile.shape[1]
    if float8:
        for j in range(count):
            for i in range(d):
                tile[j, i] = float8_table[rows[j, i]]
    elif bits == 8:
        for j in range(count):
            for i in range(d):
                tile[j, i] = np.float32(rows[j, i])
    elif bits == 4:
        middle = d // 2
        for j in range(count):
            for i in range(middle):
                tile[j, i] = np.float32(rows[j, i] & 15)
                tile[j, i + middle] = np.float32(rows[j, i] >> 4)
    else:
        quarter = d // 4
        for j in range(count):
            for i in range(quarter):
                code = rows[j, i]
                tile[j, i] = np.float32(code & 3)
                tile[j, i + quarter] = np.float32((code >> 2) & 3)
                tile[j, i + 2 * quarter] = np.float32((code >> 4) & 3)
                tile[j, i + 3 * quarter] = np.float32(code >> 6)
            if bits == 3:
                eighth = d // 8
                for part in range(8):
                    for i in range(eighth):
                        high = (rows[j, quarter + i] >> part) & 1
                        tile[j, part * eighth + i] += np.float32(4 * high)


@jit()
def _segment(
    q, head, keys, values, packed, cold, key_bits, value_bits, cold_value_bits, float8, table, pages, first, end,
    length, scale, out, lse, page_sum, float8_table,
):  # fmt: skip
    """Entries `first` to `end` - 1 of `pages` for one KV head: q [group, d] -> out [group, d], lse [group].

    page_sum [listed, group] becomes each page's sum of weights, relative to the segment's largest score.
    """
    group, d = q.shape
    tile = np.empty((PAGE, d), np.float32)
    query = np.empty((group, d), np.float32)
    scores = np.empty((group, PAGE), np.float32)
    running = np.full(group, -np.inf, np.float32)
    total = np.zeros(group, np.float32)
    out[:] = 0
    for entry in range(first, end):
        page = pages[entry]
        place = table[page]
        pool, number, bits = packed, ~place, value_bits
        if number >= packed[0].shape[1]:
            pool, number, bits = cold, number - packed[0].shape[1], cold_value_bits
        key_codes, key_scale, key_minimum, value_codes, value_scale, value_minimum = pool
        count = min(PAGE, length - page * PAGE)
        if place >= 0:
            for g in range(group):
                for i in range(d):
                    query[g, i] = q[g, i] * scale
            row_products(keys[head], place * PAGE, count, query, scores)
        else:
            _codes(key_codes[head, number], key_bits, float8, float8_table, count, tile)
            for g in range(group):
                for i in range(d):
                    query[g, i] = q[g, i] * scale * half(key_scale[head, number, i])
            row_products(tile, 0, count, query, scores)
        for g in range(group):
            shift = np.float32(0)
            if place < 0:
                for i in range(d):
                    shift += q[g, i] * half(key_minimum[head, number, i])
            largest = running[g]
            shift *= scale
            for j in range(count):
                scores[g, j] += shift
                largest = max(largest, scores[g, j])
            if largest > running[g]:
                shrink = np.float32(math.exp(running[g] - largest))
                running[g] = largest
                total[g] *= shrink
                for i in range(d):
                    out[g, i] *= shrink
                for earlier in range(first, entry):
                    page_sum[earlier, g] *= shrink
            weight_sum = np.float32(0)
            for j in range(count):
                weight = exp_negative(scores[g, j] - largest)
                scores[g, j] = weight
                weight_sum += weight
            total[g] += weight_sum
            page_sum[entry, g] = weight_sum
        if place >= 0:
            add_rows(values[head], place * PAGE, count, scores, out)
        else:
            _codes(value_codes[head, number], bits, float8, float8_table, count, tile)
            scales = value_scale[head, number]
            for g in range(group):
                shift = np.float32(0)
                for j in range(count):
                    if not float8:
                        shift += scores[g, j] * half(value_minimum[head, number, j])
                    scores[g, j] *= half(scales[0 if float8 else j])
                for i in range(d):
                    out[g, i] += shift
            add_rows(tile, 0, count, scores, out)
    for g in range(group):
        for i in range(d):
            out[g, i] /= total[g]
        for entry in range(first, end):
            page_sum[entry, g] /= total[g]
        lse[g] = running[g] + np.float32(math.log(total[g]))


@jit(parallel=True)
def _attend(
    q, keys, values, packed, cold, key_bits, value_bits, cold_value_bits, float8, table, offsets, pages, length, scale,
    out, mass, part_out, part_lse, page_sum, float8_table,
):  # fmt: skip
    kv_heads, group, d = q.shape
    heads_of = np.empty(part_lse.shape[0], np.int64)
    firsts, ends = np.empty(part_lse.shape[0], np.int64), np.empty(part_lse.shape[0], np.int64)
    parts = np.zeros(kv_heads + 1, np.int64)
    tasks = 0
    for head in range(kv_heads):
        count = offsets[head + 1] - offsets[head]
        segments = (count + SEGMENT_PAGES - 1) // SEGMENT_PAGES
        for segment in range(segments):
            heads_of[tasks] = head
            firsts[tasks] = offsets[head] + count * segment // segments
            ends[tasks] = offsets[head] + count * (segment + 1) // segments
            tasks += 1
        parts[head + 1] = tasks
    for task in prange(tasks):
        head, first, end = heads_of[task], firsts[task], ends[task]
        _segment(
            q[head], head, keys, values, packed, cold, key_bits, value_bits, cold_value_bits, float8, table, pages,
            first, end, length, scale, part_out[task], part_lse[task], page_sum, float8_table,
        )  # fmt: skip
    mass[:] = 0
    for head in range(kv_heads):
        for g in range(group):
            largest = np.float32(-np.inf)
            for task in range(parts[head], parts[head + 1]):
                largest = max(largest, part_lse[task, g])
            total = np.float32(0)
            for task in range(parts[head], parts[head + 1]):
                total += np.float32(math.exp(part_lse[task, g] - largest))
            for i in range(d):
                out[head, g, i] = 0
            for task in range(parts[head], parts[head + 1]):
                share = np.float32(math.exp(part_lse[task, g] - largest)) / total
                for i in range(d):
                    out[head, g, i] += share * part_out[task, g, i]
                for entry in range(firsts[task], ends[task]):
                    mass[entry] += share * page_sum[entry, g]
