"""Decode attention in Triton against float64 softmax over what the listed pages hold."""

import pytest
import torch

pytest.importorskip("triton")

from kernels.block_index import PageLists
from kernels.decode_attention import PAGE, PagedKv
from kernels.decode_attention.triton import DecodeConfig, make_scratch, paged_decode
from kernels.kv_codec import (
    FORMATS,
    PackedPages,
    hadamard,
    pack_pages,
    requantize_values,
    unpack_page_keys,
    unpack_page_values,
)

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero encountered in log2")  # numpy, under the interpreter
device = "cuda" if torch.cuda.is_available() else "cpu"


class Case:
    """A sequence whose pages lie scattered over the pools, everything else in them being NaN."""

    def __init__(self, random, name, kv_heads, d, length, kinds="", dtype=torch.bfloat16):
        """kinds: for each page e(xact), p(acked) or c(old); by default packed but for the first and the last two."""
        self.length, pages = length, -(-length // PAGE)
        packs = name in FORMATS
        kinds = kinds or ("".join("e" if i in (0, pages - 2, pages - 1) else "p" for i in range(pages)))
        kinds = kinds if packs else "e" * pages
        shape = (kv_heads, pages, PAGE, d)
        keys, values = (torch.randn(*shape, generator=random) for _ in range(2))
        keys = keys * 1.5 + 2 * torch.randn(kv_heads, 1, 1, d, generator=random)
        exact = torch.full((2, kv_heads, (pages + 2) * PAGE, d), torch.nan, dtype=dtype)
        places = torch.randperm(pages + 2, generator=random)[:pages].int()
        table = places.clone()
        keys, values = keys.to(dtype), values.to(dtype)
        self.keys, self.values = keys.double(), values.double()
        packed = cold = fmt = cold_fmt = None
        if packs:
            fmt = FORMATS[name]
            whole = pack_pages(keys, values, fmt)
            packed = _poisoned(whole, pages + 2)
            self.keys, self.values = unpack_page_keys(whole, fmt).double(), unpack_page_values(whole, fmt).double()
            if "c" in kinds:
                fewer, cold_fmt = requantize_values(whole, fmt, 2)
                cold = _poisoned(fewer, pages + 2)
        for page, kind in enumerate(kinds):
            place = int(places[page])
            if kind == "e":
                for pool, x, read in ((exact[0], keys, self.keys), (exact[1], values, self.values)):
                    pool[:, place * PAGE : place * PAGE + min(PAGE, length - page * PAGE)] = x[
                        :, page, : min(PAGE, length - page * PAGE)
                    ]
                    read[:, page] = x[:, page].double()
            elif kind == "p":
                table[page] = ~place
                _put(packed, place, whole, page)
            else:
                table[page] = ~(place + pages + 2)
                _put(cold, place, fewer, page)
                self.values[:, page] = unpack_page_values(fewer, cold_fmt)[:, page].double()
        self.rotated = packs
        self.table = table.to(device)
        self.kv = PagedKv(*exact.to(device), _move(packed), fmt, _move(cold), cold_fmt)

    def expected(self, q, lists, scale):
        """-> float64 out [tokens, heads, d], mass of each list's entries"""
        tokens, heads, d = q.shape
        kv_heads = self.keys.shape[0]
        q = q.double().cpu().view(tokens, kv_heads, -1, d)
        out, masses = torch.empty_like(q), []
        for head in range(kv_heads):
            pages = torch.tensor(lists[head])
            position = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
            k, v = self.keys[head, pages].flatten(0, 1), self.values[head, pages].flatten(0, 1)
            mass = torch.zeros(len(pages)).double()
            for token in range(tokens):
                seen = position <= self.length - tokens + token
                scores = (q[token, head] @ k.T * scale).masked_fill(~seen, -torch.inf)
                weights = scores.softmax(-1)
                out[token, head] = weights @ torch.where(seen[:, None], v, 0)
                mass += weights.unflatten(1, (-1, PAGE)).sum((0, 2))
            masses.append(mass)
        out = hadamard(out).double() if self.rotated else out
        return out.reshape(tokens, heads, d), masses

    def run(self, q, lists, scale, out_dtype=torch.float32, mass=True, config=None):
        tokens, heads, d = q.shape
        kv_heads, capacity = self.keys.shape[0], self.table.shape[0]
        scratch = make_scratch(tokens, heads, kv_heads, d, capacity, device, mass)
        out = torch.full((tokens, heads, d), torch.nan, dtype=out_dtype, device=device)
        drawn = torch.full((kv_heads, capacity), -7.0, device=device) if mass else None
        length = torch.tensor([self.length], dtype=torch.int32, device=device)
        made = None if lists is None else page_lists(lists)
        paged_decode(q.to(device), self.kv, self.table, made, length, scale, out, scratch, drawn, config)
        return out.cpu(), None if drawn is None else drawn.cpu()

    def check(self, q, lists=None, tolerance=0.004, **options):
        scale = q.shape[-1] ** -0.5
        every = [list(range(self.table.shape[0]))] * self.keys.shape[0]
        want, masses = self.expected(q, lists or every, scale)
        out, drawn = self.run(q, lists, scale, **options)
        assert not out.isnan().any()
        assert float((out.double() - want).norm() / want.norm()) < tolerance
        if drawn is None:
            return
        for row, mass in zip(drawn, masses):
            assert float((row[: len(mass)].double() - mass).norm() / mass.norm()) < tolerance
            assert (row[len(mass) :] == -7.0).all()


def _poisoned(pages: PackedPages, room: int) -> PackedPages:
    shapes = [(part.shape[0], room, *part.shape[2:]) for part in pages]
    parts = [torch.full(s, 0x7F if p.dtype == torch.uint8 else torch.nan, dtype=p.dtype) for s, p in zip(shapes, pages)]
    return PackedPages(*parts)


def _put(pool, place, pages, page):
    for stored, part in zip(pool, pages):
        stored[:, place] = part[:, page]


def _move(pages):
    return None if pages is None else PackedPages(*(part.to(device) for part in pages))


def page_lists(lists) -> PageLists:
    """With room between them that names pages far outside."""
    starts, ends, pages = [], [], []
    for row in lists:
        pages += [1 << 30] * 3
        starts.append(len(pages))
        pages += row
        ends.append(len(pages))
    return PageLists(*(torch.tensor(x, dtype=torch.int32, device=device) for x in (starts, ends, pages)))


def queries(random, tokens, heads, d, dtype=torch.bfloat16):
    return (torch.randn(tokens, heads, d, generator=random) * 1.5).to(dtype)


def on_a_card(*values):
    """Parameters too slow for the interpreter."""
    return pytest.param(*values, marks=[pytest.mark.gpu, pytest.mark.skipif(device == "cpu", reason="needs a card")])


@pytest.mark.parametrize(
    ("group", "d", "length"),
    [(1, 64, 1), (3, 80, 197), (4, 128, 64), (7, 96, 65), (8, 256, 100)]
    + [on_a_card(group, d, n) for group, d in ((1, 256), (4, 128), (7, 64), (8, 80)) for n in (63, 1000, 20000, 70001)],
)
def test_exact_pages(group, d, length, random):
    Case(random, "bf16", 2, d, length).check(queries(random, 1, 2 * group, d))


@pytest.mark.parametrize(("length", "d"), [(1, 64), (130, 80), on_a_card(5000, 128), on_a_card(3000, 256)])
def test_exact_float32_pages(length, d, random):
    """Twice as far off as plain torch at most: float32 scores are rounded too, and their exponentials show it."""
    case = Case(random, "f32", 2, d, length, dtype=torch.float32)
    q = queries(random, 1, 6, d, torch.float32)
    every = [list(range(case.table.shape[0]))] * 2
    want, _ = case.expected(q, every, d**-0.5)
    k, v = (x.float().flatten(1, 2)[:, :length].to(device) for x in (case.keys, case.values))
    weights = (q.to(device).view(2, 3, d) @ k.mT * d**-0.5).softmax(-1)
    plain = float(((weights @ v).view(1, 6, d).cpu().double() - want).norm() / want.norm())
    case.check(q, tolerance=max(2e-6, 2 * plain))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("group", "d", "length"),
    [(3, 80, 64 * 4 - 7)]
    + [on_a_card(group, d, n) for group, d in ((1, 64), (4, 128), (7, 96), (8, 256)) for n in (1, 600, 20000, 70000)],
)
def test_packed_pages_beside_exact_ones(name, group, d, length, random):
    kv_heads = 1 if device == "cpu" else 2
    Case(random, name, kv_heads, d, length).check(queries(random, 1, kv_heads * group, d))


