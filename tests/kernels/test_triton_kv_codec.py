"""The Triton codec against the torch one: the same bytes, whatever the content, wherever pages lie.

Without a card it runs under Triton's interpreter, which rounds to bfloat16 by cutting off; bytes and float32 outputs
are compared there, bfloat16 outputs on a card.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from kernels.decode_attention import PagedKv
from kernels.decode_attention.reference import gather_pages
from kernels.kv_codec import (
    FORMATS,
    PackedFormat,
    PackedPages,
    empty_pages,
    pack_pages,
    requantize_values,
    summarize,
)
from kernels.kv_codec.triton import pack_into, summarize_into, unpack_into

CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CARD else "cpu")
NAN = float("nan")
# interpreted, which is slow, every format meets one head_dim and every head_dim two formats
DIMS = (64, 80, 96, 128, 256)
SHAPES = [(name, d) for name in FORMATS for d in DIMS if CARD or d == 64 or name in ("fp8", "k3v3")]
by_format = pytest.mark.parametrize("name", FORMATS)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def pool(heads: int, pages: int, d: int, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    spread = torch.randn(heads, 1, d, generator=random).exp()
    return torch.randn(heads, pages * 64, d, generator=random).mul_(spread).add_(spread).to(dtype)


def chosen(x: torch.Tensor, pages: list[int]) -> torch.Tensor:
    """[heads, slots, d] -> [heads, pages, 64, d]"""
    return x.unflatten(1, (-1, 64))[:, pages]


def poisoned_pages(fmt: PackedFormat, heads: int, pages: int, d: int) -> PackedPages:
    return PackedPages(
        *(part.fill_(85 if part.dtype == torch.uint8 else NAN) for part in empty_pages(fmt, (heads, pages), d, DEVICE))
    )


def packed(keys: torch.Tensor, values: torch.Tensor, source: list[int], fmt: PackedFormat, target: list[int]):
    pages = poisoned_pages(fmt, keys.shape[0], max(target) + 2, keys.shape[2])
    places = (torch.tensor(numbers, device=DEVICE) for numbers in (source, target))
    pack_into(keys.to(DEVICE), values.to(DEVICE), next(places), pages, fmt, next(places))
    return PackedPages(*(part.cpu() for part in pages))


def assert_same_pages(got: PackedPages, expected: PackedPages) -> None:
    for name, part, other in zip(got._fields, got, expected):
        assert torch.equal(part, other), name


@pytest.mark.parametrize(("name", "d"), SHAPES)
def test_packing_gives_the_bytes_of_the_reference(name: str, d: int, random: torch.Generator) -> None:
    fmt = FORMATS[name]
    dtype = torch.float32 if d == 96 else torch.bfloat16
    keys, values = (pool(2, 3, d, dtype, random) for _ in range(2))
    pages = packed(keys, values, [2, -1, 0], fmt, [0, 1, 2])
    expected = pack_pages(chosen(keys, [2, 0]), chosen(values, [2, 0]), fmt)
    assert_same_pages(PackedPages(*(part[:, [0, 2]] for part in pages)), expected)
    for part in pages:  # pages that were not named, and the one whose source is negative
        others = part[:, [1, 3]]
        assert bool((others == 85).all() if part.dtype == torch.uint8 else others.isnan().all())


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, torch.Tensor]:
    """A format, and one page of one head: few numbers of any kind, or noise around any number, with an outlier."""
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    shape = 1, 64, 64
    if draw(st.booleans()):
        numbers = torch.tensor(draw(st.lists(finite, min_size=1, max_size=12)), dtype=torch.float32)
        page = numbers[torch.randint(len(numbers), shape, generator=random)]
    else:
        spread, around = 2.0 ** draw(st.integers(-140, 127)), draw(st.floats(-300, 300, width=32))
        page = torch.randn(shape, generator=random).mul(spread).clamp(-3e38, 3e38) + around
    if draw(st.booleans()):
        page[0, draw(st.integers(0, 63)), draw(st.integers(0, 63))] = draw(st.floats(width=32, allow_nan=False))
    return draw(st.sampled_from(list(FORMATS))), page.to(draw(st.sampled_from([torch.float32, torch.bfloat16])))


@settings(max_examples=200 if CARD else 25, deadline=None, suppress_health_check=list(HealthCheck))
@given(contents())
def test_packing_any_content_gives_the_bytes_of_the_reference(case: tuple[str, torch.Tensor]) -> None:
    name, page = case
    values = page.flip(1)
    got = packed(page, values, [0], FORMATS[name], [0])
    expected = pack_pages(page[:, None], values[:, None], FORMATS[name])
    assert_same_pages(PackedPages(*(part[:, :1] for part in got)), expected)


def test_halves_round_to_even() -> None:
    page = torch.arange(64.0).div(2).repeat(64, 1)[None]  # values 0 to 31.5, keys constant
    page[..., 63] = 255.0
    got = packed(page.mT.contiguous(), page, [0], FORMATS["k8v8"], [0])
    assert torch.equal(got.value_codes[0, 0, 0], page[0, 0].round().to(torch.uint8))
    assert torch.equal(got.key_codes[0, 0, :, 0], page[0, 0].round().to(torch.uint8))


@by_format
def test_a_nan_makes_its_own_group_nan_and_no_other(name: str, random: torch.Generator) -> None:
    fmt, (keys, values) = FORMATS[name], (pool(1, 1, 64, torch.float32, random) for _ in range(2))
    keys[0, 5, 9] = values[0, 7, 11] = NAN
    clean = packed(keys.nan_to_num(0), values.nan_to_num(0), [0], fmt, [0])
    got = packed(keys, values, [0], fmt, [0])
    assert got.key_scale[0, 0].isnan().nonzero().tolist() == [[9]]
    others = torch.arange(64) != 9
    assert torch.equal(got.key_scale[0, 0, others], clean.key_scale[0, 0, others])
    lines = got.value_scale[0, 0].isnan()
    assert lines.nonzero().tolist() == [[0 if fmt.float8 else 7]]
    assert got.key_minimum[0, 0].isnan().nonzero().tolist() == [[9]]
    if not fmt.float8:
        assert torch.equal(got.value_codes[0, 0, ~lines], clean.value_codes[0, 0, ~lines])


def layer(name: str, d: int, dtype: torch.dtype, random: torch.Generator) -> tuple[PagedKv, torch.Tensor]:
    """Pools in which every unnamed page is NaN, and a table with exact, packed and, if there are, demoted pages."""
    fmt, (keys, values) = FORMATS[name], (pool(2, 4, d, dtype, random) for _ in range(2))
    pages = packed(keys, values, [0, 1, 3], fmt, [2, 0, 3])
    cold, cold_format = None, None
    if not fmt.float8 and fmt.value_bits > 2:
        cold, cold_format = requantize_values(PackedPages(*(part[:, [0, 3]] for part in pages)), fmt, 2)
        cold = PackedPages(*(part.contiguous() for part in cold))
    unnamed = slice(128, 192)
    keys[:, unnamed] = values[:, unnamed] = NAN
    places = [~2, 3, ~0, 0] + ([] if cold is None else [~5, ~6])
    return PagedKv(keys, values, pages, fmt, cold, cold_format), torch.tensor(places, dtype=torch.int32)


def on_device(kv: PagedKv) -> PagedKv:
    packed, cold = (
        None if pages is None else PackedPages(*(x.to(DEVICE) for x in pages)) for pages in (kv.packed, kv.cold)
    )
    return PagedKv(kv.keys.to(DEVICE), kv.values.to(DEVICE), packed, kv.format, cold, kv.cold_format)


def unpacked(kv: PagedKv, table: torch.Tensor, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[kv_heads, (count + 1) * 64, d] each, the last page left NaN; heads lie apart, as in a larger workspace."""
    heads, _, d = kv.keys.shape
    space = torch.full((2, heads, (count + 3) * 64, d), NAN, dtype=dtype, device=DEVICE)[:, :, : (count + 1) * 64]
    places = torch.cat((table[:count], torch.full((3,), 1 << 30, dtype=torch.int32)))
    unpack_into(on_device(kv), places.to(DEVICE), count, space[0], space[1])
    return space[0].cpu(), space[1].cpu()


