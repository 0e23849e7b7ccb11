"""Codes of packed pages as float16 numbers in registers, for Triton kernels (layout: kernels.kv_codec.bits).

A code masked out of its byte is the mantissa of a subnormal float16: two codes, one in each half of a register, become
numbers by one `and`, and tensor cores take them as they are. Such a number is code * 2**-24, times 2**n if the code
began at bit n; `factor` is what undoes both.

A row's codes lie in RUNS runs of WIDTH bytes (3 bits: WIDTH bytes of high bits, which 8 runs share). A run's bytes are
taken as units: 32 bits of one token for keys, 16 bits of two tokens for values, which then are neighbours in a register
as the tensor cores want them. Columns of a tile are numbered so that what a thread has loaded is what it multiplies:
`key_dimension` and `value_dimension` say which dimension a column is. Units are padded to a power of two.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


def padded_units(d: int, bits: int, size: int) -> int:
    """Units of `size` bytes that a run takes, up to the next power of two."""
    return triton.next_power_of_2(triton.cdiv(d // (8 if bits == 3 else 8 // bits), size))


@triton.jit
def key_dimension(D: tl.constexpr, BITS: tl.constexpr, UNITS: tl.constexpr):
    """-> dimension of each column [RUNS * 4 * UNITS], whether it is one, and its run"""
    RUNS: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    LANES: tl.constexpr = 4 if UNITS >= 4 else UNITS
    EACH: tl.constexpr = UNITS // LANES
    column = tl.arange(0, RUNS * 4 * UNITS)
    unit = column // 4 % LANES * EACH + column // (4 * LANES) % EACH
    byte = unit * 4 + column % 2 * 2 + column // 2 % 2
    run = column // (4 * UNITS)
    return run * (D // RUNS) + byte, byte < D // RUNS, run


@triton.jit
def value_dimension(D: tl.constexpr, BITS: tl.constexpr, UNITS: tl.constexpr):
    """-> dimension of each row [RUNS * 2 * UNITS], whether it is one, and its run"""
    RUNS: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    LANES: tl.constexpr = 8 if UNITS >= 8 else UNITS
    EACH: tl.constexpr = UNITS // LANES
    row = tl.arange(0, RUNS * 2 * UNITS)
    unit = row % LANES * EACH + row // LANES % EACH
    which = row // UNITS
    byte = unit * 2 + which % 2
    return which // 2 * (D // RUNS) + byte, byte < D // RUNS, which // 2


@triton.jit
def load_channels(pointer, mine, D: tl.constexpr, BITS: tl.constexpr, UNITS: tl.constexpr):
    """float16 of each dimension -> in the order of key columns. mine: bool [1, 1]; elsewhere 0."""
    RUNS: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    WIDTH: tl.constexpr = D // RUNS
    run = tl.arange(0, RUNS)[:, None]
    byte = tl.arange(0, 4 * UNITS)[None, :]
    mask = mine & (byte < WIDTH) if WIDTH != 4 * UNITS else mine
    return tl.load(pointer + run * WIDTH + byte, mask=mask, other=0)


@triton.jit
def as_columns(x, BITS: tl.constexpr, UNITS: tl.constexpr):
    """What `load_channels` returned, [RUNS, 4 * UNITS] -> [RUNS * 4 * UNITS], ordered as key columns are."""
    RUNS: tl.constexpr = 8 if BITS == 3 else 8 // BITS
    LANES: tl.constexpr = 4 if UNITS >= 4 else UNITS
    x = tl.reshape(x, (RUNS, LANES, UNITS // LANES, 2, 2))
    return tl.reshape(tl.permute(x, (0, 2, 1, 4, 3)), (RUNS * 4 * UNITS,))


@triton.constexpr_function
def undo(float8: bool, inline: bool) -> float:
    """What all numbers are multiplied with to be codes, `factor` aside."""
    return (1.0 if inline else 2.0**8) if float8 else 2.0**24


@triton.jit
def factor(run, BITS: tl.constexpr, FLOAT8: tl.constexpr):
    """float32: what a run's numbers are multiplied with to be codes, `undo` aside."""
    if BITS == 4:
        return tl.where(run == 0, 1.0, 0.0625)
    elif BITS == 3:
        return tl.where(run < 4, 1.0, 0.0625)
    elif BITS == 2:
        return tl.where(run < 2, tl.where(run == 0, 1.0, 0.25), tl.where(run == 2, 0.0625, 0.015625))
    else:
        return tl.where(run == 0, 1.0, 1.0)


