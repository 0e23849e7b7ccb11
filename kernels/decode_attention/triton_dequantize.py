"""Codes of packed pages as exact float16 numbers in registers, for Triton kernels (layout: kernels.kv_codec.bits).

A code c is put into the low bits of the mantissa of 1024.0, which makes 1024 + c * 2**n; a fused multiply-add takes the
1024 off and scales by 2**-n. Four bytes are unpacked at a time, two codes to a register, with no conversion
instruction. Where assembly cannot be used (Triton's interpreter), `INLINE` is false and plain operations do the same.

The codes of a row come as 8 / bits runs of equal length, 3-bit codes as 8: run r holds dimensions r*d/runs to
(r+1)*d/runs - 1. Each run is padded to a power of two, `RUN`, so that column c of a tile of `runs * RUN` columns is
dimension (c // RUN) * (d / runs) + c % RUN, if c % RUN < d / runs.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


def runs_of(bits: int) -> int:
    """Into how many runs the codes of a row are cut."""
    return 8 if bits == 3 else 8 // bits


def _repeated(half: int) -> str:
    return f"0x{half:04x}{half:04x}"


def _assembly(bits: int, float8: bool, shift: int = 0) -> str:
    """Four bytes in one register (3 bits: the low bits, then the high ones, in two) -> the codes of each run in two."""
    if float8:
        return "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }"
    runs = 4 if bits == 3 else 8 // bits  # of one call
    step = 8 // runs
    low = 2 * runs  # the first input's number
    lines = [".reg .b32 a, b, c, d, magic, factor, offset;", "mov.b32 magic, 0x64006400;"]
    lines += [f"prmt.b32 a, ${low}, 0, 0x4140;", f"prmt.b32 b, ${low}, 0, 0x4342;"]
    if bits == 3:
        lines += [f"prmt.b32 c, ${low + 1}, 0, 0x4140;", f"prmt.b32 d, ${low + 1}, 0, 0x4342;"]
        lines += [f"shl.b32 c, c, {shift};", f"shl.b32 d, d, {shift};"]
    for run in range(runs):
        mask = ((1 << min(step, bits)) - 1) << (step * run)
        exponent = (15 - step * run) << 10  # of 2**-(step * run)
        lines += [f"mov.b32 factor, {_repeated(exponent)};"]
        lines += [f"mov.b32 offset, {_repeated(0x8000 | (25 - step * run) << 10)};"]  # -1024 times the factor
        for pair, (word, high) in enumerate((("a", "c"), ("b", "d"))):
            target = f"${2 * run + pair}"
            lines += [f"lop3.b32 {target}, {word}, {_repeated(mask)}, magic, 0xea;"]
            if bits == 3:
                lines += [f"lop3.b32 {target}, {high}, {_repeated(4 << (step * run))}, {target}, 0xea;"]
            lines += [f"fma.rn.f16x2 {target}, {target}, factor, offset;"]
    return "{ " + " ".join(lines) + " }"


_FLOAT8 = tl.constexpr(_assembly(8, True))
_8 = tl.constexpr(_assembly(8, False))
_4 = tl.constexpr(_assembly(4, False))
_3_EVEN = tl.constexpr(_assembly(3, False, 2))
_3_ODD = tl.constexpr(_assembly(3, False, 1))
_2 = tl.constexpr(_assembly(2, False))


@triton.jit
def load_codes(codes, base, mine, BITS: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr, WORDS: tl.constexpr):
    """One page's bytes, uint8 [64, RUN], or with WORDS int32 [64, RUN / 4]; of 3-bit codes three such tiles, else one.

    codes: uint8 pointer; base: int64, the page's first byte. Where `mine`, bool [64, 1], is false, codes read as 0.
    """
    ROW: tl.constexpr = D * BITS // 8
    RUNS: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    WIDTH: tl.constexpr = D // RUNS
    SIZE: tl.constexpr = 4 if WORDS else 1
    start = codes + base
    if WORDS:
        start = start.to(tl.pointer_type(tl.int32))
    token = tl.arange(0, 64)[:, None]
    column = tl.arange(0, RUN // SIZE)
    if BITS == 3:
        # A thread would take a run's whole 16 bytes, a warp 32 tokens; unpacked tiles then lie badly in shared memory.
        column = tl.max_contiguous(column, 8 // SIZE)
    column = column[None, :]
    mask = mine & (column < WIDTH // SIZE) if RUN != WIDTH else mine
    place = start + token * (ROW // SIZE) + column
    first = tl.load(place, mask=mask, other=0)
    if BITS == 3:
        second = tl.load(place + WIDTH // SIZE, mask=mask, other=0)
        third = tl.load(place + 2 * (WIDTH // SIZE), mask=mask, other=0)
        return first, second, third
    else:
        return first, first, first


@triton.jit
def unpack(tiles, BITS: tl.constexpr, FLOAT8: tl.constexpr, WORDS: tl.constexpr, INLINE: tl.constexpr):
    """What `load_codes` returned -> codes float16 [64, runs * RUN]. WORDS only with INLINE."""
    if FLOAT8:
        if INLINE:
            return _one(tiles[0], _FLOAT8, WORDS)
        else:
            return tiles[0].to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif BITS == 8:
        if INLINE:
            return _one(tiles[0], _8, WORDS)
        else:
            return tiles[0].to(tl.float16)
    elif BITS == 4:
        if INLINE:
            a, b = _two(tiles[0], WORDS)
        else:
            a, b = (tiles[0] & 15).to(tl.float16), (tiles[0] >> 4).to(tl.float16)
        return _flat(tl.permute(tl.join(a, b), (0, 2, 1)))
    elif BITS == 2:
        if INLINE:
            a, b, c, d = _four(tiles[0], WORDS)
        else:
            a, b, c, d = _plain_four(tiles[0], tiles[0], 0, 0)
        return _flat(tl.permute(_join_four(a, b, c, d), (0, 3, 2, 1)))
    else:
        if INLINE:
            a, b, c, d = _four_of_three(tiles[0], tiles[2], _3_EVEN, WORDS)
            e, f, g, h = _four_of_three(tiles[1], tiles[2], _3_ODD, WORDS)
        else:
            a, b, c, d = _plain_four(tiles[0], tiles[2], 0, 1)
            e, f, g, h = _plain_four(tiles[1], tiles[2], 1, 1)
        eight = _join_four(tl.join(a, e), tl.join(b, f), tl.join(c, g), tl.join(d, h))
        return _flat(tl.permute(eight, (0, 4, 3, 2, 1)))


@triton.jit
def _flat(x):
    """[64, ..., n] -> [64, all]"""
    return tl.reshape(x, (x.shape[0], x.numel // x.shape[0]))


@triton.jit
def _join_four(a, b, c, d):
    """-> [..., 2, 2]; the last index is the high bit of the four's number."""
    return tl.join(tl.join(a, b), tl.join(c, d))