@pytest.mark.parametrize(("name", "d"), SHAPES)
def test_unpacking_gives_the_numbers_of_the_reference(name: str, d: int, random: torch.Generator) -> None:
    kv, table = layer(name, d, torch.float32 if d == 80 else torch.bfloat16, random)
    count = table.shape[0]
    for dtype in (torch.float32, torch.bfloat16) if CARD else (torch.float32,):
        got = unpacked(kv, table, count, dtype)
        for head in range(2):
            for x, expected in zip(got, gather_pages(kv, head, table)):
                assert torch.equal(x[head, : count * 64], expected.flatten(0, 1).to(dtype))
                assert x[head, count * 64 :].isnan().all()


def test_bfloat16_outputs_are_the_float32_ones_rounded(random: torch.Generator) -> None:
    kv, table = layer("k4v4", 64, torch.bfloat16, random)
    for x, rounded in zip(*(unpacked(kv, table, table.shape[0], t) for t in (torch.float32, torch.bfloat16))):
        error = (x - rounded.float()).abs()
        assert bool((error <= x.abs() * 2.0 ** (-8 if CARD else -7)).logical_or(x.isnan()).all())


def test_unpacking_without_packed_pages_copies(random: torch.Generator) -> None:
    keys, values = (pool(2, 3, 80, torch.bfloat16, random) for _ in range(2))
    table = torch.tensor([2, 0], dtype=torch.int32)
    for got, x in zip(unpacked(PagedKv(keys, values), table, 2, torch.bfloat16), (keys, values)):
        assert torch.equal(got[:, :128].unflatten(1, (2, 64)), chosen(x, [2, 0]))