@pytest.mark.parametrize("name", ["fp8", "k3v3", *(on_a_card(name) for name in ("k8v8", "k8v4", "k4v4", "k2v2"))])
def test_lists(name, random):
    case = Case(random, name, 3, 64, 64 * 12 - 3)
    case.check(queries(random, 1, 6, 64), [[0, 1, 7, 11], [11], [3, 5]])
    case.check(queries(random, 1, 6, 64), [[3], [2, 4], [0, 10]], mass=False)


@pytest.mark.parametrize("tokens", [2, 8, *map(on_a_card, range(3, 8))])
@pytest.mark.parametrize("name", ["bf16", "k4v4"])
def test_each_of_several_tokens_sees_what_lies_before_it(name, tokens, random):
    Case(random, name, 1, 64, 64 * 3 + 3).check(queries(random, tokens, 4, 64))


@pytest.mark.parametrize("kinds", ["epepe", "eee", "ppp", "ecpce", "ccc", *map(on_a_card, ("epcc" * 300, "ep" * 700))])
@pytest.mark.parametrize("name", ["k4v4", "k3v3"])
def test_any_mixture(name, kinds, random):
    case = Case(random, name, 1, 64, 64 * len(kinds), kinds)
    case.check(queries(random, 2, 4, 64))
    case.check(queries(random, 1, 4, 64), [[0, 2]])