@triton.jit
def _plain_four(low, high, HIGH_BIT: tl.constexpr, HIGH: tl.constexpr):
    """Two-bit codes of uint8 [64, n], each with its high bit where HIGH is 1."""
    a, b, c, d = low & 3, (low >> 2) & 3, (low >> 4) & 3, low >> 6
    if HIGH:
        high = high >> HIGH_BIT
        a, b, c, d = a | ((high & 1) << 2), b | (high & 4), c | ((high & 16) >> 2), d | ((high & 64) >> 4)
    return a.to(tl.float16), b.to(tl.float16), c.to(tl.float16), d.to(tl.float16)


@triton.jit
def _halves(word):
    """int32 [64, n], each two float16 -> [64, n, 2]"""
    return tl.join(
        word.to(tl.int16).to(tl.float16, bitcast=True), (word >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    )


@triton.jit
def _quads(first, second):
    """The first and the second two of every four numbers, int32 [64, n] each -> float16 [64, 4n]"""
    return _flat(tl.permute(tl.join(_halves(first), _halves(second)), (0, 1, 3, 2)))


@triton.jit
def _one(x, ASSEMBLY: tl.constexpr, WORDS: tl.constexpr):
    if WORDS:
        a, b = tl.inline_asm_elementwise(
            ASSEMBLY, "=r,=r,r", [x], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )  # fmt: skip
        return _quads(a, b)
    else:
        return tl.inline_asm_elementwise(ASSEMBLY, "=r,=r,r", [x], dtype=tl.float16, is_pure=True, pack=4)


@triton.jit
def _two(x, WORDS: tl.constexpr):
    if WORDS:
        a, b, c, d = tl.inline_asm_elementwise(
            _4, "=r,=r,=r,=r,r", [x], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1
        )
        return _quads(a, b), _quads(c, d)
    else:
        return tl.inline_asm_elementwise(
            _4, "=r,=r,=r,=r,r", [x], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
        )  # fmt: skip


@triton.jit
def _four(x, WORDS: tl.constexpr):
    if WORDS:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            _2,
            "=r,=r,=r,=r,=r,=r,=r,=r,r",
            [x],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        return _quads(a, b), _quads(c, d), _quads(e, f), _quads(g, h)
    else:
        return tl.inline_asm_elementwise(
            _2,
            "=r,=r,=r,=r,=r,=r,=r,=r,r",
            [x],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )


@triton.jit
def _four_of_three(low, high, ASSEMBLY: tl.constexpr, WORDS: tl.constexpr):
    if WORDS:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            ASSEMBLY,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r",
            [low, high],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        return _quads(a, b), _quads(c, d), _quads(e, f), _quads(g, h)
    else:
        return tl.inline_asm_elementwise(
            ASSEMBLY,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r",
            [low, high],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