def test_every_float8_code_is_read_as_the_number_it_is() -> None:
    fmt = FORMATS["fp8"]
    pages = empty_pages(fmt, (1, 1), 64)
    codes = torch.arange(256, dtype=torch.uint8).repeat(16).view(1, 1, 64, 64)
    codes[(codes & 127) == 127] = 0  # packing never makes a NaN
    for part in (pages.key_codes, pages.value_codes):
        part.copy_(codes)
    pages.key_scale.fill_(1)
    pages.key_minimum.fill_(-3)
    pages.value_scale.fill_(2.0**-20)
    kv = PagedKv(torch.empty(1, 64, 64), torch.empty(1, 64, 64), pages, fmt)
    keys, values = unpacked(kv, torch.tensor([~0], dtype=torch.int32), 1, torch.float32)
    expected = codes.view(torch.float8_e4m3fn).float()[0, 0]
    assert torch.equal(keys[0, :64], expected - 3)
    assert torch.equal(values[0, :64], expected * 2.0**-20)


@pytest.mark.parametrize(("d", "logical"), [(64, 1), (64, 64), (80, 16), (128, 16), (256, 16)])
def test_summaries_are_those_of_the_reference(d: int, logical: int, random: torch.Generator) -> None:
    keys = pool(2, 4, d, torch.bfloat16, random)
    keys[:, 70, 3] = 1e30  # counts as 65504
    keys[0, 200, 5] = NAN
    mean, std = (torch.full((2, 6, 64 // logical, d), NAN, dtype=torch.half, device=DEVICE) for _ in range(2))
    summarize_into(keys.to(DEVICE), torch.tensor([3, -1, 1], device=DEVICE), mean, std)
    for got, expected in zip((mean.cpu(), std.cpu()), summarize(chosen(keys, [3, 1]), logical)):
        torch.testing.assert_close(got[:, [3, 1]], expected, rtol=2**-10, atol=2**-14, equal_nan=True)
        assert got[:, [0, 2, 4, 5]].isnan().all()


def test_nothing_to_do(random: torch.Generator) -> None:
    keys = pool(1, 1, 64, torch.bfloat16, random).to(DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    pages = poisoned_pages(FORMATS["k4v4"], 1, 1, 64)
    pack_into(keys, keys, none, pages, FORMATS["k4v4"], none)
    summarize_into(keys, none, torch.empty(1, 1, 4, 64).half(), torch.empty(1, 1, 4, 64).half())
    unpack_into(PagedKv(keys, keys), none.int(), 0, keys.clone(), keys.clone())
    assert bool((pages.key_codes == 85).all())


def test_pools_that_do_not_lie_together_are_refused(random: torch.Generator) -> None:
    keys = pool(1, 2, 64, torch.bfloat16, random)
    number = torch.zeros(1, dtype=torch.int64)
    pages = poisoned_pages(FORMATS["k4v4"], 1, 4, 64)
    with pytest.raises(ValueError, match="keys: got strides"):
        pack_into(keys.mT.contiguous().mT, keys, number, pages, FORMATS["k4v4"], number)
    with pytest.raises(ValueError, match="contiguous"):
        pack_into(keys, keys, number, PackedPages(*(x[:, ::2] for x in pages)), FORMATS["k4v4"], number)


@pytest.mark.gpu
@pytest.mark.skipif(not CARD, reason="needs a CUDA card")
@by_format
def test_pages_past_two_to_the_31_elements(name: str, random: torch.Generator) -> None:
    if torch.cuda.mem_get_info()[0] < 30 << 30:
        pytest.skip("needs 30 GB of free memory")
    fmt, last = FORMATS[name], 2**31 // (64 * 128) + 5  # behind so many pages of 64 x 128 entries
    keys, values = (pool(2, 1, 128, torch.bfloat16, random) for _ in range(2))
    pools = [torch.empty(2, (last + 1) * 64, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
    for large, x in zip(pools, (keys, values)):
        large[:, -64:] = x.to(DEVICE)
    pages = empty_pages(fmt, (2, last + 1), 128, DEVICE)
    number = torch.tensor([last], device=DEVICE)
    pack_into(*pools, number, pages, fmt, number)
    expected = pack_pages(keys[:, None], values[:, None], fmt)
    assert_same_pages(PackedPages(*(part[:, -1:].cpu() for part in pages)), expected)
    out = torch.full((2, 2, 64, 128), NAN, device=DEVICE)
    unpack_into(PagedKv(*pools, pages, fmt), number.bitwise_not().int(), 1, out[0], out[1])
    kv = PagedKv(keys, values, expected, fmt)
    for head in range(2):
        for got, x in zip(out[:, head].cpu(), gather_pages(kv, head, torch.tensor([-1], dtype=torch.int32))):
            assert torch.equal(got, x[0])