@pytest.mark.parametrize(("name", "kinds"), [("k4v4", "eppepe"), ("k3v3", "ecpcep"), ("bf16", "eeeeee")])
def test_programs_that_take_one_page_or_more(name, kinds, random):
    """Lists that are as long as there are programs, or longer. On a card with many multiprocessors: also shorter."""
    few = DecodeConfig(warps=1, stages=2, programs=1, most=2 if name == "bf16" else 5)  # here 2 or 4 programs
    case = Case(random, name, 1, 64, 64 * len(kinds) - 5, kinds)
    q = queries(random, 1, 4, 64)
    case.check(q, config=few)
    case.check(q, [[0, 1, 3, 5]], config=few)


def test_float32_queries_over_packed_pages(random):
    case = Case(random, "k8v8", 1, 64, 64 * 4)
    case.check(queries(random, 1, 4, 64, torch.float32), out_dtype=torch.bfloat16)


def test_repeats_have_the_same_bits(random):
    case = Case(random, "k4v4", 2, 64, 64 * (9 if device == "cuda" else 4))
    q = queries(random, 1, 8, 64)
    first, mass = case.run(q, None, 0.125)
    case.check(q)
    for _ in range(19 if device == "cuda" else 1):
        again, drawn = case.run(q, None, 0.125)
        assert torch.equal(first, again)
        assert torch.equal(mass, drawn)


def test_one_huge_score_takes_everything(random):
    case = Case(random, "bf16", 1, 64, 6 * PAGE)
    slot = int(case.table[4]) * PAGE + 4
    case.kv.keys[0, slot] = 1000.0
    out, mass = case.run(torch.full((1, 1, 64), 50.0).bfloat16(), None, 1.0)
    torch.testing.assert_close(out[0, 0], case.kv.values[0, slot].float().cpu())
    assert mass.argmax() == 4


@pytest.mark.parametrize("name", ["bf16", "k4v4"])
@pytest.mark.parametrize("lists", [None, [[0, 3, 4], [1], [2, 4]]])
def test_masses_add_up_by_page(name, lists, random):
    """Over launches, weighed by KV head, whatever the lists' order of entries."""
    case, q = Case(random, name, 3, 64, 64 * 5 - 9), queries(random, 1, 6, 64)
    rows = lists or [list(range(5))] * 3
    _, masses = case.expected(q, rows, 0.125)
    weights, drawn = torch.tensor([1.0, 0.0, 2.0], device=device), torch.zeros(3, 5, device=device)
    length = torch.tensor([case.length], dtype=torch.int32, device=device)
    scratch, out = make_scratch(1, 6, 3, 64, 5, device, True), torch.empty(1, 6, 64, device=device)
    made = None if lists is None else page_lists(lists)
    for _ in range(2):
        paged_decode(q.to(device), case.kv, case.table, made, length, 0.125, out, scratch, drawn, weights=weights)
    want = torch.zeros(3, 5)
    for head, (pages, mass) in enumerate(zip(rows, masses)):
        want[head, pages] = 2 * float(weights[head]) * mass.float()
    torch.testing.assert_close(drawn.cpu(), want, rtol=0.01, atol=0.002)
