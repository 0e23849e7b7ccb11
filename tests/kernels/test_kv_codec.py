"""The KV codec: error within each format's bound for any content, bytes in the exact layout, summaries that hold."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kernels.kv_codec import (
    FORMATS,
    PackedFormat,
    PackedPages,
    bounds,
    bytes_per_page,
    empty_pages,
    hadamard,
    layer_format,
    pack_pages,
    requantize_values,
    summarize,
    unpack_page_keys,
    unpack_page_values,
)
from kernels.kv_codec.bits import pack_codes, unpack_codes

HEAD_DIMS = (64, 80, 96, 128, 256)
LARGEST = 65504.0
NAN = float("nan")
ANY_PAGE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
by_format = pytest.mark.parametrize("name", FORMATS)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)  # denormal and 3e38 included


@st.composite
def contents(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [..., pages, 64, d] made of a few numbers of any kind, or of noise around any number."""
    leading = draw(st.sampled_from([(1,), (2,), (2, 1), (1, 2, 2)]))
    d = draw(st.sampled_from([8, *HEAD_DIMS]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    pages = []
    for _ in range(2):
        shape = (*leading, 64, d)
        if draw(st.booleans()):
            pool = torch.tensor(draw(st.lists(finite, min_size=1, max_size=12)), dtype=torch.float32)
            page = pool[torch.randint(len(pool), shape, generator=random)]
        else:
            spread, around = 2.0 ** draw(st.integers(-140, 127)), draw(st.floats(-300, 300, width=32))
            page = torch.randn(shape, generator=random).mul(spread).clamp(-3e38, 3e38) + around
        if draw(st.booleans()):
            page[..., draw(st.integers(0, 63)), draw(st.integers(0, d - 1))] = draw(finite)  # one outlier
        pages.append(page.to(draw(st.sampled_from([torch.float32, torch.bfloat16]))))
    return pages[0].nan_to_num(), pages[1].nan_to_num()  # an infinite bfloat16 becomes its largest number


def error_bound(x: np.ndarray, axis: int | tuple[int, ...], bits: int, float8: bool) -> np.ndarray:
    """What the module's docstring promises, in float64, from the content alone (clamped to the range of float16)."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    if float8:
        around = axis == -2  # keys, which lie around the middle of their channel
        middle = (low.astype(np.float32) + high.astype(np.float32)) / 2 if around else 0 * low
        distance = np.abs(x - middle.astype(np.float16).astype(float))
        scale = np.maximum(distance.max(axis, keepdims=True) / 448, 2.0**-20) * (1 + 2**-5)
        float32_rounding = 2.0**-22 * (np.abs(low) + np.abs(high)) if around else 0
        return np.maximum(distance / 16, scale / 1024) + float32_rounding
    levels = 2**bits - 1
    steps = levels if bits > 3 else levels + 1  # end to end, or cells with a code in the middle
    lost_below = np.maximum(2.0**-11 * np.abs(low), 2.0**-25)
    scale = np.maximum((high - low) / steps + lost_below / levels, 2.0**-20)
    lost_above = np.maximum(2.0**-11 * scale, 2.0**-25)
    float32_rounding = 2.0**-22 * (np.abs(low) + np.abs(high))
    return (scale + lost_above) / 2 + np.maximum(lost_below, levels * lost_above) + float32_rounding


def assert_within_bound(got: torch.Tensor, x: torch.Tensor, axis: int | tuple[int, ...], bits: int, float8: bool):
    expected = x.double().clamp(-LARGEST, LARGEST).numpy()
    excess = np.abs(got.double().numpy() - expected) - error_bound(expected, axis, bits, float8)
    assert got.dtype == torch.float32
    assert excess.max() <= 0  # NaN fails


@by_format
@ANY_PAGE
@example(pages=(torch.full((1, 64, 8), 3e38), torch.full((1, 64, 8), -3e38)))
@example(pages=(torch.full((1, 64, 8), 1e-42), torch.full((1, 64, 8), -1e-42)))
@example(pages=(torch.full((1, 64, 8), LARGEST), torch.tensor([LARGEST, -LARGEST]).repeat(64, 4)[None]))
@given(pages=contents())
def test_any_page_comes_back_within_the_bound_of_its_format(name, pages):
    keys, values = pages
    fmt = FORMATS[name]
    packed = pack_pages(keys, values, fmt)
    out = torch.full(keys.shape, NAN), torch.full(values.shape, NAN)
    assert unpack_page_keys(packed, fmt, out[0]) is out[0]
    assert unpack_page_values(packed, fmt, out[1]) is out[1]
    assert_within_bound(out[0], keys, -2, fmt.key_bits, fmt.float8)
    assert_within_bound(out[1], values, (-2, -1) if fmt.float8 else -1, fmt.value_bits, fmt.float8)
    assert torch.equal(unpack_page_keys(packed, fmt), out[0])
    assert torch.equal(unpack_page_values(packed, fmt), out[1])


@pytest.mark.parametrize("common", [1.0, -40.0, 1000.0])
def test_what_keys_of_a_channel_have_in_common_costs_fp8_nothing(common, random):
    keys = torch.randn(3, 64, 64, generator=random)
    errors = []
    for x in (keys, keys + common):
        got = unpack_page_keys(pack_pages(x, x, FORMATS["fp8"]), FORMATS["fp8"])
        errors.append(float((got - x).norm() / keys.norm()))
    assert errors[1] < 1.1 * errors[0] < 0.04


@by_format
@pytest.mark.parametrize("d", HEAD_DIMS)
def test_pages_have_the_promised_shapes_and_bytes(name, d, random):
    fmt = FORMATS[name]
    keys, values = torch.randn(2, 2, 3, 4, 64, d, generator=random)
    packed = pack_pages(keys, values, fmt)
    room = empty_pages(fmt, (2, 3, 4), d, "cpu")
    assert [(part.shape, part.dtype) for part in packed] == [(part.shape, part.dtype) for part in room]
    assert sum(part.nbytes for part in packed) == 2 * 3 * 4 * bytes_per_page(fmt, d)
    for place, part in zip(room, packed):
        place[:] = part
    assert torch.equal(unpack_page_keys(room, fmt), unpack_page_keys(packed, fmt))
    one = PackedPages(*(part[1, 2, 3] for part in packed))  # leading dimensions are free, none included
    assert torch.equal(unpack_page_values(one, fmt), unpack_page_values(packed, fmt)[1, 2, 3])
    alone = pack_pages(keys[1, 2, 3:], values[1, 2, 3:], fmt)  # a page does not depend on its neighbours
    assert all(torch.equal(a[0], b[1, 2, 3]) for a, b in zip(alone, packed))


def test_bytes_per_token_of_a_head_of_128_channels():
    """Codes, 4 bytes per token and value group, and 4 bytes per page and channel."""
    bytes_per_token = {name: bytes_per_page(fmt, 128) / 64 for name, fmt in FORMATS.items()}
    assert bytes_per_token == {
        "fp8": 256 + (4 * 128 + 2) / 64,
        "k8v8": 256 + 12,
        "k8v4": 192 + 12,
        "k4v4": 128 + 12,
        "k3v3": 96 + 12,
        "k3v2": 80 + 12,
        "k2v2": 64 + 12,
    }


def layout(codes: list[int], bits: int) -> list[int]:
    """The documented layout of one token, with Python's integers, a byte at a time."""
    d = len(codes)
    if bits == 8:
        return codes
    if bits == 4:
        return [codes[i] + 16 * codes[i + d // 2] for i in range(d // 2)]
    if bits == 2:
        return [sum(codes[i + j * d // 4] * 4**j for j in range(4)) for i in range(d // 4)]
    high = [sum((codes[i + j * d // 8] // 4) * 2**j for j in range(8)) for i in range(d // 8)]
    return layout([code % 4 for code in codes], 2) + high


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("d", [8, *HEAD_DIMS])
def test_codes_lie_in_the_documented_layout(bits, d, random):
    codes = torch.randint(2**bits, (2, 5, d), generator=random, dtype=torch.uint8)
    packed = pack_codes(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.flatten(0, 1).tolist() == [layout(token, bits) for token in codes.flatten(0, 1).tolist()]
    assert torch.equal(unpack_codes(packed, bits), codes)


@by_format
@pytest.mark.parametrize("d", [64, 80])
def test_packed_bytes_are_the_codes_of_scale_and_minimum(name, d, random):
    fmt = FORMATS[name]
    keys, values = torch.randn(2, 2, 64, d, generator=random) * torch.logspace(-2, 2, d)
    packed = pack_pages(keys, values, fmt)
    sides = [(keys, packed[:3], fmt.key_bits, -2), (values, packed[3:], fmt.value_bits, -1)]
    for x, (stored, scale, minimum), bits, dim in sides:
        if fmt.float8:
            by_channel = dim == -2
            middle = minimum.float()[:, None].numpy() if by_channel else 0.0
            expected = (x.numpy() - middle) / (scale[:, None] if by_channel else scale[:, :, None]).float().numpy()
            tokens = torch.from_numpy(expected).to(torch.float8_e4m3fn).view(torch.uint8)
            assert stored.tolist() == tokens.tolist()
            assert minimum.numel() == (2 * d if by_channel else 0)
            continue
        steps = (x.numpy() - minimum.float().unsqueeze(dim).numpy()) / scale.float().unsqueeze(dim).numpy()
        codes = np.clip(np.rint(steps), 0, 2**bits - 1).astype(int)
        assert stored.flatten(0, 1).tolist() == [layout(token, bits) for token in codes.reshape(-1, d).tolist()]
        assert codes.max() == 2**bits - 1
        assert codes.min() == 0


@pytest.mark.parametrize(
    ("d", "digest"),
    [
        (64, "ddf13a62a2d350beb24655f36dc881b78719956c31413740c459775b1712ec43"),
        (96, "148e492b90874c4b11a246a14bbe88edb2a22483b090c23809c711b02ae052d5"),
    ],
)
def test_k8v4_bytes_are_those_of_stored_snapshots(d, digest):
    """The digests were taken when k8v4 was the only format; snapshots on disk hold such bytes."""
    i = torch.arange(2 * 3 * 64 * d)
    keys = ((i * 7919 % 4001 - 2000).float() / 128 * (1 + i % d % 7).float()).reshape(2, 3, 64, d)
    values = keys.flip(-2) * 0.37
    packed = pack_pages(keys, values, FORMATS["k8v4"])
    assert hashlib.sha256(b"".join(part.numpy().tobytes() for part in packed)).hexdigest() == digest


@by_format
def test_unpacking_into_a_strided_workspace_writes_all_of_it_and_nothing_else(name, random):
    fmt = FORMATS[name]
    keys, values = torch.randn(2, 3, 2, 64, 96, generator=random)
    packed = pack_pages(keys, values, fmt)
    workspace = torch.full((3, 5 * 64, 96), NAN)
    for unpack in (unpack_page_keys, unpack_page_values):
        unpack(packed, fmt, workspace[:, 64:192].unflatten(1, (-1, 64)))
        assert torch.equal(workspace[:, 64:192].unflatten(1, (-1, 64)), unpack(packed, fmt))
        assert workspace[:, :64].isnan().all()
        assert workspace[:, 192:].isnan().all()
        rounded = torch.full((3, 2, 64, 96), NAN, dtype=torch.bfloat16)
        assert torch.equal(unpack(packed, fmt, rounded), unpack(packed, fmt).bfloat16())


@by_format
def test_infinities_saturate_and_a_nan_stays_in_its_group(name, random):
    fmt = FORMATS[name]
    keys, values = torch.randn(2, 2, 64, 64, generator=random)
    clean = pack_pages(keys, values, fmt)
    keys[0, 5, 7], values[0, 5, 7] = NAN, NAN
    keys[0, 5, 9], values[0, 6, 9] = float("inf"), float("-inf")
    packed = pack_pages(keys, values, fmt)
    got, before = unpack_page_keys(packed, fmt), unpack_page_keys(clean, fmt)
    assert got[0, :, 7].isnan().all()
    assert abs(got[0, 5, 9] - LARGEST) <= 0.6 * LARGEST / 2**fmt.key_bits
    untouched = torch.ones_like(got, dtype=torch.bool)
    untouched[0, :, [7, 9]] = False
    assert torch.equal(got[untouched], before[untouched])
    got, before = unpack_page_values(packed, fmt), unpack_page_values(clean, fmt)
    assert got[0, 5].isnan().all()
    assert torch.equal(got[1], before[1])
    if not fmt.float8:  # whose values have one group per page
        assert abs(got[0, 6, 9] + LARGEST) <= 0.6 * LARGEST / 2**fmt.value_bits
        assert torch.equal(got[0, 7:], before[0, 7:])


@pytest.mark.parametrize(("name", "bits"), [("k8v8", 4), ("k8v4", 2), ("k4v4", 3), ("k3v3", 2), ("k3v2", None)])
@pytest.mark.parametrize("d", [64, 80])
def test_demotion_keeps_keys_to_the_bit_and_values_within_the_bound(name, bits, d, random):
    fmt = FORMATS[name]
    packed = pack_pages(*torch.randn(2, 3, 2, 64, d, generator=random), fmt)
    if bits is None:
        with pytest.raises(ValueError, match="value_bits: got 2"):
            requantize_values(packed, fmt, 2)
        return
    keys_before = [part.clone() for part in packed[:3]]
    demoted, fewer = requantize_values(packed, fmt, bits)
    assert fewer == PackedFormat(fmt.key_bits, bits)
    assert all(torch.equal(a, b) for a, b in zip(demoted[:3], keys_before))
    assert_within_bound(unpack_page_values(demoted, fewer), unpack_page_values(packed, fmt), -1, bits, False)
    saved = sum(part.nbytes for part in packed) - sum(part.nbytes for part in demoted)
    assert saved == 3 * 2 * 64 * d * (fmt.value_bits - bits) // 8


def test_fp8_pages_cannot_be_demoted(random):
    fmt = FORMATS["fp8"]
    with pytest.raises(ValueError, match="fp8"):
        requantize_values(pack_pages(*torch.randn(2, 1, 64, 64, generator=random), fmt), fmt, 4)


@ANY_PAGE
@given(pages=contents(), logical=st.sampled_from([1, 8, 16, 32, 64]))
def test_bounds_hold_and_are_the_closest_in_float16(pages, logical):
    keys, _ = pages
    minimum, maximum = bounds(keys, logical)
    exact = keys.double().clamp(-LARGEST, LARGEST).unflatten(-2, (64 // logical, logical)).numpy()
    low, high = exact.min(-2), exact.max(-2)
    for bound in (minimum, maximum):
        assert bound.dtype == torch.float16
        assert bound.shape == low.shape
        assert bound.isfinite().all()
    assert (minimum.double().numpy() <= low).all()
    assert (maximum.double().numpy() >= high).all()
    with np.errstate(over="ignore"):
        assert (np.nextafter(minimum.numpy(), np.float16(np.inf)) > low).all()
        assert (np.nextafter(maximum.numpy(), np.float16(-np.inf)) < high).all()


@ANY_PAGE
@given(pages=contents(), logical=st.sampled_from([1, 8, 16, 32, 64]))
def test_summaries_are_mean_and_deviation(pages, logical):
    keys, _ = pages
    exact = keys.double().clamp(-LARGEST, LARGEST).unflatten(-2, (64 // logical, logical)).numpy()
    noise = 2.0**-18 * np.abs(exact).max(-2)  # float32 sums of up to 64 entries
    for got, expected in zip(summarize(keys, logical), (exact.mean(-2), exact.std(-2))):
        assert got.dtype == torch.float16
        assert got.shape == expected.shape
        error = np.abs(got.double().numpy() - expected)
        assert (error <= 2.0**-11 * np.abs(expected) + 2.0**-25 + noise).all()  # NaN and infinity fail


def test_first_and_last_two_layers_stay_at_8_bits_in_the_low_bit_formats():
    for name in ("k4v4", "k3v3", "k3v2", "k2v2"):
        got = [layer_format(name, layer, 7) for layer in range(7)]
        assert got == [FORMATS["k8v8"]] * 2 + [FORMATS[name]] * 3 + [FORMATS["k8v8"]] * 2
    for name in ("fp8", "k8v8", "k8v4"):
        assert {layer_format(name, layer, 7) for layer in range(7)} == {FORMATS[name]}
    assert {layer_format("k2v2", layer, 3) for layer in range(3)} == {FORMATS["k8v8"]}


def test_wide_layers_keep_8_bit_keys_beside_the_values_of_the_format():
    for name in ("k4v4", "k3v3", "k3v2", "k2v2"):
        got = [layer_format(name, layer, 7, (0, 3)) for layer in range(7)]
        eight, wide = FORMATS["k8v8"], PackedFormat(8, FORMATS[name].value_bits)
        assert got == [eight, eight, FORMATS[name], wide, FORMATS[name], eight, eight]
    for name in ("fp8", "k8v8", "k8v4"):
        assert {layer_format(name, layer, 7, (0, 3)) for layer in range(7)} == {FORMATS[name]}


def test_wrong_use_is_refused_by_name():
    page = torch.zeros(1, 64, 64)
    with pytest.raises(ValueError, match="key_bits: got 5"):
        PackedFormat(5, 4)
    with pytest.raises(ValueError, match="value_bits: got 4 in a float8"):
        PackedFormat(8, 4, float8=True)
    with pytest.raises(ValueError, match="name: got 'k1v1'"):
        layer_format("k1v1", 0, 4)
    with pytest.raises(ValueError, match="layer: got 4"):
        layer_format("k4v4", 4, 4)
    with pytest.raises(ValueError, match="d: got 60"):
        bytes_per_page(FORMATS["k4v4"], 60)
    with pytest.raises(ValueError, match="d: got 60"):
        pack_pages(page[..., :60], page[..., :60], FORMATS["k4v4"])
    with pytest.raises(ValueError, match="keys: got shape"):
        pack_pages(page[:, :63], page[:, :63], FORMATS["k4v4"])
    with pytest.raises(ValueError, match="rotated_values: got shape"):
        pack_pages(page, page[..., :32], FORMATS["k4v4"])
    with pytest.raises(ValueError, match="out: got shape"):
        unpack_page_keys(empty_pages(FORMATS["k3v3"], (1,), 64), FORMATS["k3v3"], torch.empty(1, 64, 32))
    with pytest.raises(ValueError, match="logical: got 24"):
        summarize(page, 24)
    with pytest.raises(ValueError, match="keys: got shape"):
        bounds(page[:, :63])


@pytest.mark.parametrize("d", [64, 96, 128])
def test_hadamard_is_its_own_inverse_and_keeps_lengths(d, random):
    x = torch.randn(3, 5, d, generator=random)
    turned = hadamard(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hadamard(turned), x, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(turned, x, atol=0.1)


@pytest.mark.parametrize("name", ["k8v4", "k3v3", "k2v2"])
def test_rotation_saves_values_with_one_large_entry(name, random):
    fmt = FORMATS[name]
    values = torch.randn(4, 64, 64, generator=random)
    values[..., 5] += 40
    plain = unpack_page_values(pack_pages(values, values, fmt), fmt) - values
    rotated = hadamard(unpack_page_values(pack_pages(values, hadamard(values), fmt), fmt)) - values
    assert rotated.norm() < 0.7 * plain.norm()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fp8"])
def test_constant_groups_come_back(name):
    constant = torch.full((1, 64, 8), 3.5)
    packed = pack_pages(constant, constant, FORMATS[name])
    assert torch.equal(unpack_page_keys(packed, FORMATS[name]), constant)
    assert torch.equal(unpack_page_values(packed, FORMATS[name]), constant)