@triton.jit
def _load_units(
    start, token, mine, ROW: tl.constexpr, WIDTH: tl.constexpr, UNITS: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    unit = tl.arange(0, UNITS)[None, :]
    if WIDTH % BYTES == 0:
        mask = mine & (unit < WIDTH // BYTES) if UNITS != WIDTH // BYTES else mine
        typed = start.to(tl.pointer_type(tl.int32 if BYTES == 4 else tl.int16))
        return tl.load(typed + token[:, None] * (ROW // BYTES) + unit, mask=mask, other=0)
    else:  # byte by byte
        place = start + token[:, None] * ROW + unit * BYTES
        x = _load_byte(place, mine, unit * BYTES, WIDTH) | (_load_byte(place + 1, mine, unit * BYTES + 1, WIDTH) << 8)
        if BYTES == 4:
            x |= _load_byte(place + 2, mine, unit * BYTES + 2, WIDTH) << 16
            return x | (_load_byte(place + 3, mine, unit * BYTES + 3, WIDTH) << 24)
        else:
            return x.to(tl.int16)


@triton.jit
def _load_byte(place, mine, number, WIDTH: tl.constexpr):
    return tl.load(place, mask=mine & (number < WIDTH), other=0).to(tl.int32)


@triton.jit
def load_units(codes, base, token, mine, D: tl.constexpr, BITS: tl.constexpr, UNITS: tl.constexpr,
               BYTES: tl.constexpr):  # fmt: skip
    """Units of BYTES bytes of the tokens `token` [n] of a page, whose first byte is codes + base: [n, UNITS] of int32
    or int16, of 3-bit codes three such tiles (low bits twice, high bits), else one. Where `mine`, bool [n, 1], is
    false, 0."""
    ROW: tl.constexpr = D * BITS // 8
    WIDTH: tl.constexpr = D // (8 if BITS == 3 else 8 // BITS)
    start = codes + base
    first = _load_units(start, token, mine, ROW, WIDTH, UNITS, BYTES)
    if BITS == 3:
        second = _load_units(start + WIDTH, token, mine, ROW, WIDTH, UNITS, BYTES)
        third = _load_units(start + 2 * WIDTH, token, mine, ROW, WIDTH, UNITS, BYTES)
        return first, second, third
    else:
        return first, first, first


@triton.jit
def _and(x, MASK: tl.constexpr, INLINE: tl.constexpr):
    """In assembly, so that LLVM does not take the halves apart."""
    if INLINE:
        return tl.inline_asm_elementwise("and.b32 $0, $1, $2;", "=r,r,r", [x, MASK], tl.int32, True, 1)
    else:
        return x & MASK


@triton.jit
def _choose(a, b, MASK: tl.constexpr, INLINE: tl.constexpr):
    """Bits of a where MASK has ones, else of b."""
    if INLINE:
        return tl.inline_asm_elementwise("lop3.b32 $0, $1, $2, $3, 0xe4;", "=r,r,r,r", [a, b, MASK], tl.int32, True, 1)
    else:
        return b ^ ((a ^ b) & MASK)


@triton.jit
def beside(a, b, INLINE: tl.constexpr):
    """int16 a, b -> int32 with a in its low half and b in its high one"""
    if INLINE:
        return tl.inline_asm_elementwise("mov.b32 $0, {$1, $2};", "=r,h,h", [a, b], tl.int32, True, 1)
    else:
        return (a.to(tl.int32) & 0xFFFF) | (b.to(tl.int32) << 16)


@triton.jit
def _halves(word):
    """int32 [...] -> float16 [..., 2], the low half first"""
    low = word.to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(low, (word >> 16).to(tl.int16).to(tl.float16, bitcast=True))


@triton.jit
def _numbers(x, second, third, BITS: tl.constexpr, FLOAT8: tl.constexpr, INLINE: tl.constexpr):
    """int32 [n, UNITS], in each half two bytes -> float16 [n, UNITS, 2 * RUNS, 2]: of each run the first bytes' codes,
    then the second ones'; last index: the half."""
    if FLOAT8:
        if INLINE:
            y, z = tl.inline_asm_elementwise(
                "{ .reg .b32 t; .reg .b16 a, b; prmt.b32 t, $2, 0, 0x3120; mov.b32 {a, b}, t;"
                " cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }",
                "=r,=r,r", [x], (tl.int32, tl.int32), True, 1,
            )  # fmt: skip
            return _halves(tl.join(y, z))
        else:
            y, z = x & 0x00FF00FF, (x >> 8) & 0x00FF00FF
            both = tl.join(y, z)
            sign, rest = (both & 0x00800080) << 8, (both & 0x007F007F) << 7
            return _halves(sign | rest)
    elif BITS == 8:
        return _halves(tl.join(_and(x, 0x00FF00FF, INLINE), _and(x >> 8, 0x00FF00FF, INLINE)))
    elif BITS == 4:
        y = x >> 8
        return _halves(_flat(tl.join(
            tl.join(_and(x, 0x000F000F, INLINE), _and(x, 0x00F000F0, INLINE)),
            tl.join(_and(y, 0x000F000F, INLINE), _and(y, 0x00F000F0, INLINE)),
        ), 4))  # fmt: skip
    elif BITS == 2:
        return _halves(_flat(tl.join(_four(x, INLINE), _four(x >> 8, INLINE)), 8))
    else:
        # Into each half byte a code: of runs 0 and 4, of 2 and 6, of 1 and 5, of 3 and 7.
        a = _choose(x, third << 2, 0x33333333, INLINE)
        b = _choose(x >> 2, third, 0x33333333, INLINE)
        c = _choose(second, third << 1, 0x33333333, INLINE)
        d = _choose(second >> 2, third >> 1, 0x33333333, INLINE)
        first = tl.join(_two(a, b, c, d, 0x00070007, INLINE), _two(a, b, c, d, 0x00700070, INLINE))
        a, b, c, d = a >> 8, b >> 8, c >> 8, d >> 8
        other = tl.join(_two(a, b, c, d, 0x00070007, INLINE), _two(a, b, c, d, 0x00700070, INLINE))
        # [.., 2, 1, half of the runs] -> runs as 4, 2, 1
        first, other = tl.permute(first, (0, 1, 4, 2, 3)), tl.permute(other, (0, 1, 4, 2, 3))
        return _halves(_flat(tl.join(first, other), 16))


@triton.jit
def _two(a, b, c, d, MASK: tl.constexpr, INLINE: tl.constexpr):
    """Runs 0 (a), 2 (b), 1 (c), 3 (d), or 4 more -> [..., 2, 2], indexed by the high and the low bit of the run"""
    a, b = _and(a, MASK, INLINE), _and(b, MASK, INLINE)
    c, d = _and(c, MASK, INLINE), _and(d, MASK, INLINE)
    return tl.join(tl.join(a, b), tl.join(c, d))


@triton.jit
def _four(x, INLINE: tl.constexpr):
    """Two-bit codes of the low byte of each half -> [..., 2, 2]"""
    a, b = _and(x, 0x00030003, INLINE), _and(x, 0x000C000C, INLINE)
    c, d = _and(x, 0x00300030, INLINE), _and(x, 0x00C000C0, INLINE)
    return tl.join(tl.join(a, c), tl.join(b, d))


@triton.jit
def _flat(x, SIZE: tl.constexpr):
    """[n, units, ...] -> [n, units, SIZE]"""
    return tl.reshape(x, (x.shape[0], x.shape[1], SIZE))


@triton.jit
def key_tile(units, BITS: tl.constexpr, FLOAT8: tl.constexpr, INLINE: tl.constexpr):
    """Three of `load_units`, int32 [tokens, units] -> float16 [tokens, RUNS * 4 * units]"""
    UNITS: tl.constexpr = units[0].shape[1]
    LANES: tl.constexpr = 4 if UNITS >= 4 else UNITS
    x = _numbers(units[0], units[1], units[2], BITS, FLOAT8, INLINE)
    WHICH: tl.constexpr = x.shape[2]
    x = tl.reshape(x, (x.shape[0], LANES, UNITS // LANES, WHICH // 2, 2, 2))
    return tl.reshape(tl.permute(x, (0, 3, 2, 1, 4, 5)), (x.shape[0], UNITS * WHICH * 2))


@triton.jit
def value_tile(even, odd, BITS: tl.constexpr, FLOAT8: tl.constexpr, INLINE: tl.constexpr):
    """`load_units` of even and of odd tokens, int16 [tokens / 2, units] -> float16 [RUNS * 2 * units, tokens]"""
    UNITS: tl.constexpr = even[0].shape[1]
    LANES: tl.constexpr = 8 if UNITS >= 8 else UNITS
    first = beside(even[0], odd[0], INLINE)
    if BITS == 3:
        x = _numbers(first, beside(even[1], odd[1], INLINE), beside(even[2], odd[2], INLINE), BITS, FLOAT8, INLINE)
    else:
        x = _numbers(first, first, first, BITS, FLOAT8, INLINE)
    WHICH: tl.constexpr = x.shape[2]
    if UNITS == LANES:
        return tl.reshape(tl.permute(x, (2, 1, 0, 3)), (UNITS * WHICH, 2 * x.shape[0]))
    else:
        x = tl.reshape(x, (x.shape[0], LANES, UNITS // LANES, WHICH, 2))
        return tl.reshape(tl.permute(x, (3, 2, 1, 0, 4)), (UNITS * WHICH, 2 * x.shape[0]))
