"""What the products of many rows need: x as fp8 with a scale for each row, and 4-bit weights as bfloat16."""

# pyright: reportCallIssue=false, reportArgumentType=false

import torch
import triton
import triton.language as tl

_ROWS, _COLUMNS = 8, 256  # of a program that unpacks


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [t, in] of a float type -> float8_e4m3fn [t, in], scales float32 [t, 1] that multiply it."""
    rows, inner = x.shape
    codes = torch.empty(rows, inner, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(inner)
    _quantize_rows_kernel[(rows,)](
        x, codes, scales, inner, x.stride(0), BLOCK=block, num_warps=min(max(block // 1024, 1), 32)
    )
    return codes, scales


@triton.jit
def _quantize_rows_kernel(x, codes, scales, inner, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, at < inner, 0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(values), 0), 1e-30)
    tl.store(scales + row, largest / 448)
    scaled = values * (448 / largest)
    scaled = tl.minimum(tl.maximum(scaled, -448.0), 448.0)  # rounding may have carried the largest past the end
    tl.store(codes + row * inner + at, scaled.to(tl.float8e4nv), at < inner)


def unpack_int4_groups(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, group: int, first: int, rows: int
) -> torch.Tensor:
    """Weight rows from `first`, a multiple of 8, as bfloat16 [rows, in].

    packed int32 [out / 8, in / (16 * tiles), 32, tiles / 2], scales_and_zeros bfloat16 [in / group, out, 2].
    """
    tiles = packed.shape[3] * 2
    inner = packed.shape[1] * 16 * tiles
    weight = torch.empty(rows, inner, dtype=torch.bfloat16, device=packed.device)
    _unpack_int4_kernel[(triton.cdiv(inner, _COLUMNS), triton.cdiv(rows, _ROWS))](
        packed, scales_and_zeros, weight, first, rows, scales_and_zeros.shape[1], inner,
        GROUP=group, TILES=tiles, ROWS=_ROWS, COLUMNS=_COLUMNS,
    )  # fmt: skip
    return weight


@triton.jit
def _unpack_int4_kernel(
    packed, scales_and_zeros, weight, first, rows, outs, inner,
    GROUP: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    k = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < rows) & (k < inner)
    n = (first + row).to(tl.int64)
    # The order of the B fragments of a 16 x 8 x 16 tensor core product, with two tiles along k in a word.
    lane = n % 8 * 4 + k % 8 // 2
    word = ((n // 8 * (inner // (16 * TILES)) + k // (16 * TILES)) * 32 + lane) * (TILES // 2) + k % (16 * TILES) // 32
    shift = k % 32 // 8 * 4 + k % 2 * 16
    code = (tl.load(packed + word, inside, 0) >> shift) & 15
    pair = scales_and_zeros + ((k // GROUP).to(tl.int64) * outs + n) * 2
    scale = tl.load(pair, inside, 0.0).to(tl.float32)
    zero = tl.load(pair + 1, inside, 0.0).to(tl.float32)
    value = (code - 8).to(tl.float32) * scale + zero
    tl.store(weight + row.to(tl.int64) * inner + k, value.to(tl.bfloat16), inside)
