"""Decode attention, in torch and compiled, against float64 softmax over what the listed pages hold."""

import pytest
import torch

from kernels import cpu_jit
from kernels.block_index import BlockIndex
from kernels.decode_attention import PAGE, PagedKv, reference
from kernels.kv_codec import FORMATS, empty_pages, pack_pages, unpack_page_keys, unpack_page_values


@pytest.fixture(params=["torch", "compiled"])
def decode_attention(request: pytest.FixtureRequest):
    if request.param == "torch":
        return reference.decode_attention
    if not cpu_jit.available():
        pytest.skip(cpu_jit.unavailable_reason())
    from kernels.decode_attention import cpu

    return cpu.decode_attention


def index_of(lists: list[list[int]]) -> BlockIndex:
    counts = torch.tensor([0] + [len(pages) for pages in lists])
    return BlockIndex(counts.cumsum(0).int(), torch.tensor([page for pages in lists for page in pages]).int())


def dense(kv_heads: int, pages: int) -> BlockIndex:
    return index_of([list(range(pages))] * kv_heads)


def expected(q, keys, values, index, length, scale):
    """keys and values float64 [kv_heads, n, d], as the sequence has them -> float64 [heads, d], [listed]."""
    kv_heads = keys.shape[0]
    q = q.double().view(kv_heads, -1, q.shape[-1])
    out, mass, offsets = [], [], index.offsets.tolist()
    for head in range(kv_heads):
        pages = index.pages[offsets[head] : offsets[head + 1]].tolist()
        tokens = torch.cat([torch.arange(page * PAGE, min(length, page * PAGE + PAGE)) for page in pages])
        weights = (q[head] @ keys[head, tokens].T * scale).softmax(-1)
        out.append(weights @ values[head, tokens])
        mass += [weights[:, tokens // PAGE == page].sum() for page in pages]
    return torch.cat(out), torch.stack(mass)


def check(got, want, tolerance=1e-5):
    for a, b in zip(got, want):
        assert a.dtype == torch.float32
        assert not a.isnan().any()
        assert float((a.double() - b).norm() / b.norm()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("group", "d"), [(1, 64), (3, 64), (4, 128), (7, 80), (8, 96), (2, 256)])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000, 1024, 1025, 4097])
def test_dense_over_scattered_pages(decode_attention, length, group, d, dtype, random):
    pages = -(-length // PAGE)
    slots = torch.randn(2, 2, 2 * pages * PAGE, d, generator=random).to(dtype)
    table = torch.randperm(2 * pages, generator=random)[:pages].int()
    where = (table[:, None] * PAGE + torch.arange(PAGE)).flatten()[:length]
    keys, values = slots[:, :, where].double()
    used = torch.zeros(2 * pages * PAGE, dtype=torch.bool)
    used[where] = True
    slots[:, :, ~used] = torch.nan  # what is not the sequence's must not matter
    q = torch.randn(2 * group, d, generator=random)
    index = dense(2, pages)
    got = decode_attention(q, PagedKv(*slots), table, index, length, d**-0.5)
    check(got, expected(q, keys, values, index, length, d**-0.5))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("length", "d"), [(64 * 40, 64), (64 * 40 - 7, 80), (64 * 5, 128)])
def test_packed_pages_beside_exact_ones(decode_attention, name, length, d, random):
    fmt, heads, pages = FORMATS[name], 3, -(-length // PAGE)
    keys, values = (torch.randn(heads, pages, PAGE, d, generator=random) for _ in range(2))
    keys = keys * 3 + 5 * torch.randn(
        heads, 1, 1, d, generator=random
    )  # channels with means of their own, as real ones
    pool = empty_pages(fmt, (heads, pages + 3), d)
    places = torch.randperm(pages + 3, generator=random)[:pages]
    for stored, part in zip(pool, pack_pages(keys, values, fmt)):
        stored[:, places] = part
    exact = torch.randn(2, heads, 6 * PAGE, d, generator=random).bfloat16()
    table = ~places.int()
    read_keys = unpack_page_keys(pack_pages(keys, values, fmt), fmt).double()
    read_values = unpack_page_values(pack_pages(keys, values, fmt), fmt).double()
    for page, place in ((0, 4), (pages - 2, 1), (pages - 1, 5)):
        table[page] = place
        read_keys[:, page] = exact[0, :, place * PAGE : place * PAGE + PAGE].double()
        read_values[:, page] = exact[1, :, place * PAGE : place * PAGE + PAGE].double()
    q = torch.randn(heads * 2, d, generator=random) / 3
    index = index_of([list(range(pages)), [0, pages - 1], list(range(0, pages, 2))])
    got = decode_attention(q, PagedKv(*exact, pool, fmt), table, index, length, d**-0.5)
    check(got, expected(q, read_keys.flatten(1, 2), read_values.flatten(1, 2), index, length, d**-0.5))


def test_mass_adds_up_to_the_query_heads(decode_attention, random):
    kv = PagedKv(*torch.randn(2, 2, 40 * PAGE, 64, generator=random))
    _, mass = decode_attention(
        torch.randn(8, 64, generator=random), kv, torch.arange(40).int(), dense(2, 40), 2500, 0.125
    )
    torch.testing.assert_close(mass.view(2, 40).sum(1), torch.full((2,), 4.0))


def test_one_huge_score_takes_everything(decode_attention, random):
    slots = torch.randn(2, 1, 20 * PAGE, 64, generator=random)
    slots[0, 0, 900] = 1000.0
    out, mass = decode_attention(
        torch.full((1, 64), 50.0), PagedKv(*slots), torch.arange(20).int(), dense(1, 20), 1280, 1.0
    )
    torch.testing.assert_close(out[0], slots[1, 0, 900])
    assert mass.argmax() == 900 // PAGE


@pytest.mark.parametrize("name", ["bf16", "k3v3"])
def test_results_depend_on_the_list_alone(name, random):
    """The same bits wherever pages lie, whatever the number of threads, 20 times over; and a list of all is dense."""
    if not cpu_jit.available():
        pytest.skip(cpu_jit.unavailable_reason())
    from kernels.decode_attention import cpu

    pages, d = 70, 64
    keys, values = (torch.randn(3, pages, PAGE, d, generator=random) for _ in range(2))
    q = torch.randn(9, d, generator=random)
    results = []
    for repeat in range(20):
        places = torch.randperm(pages, generator=random)
        if name == "bf16":
            slots = torch.empty(2, 3, pages, PAGE, d, dtype=torch.bfloat16)
            slots[0][:, places], slots[1][:, places] = keys.bfloat16(), values.bfloat16()
            kv, table = PagedKv(*slots.flatten(2, 3)), places.int()
        else:
            pool = empty_pages(FORMATS[name], (3, pages), d)
            for stored, part in zip(pool, pack_pages(keys, values, FORMATS[name])):
                stored[:, places] = part
            exact = torch.zeros(2, 3, PAGE, d, dtype=torch.bfloat16)
            kv, table = PagedKv(*exact, pool, FORMATS[name]), ~places.int()
        cpu_jit.set_threads(1 + repeat % 2)
        results.append(cpu.decode_attention(q, kv, table, dense(3, pages), pages * PAGE - 3, 0.125))
    for out, mass in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(mass, results[0][1])
