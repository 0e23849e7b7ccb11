"""Coarse keys and the page scores that they give, in Triton, against torch and float64.

Without a card they run under Triton's interpreter.
"""

import pytest
import torch

pytest.importorskip("triton")

from kernels.kv_codec import coarse, coarse_keys
from kernels.kv_codec.coarse import coarse_codes
from kernels.kv_codec.triton_coarse import copy_coarsely_into, logical_statistics
from kernels.page_scores.triton_coarse import score_pages_by_coarse_keys

CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CARD else "cpu")
NAN = float("nan")
# (kv_heads, group, d, tokens)
SHAPES = [
    (2, 4, 128, 64 * 21 + 3),
    (1, 1, 64, 64 * 3 + 64),
    (2, 3, 80, 64 * 5 + 1),
    (1, 7, 96, 64 * 6),
    (1, 8, 256, 64 * 9 + 30),
    (1, 12, 64, 64 * 2 + 1),
]


def number(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


class Case:
    """Summaries behind a page table that mixes exact and packed places; rows that no page has are NaN."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> None:
        kv_heads, group, d, length = shape
        self.length, self.known, self.factor = length, (length - 1) // 64, d**-0.5
        capacity = self.known + 5
        self.exact = self.known + 3
        rows = torch.randperm(self.exact + capacity, generator=random)[: self.known]
        places = torch.where(rows < self.exact, rows, self.exact - 1 - rows)
        self.rows, total = rows.to(DEVICE), self.exact + capacity
        self.q = torch.randn(kv_heads * group, d, generator=random).mul_(3).to(dtype)
        spread = torch.randn(kv_heads, 1, d, generator=random).exp()
        self.codes = torch.randint(0, 256, (kv_heads, total, 64, d // 4), dtype=torch.uint8, generator=random).to(
            DEVICE
        )
        self.scale, self.minimum = (torch.full((kv_heads, total, d), NAN).half().to(DEVICE) for _ in range(2))
        self.minimum[:, self.rows] = (torch.randn(kv_heads, self.known, d, generator=random) * spread).half().to(DEVICE)
        self.scale[:, self.rows] = (torch.rand(kv_heads, self.known, d, generator=random) * spread).half().to(DEVICE)
        table = torch.full((capacity,), 1 << 30, dtype=torch.int32)
        table[: self.known] = places
        self.table = table.to(DEVICE)
        self.scores = torch.full((kv_heads, capacity), NAN, device=DEVICE)

    def run(self, budget: int = 0, streaming: torch.Tensor | None = None) -> torch.Tensor:
        score_pages_by_coarse_keys(
            self.q.to(DEVICE), self.codes, self.scale, self.minimum, self.factor, self.table, self.exact,
            number(self.length), number(budget), streaming, self.scores,
        )  # fmt: skip
        return self.scores.cpu()

    def expected(self) -> torch.Tensor:
        """float64 [kv_heads, known]"""
        codes, scale, minimum = (x[:, self.rows].cpu() for x in (self.codes, self.scale, self.minimum))
        q = self.q.double().view(codes.shape[0], -1, scale.shape[2]) * self.factor
        out = torch.empty(codes.shape[:2], dtype=torch.double)
        for page in range(codes.shape[1]):
            keys = minimum[:, page, None].double() + coarse_codes(codes[:, page]) * scale[:, page, None].double()
            out[:, page] = (q @ keys.mT).logsumexp(2).amax(1)
        return out

    def assert_close(self, scores: torch.Tensor) -> None:
        """A query of bfloat16 has its products with the scales rounded to float16."""
        exact = self.expected()
        error = (scores[:, : self.known].double() - exact).abs()
        allowed = 1e-5 * exact.abs().max() + 1e-5
        if self.q.dtype == torch.bfloat16:
            q = self.q.double().view(exact.shape[0], -1, 1, self.q.shape[1])
            size = (q * self.scale[:, None, self.rows].cpu().double()).abs().sum(-1).max()
            allowed += 3 * 2**-12 * self.factor * size
        assert error.max() <= allowed


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scores_are_those_of_the_formula(shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> None:
    case = Case(shape, dtype, random)
    scores = case.run()
    assert scores[:, case.known :].isnan().all()
    case.assert_close(scores)


@pytest.mark.parametrize("size", [0.0, 2.0**-120, 1e-30, 1e-4, 7e4, 1e30])
def test_queries_of_any_size_keep_their_precision(size: float, random: torch.Generator) -> None:
    case = Case(SHAPES[2], torch.float32, random)
    case.q *= size
    case.assert_close(case.run())


def test_one_small_head_among_large_ones_still_counts(random: torch.Generator) -> None:
    case = Case(SHAPES[0], torch.float32, random)
    case.q[1:4] *= 1e-6
    case.q[0] = -1e3
    case.minimum[:] = 1
    case.scale[:] = 0  # head 0 scores far below 0, the small heads decide
    scores, expected = case.run()[0, : case.known].double(), case.expected()[0]
    assert float((scores - expected).abs().max()) <= 1e-5


def test_nothing_is_computed_where_the_budget_holds_all_pages(random: torch.Generator) -> None:
    case = Case(SHAPES[0], torch.bfloat16, random)
    pages = -(-case.length // 64)
    assert case.run(budget=pages).isnan().all()
    assert case.run(budget=pages - 1)[:, : case.known].isfinite().all()


def test_streaming_heads_are_skipped(random: torch.Generator) -> None:
    case = Case(SHAPES[0], torch.bfloat16, random)
    scores = case.run(streaming=torch.tensor([1, 0], dtype=torch.uint8, device=DEVICE))
    assert scores[0].isnan().all()
    assert scores[1, : case.known].isfinite().all()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 129])
def test_only_pages_with_a_summary_are_scored(length: int, random: torch.Generator) -> None:
    case = Case(SHAPES[1], torch.bfloat16, random)
    case.length = length
    written = case.run().isfinite()[0]
    assert written.tolist() == [page < (length - 1) // 64 for page in range(written.shape[0])]


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
@pytest.mark.parametrize("name", ["scale", "minimum"])
def test_a_nan_makes_the_score_of_its_page_alone_infinite(
    shape: tuple[int, ...], name: str, random: torch.Generator
) -> None:
    case = Case(shape, torch.bfloat16, random)
    clean = case.run().clone()
    getattr(case, name)[0, case.rows[2], 5] = NAN
    poisoned = case.run()
    assert poisoned[0, 2] == float("inf")
    poisoned[0, 2] = clean[0, 2]
    assert torch.equal(poisoned.nan_to_num(7), clean.nan_to_num(7))


def test_summaries_that_are_not_contiguous_are_refused(random: torch.Generator) -> None:
    case = Case(SHAPES[1], torch.bfloat16, random)
    case.minimum = case.minimum.mT.contiguous().mT
    with pytest.raises(ValueError, match="minimum: got strides"):
        case.run()


def keys_of(heads: int, pages: int, d: int, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    spread = torch.randn(heads, 1, d, generator=random).exp()
    return torch.randn(heads, pages * 64, d, generator=random).mul_(spread).add_(spread).to(dtype)


def summaries(heads: int, rows: int, d: int) -> tuple[torch.Tensor, ...]:
    codes = torch.full((heads, rows, 64, d // 4), 85, dtype=torch.uint8, device=DEVICE)
    return codes, *(torch.full((heads, rows, d), NAN, dtype=torch.half, device=DEVICE) for _ in range(2))


@pytest.mark.parametrize("d", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_copies_of_pages_are_those_of_torch(d: int, dtype: torch.dtype, random: torch.Generator) -> None:
    keys = keys_of(2, 5, d, dtype, random)
    keys[0, 70, 3], keys[1, 200, 2], keys[0, 65, 7] = 1e30, float("-inf"), 0.0
    keys[1, 64:128, 5] = 2.0
    stored = summaries(2, 6, d)
    copy_coarsely_into(keys.to(DEVICE), torch.tensor([3, -1, 1], device=DEVICE), *stored)
    for got, expected in zip(stored, coarse_keys(keys.unflatten(1, (-1, 64))[:, [3, 1]])):
        assert torch.equal(got[:, [3, 1]].cpu(), expected)
    others = [0, 2, 4, 5]
    assert (stored[0][:, others] == 85).all()
    assert all(x[:, others].isnan().all() for x in stored[1:])


def test_a_nan_stays_in_its_channel(random: torch.Generator) -> None:
    keys = keys_of(1, 1, 64, torch.float32, random)
    keys[0, 9, 11] = NAN
    stored = summaries(1, 1, 64)
    copy_coarsely_into(keys.to(DEVICE), torch.tensor([0], device=DEVICE), *stored)
    assert all(x[0, 0].isnan().nonzero().tolist() == [[11]] for x in stored[1:])


def test_no_pages_are_no_work(random: torch.Generator) -> None:
    stored, none = summaries(1, 1, 64), torch.empty(0, dtype=torch.int64, device=DEVICE)
    copy_coarsely_into(keys_of(1, 1, 64, torch.float32, random).to(DEVICE), none, *stored)
    out = torch.empty(1, 0, 4, 64, dtype=torch.half, device=DEVICE)
    logical_statistics(*stored, none, 16, out, out.clone())
    assert (stored[0] == 85).all()


@pytest.mark.parametrize("d", [16, 80, 128, 256])
@pytest.mark.parametrize("logical", [64, 16, 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_statistics_of_logical_pages(d: int, logical: int, dtype: torch.dtype, random: torch.Generator) -> None:
    summary = coarse_keys(keys_of(2, 7, d, torch.float32, random).unflatten(1, (-1, 64)))
    rows = [6, 0, 3]
    numbers = torch.tensor(rows, dtype=dtype, device=DEVICE)
    out = [torch.full((2, 3, 64 // logical, d), NAN, dtype=torch.half, device=DEVICE) for _ in range(2)]
    logical_statistics(*(x.to(DEVICE) for x in summary), numbers, logical, *out)
    for got, expected in zip(out, coarse.logical_statistics(*(x[:, rows] for x in summary), logical)):
        torch.testing.assert_close(got.cpu().float(), expected.float(), rtol=2**-10, atol=2**-24)


@pytest.mark.gpu
@pytest.mark.skipif(not CARD, reason="needs a CUDA card")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_many_pages_give_the_same_bits_every_time(dtype: torch.dtype, random: torch.Generator) -> None:
    case = Case((8, 4, 128, 131072), dtype, random)
    first = case.run()
    case.assert_close(first)
    for _ in range(20):
        case.scores.fill_(NAN)
        assert torch.equal(case.run()[:, : case.known], first[:, : case.known])


@pytest.mark.gpu
@pytest.mark.skipif(not CARD, reason="needs a CUDA card")
def test_codes_past_two_to_the_31_bytes(random: torch.Generator) -> None:
    rows = 2**31 // (64 * 32) + 100  # of each of two heads
    if torch.cuda.mem_get_info()[0] < 10 << 30:
        pytest.skip("needs 10 GB of free memory")
    case = Case(SHAPES[0], torch.bfloat16, random)
    expected = case.run().clone()
    at = rows - 1 - torch.arange(case.known, device=DEVICE)
    for name in ("codes", "scale", "minimum"):
        small = getattr(case, name)[:, case.rows]
        large = torch.empty(2, rows, *small.shape[2:], dtype=small.dtype, device=DEVICE)
        large[:, at] = small
        setattr(case, name, large)
    case.exact = rows - 50
    case.table[: case.known] = torch.where(at < case.exact, at, case.exact - 1 - at).int()
    case.scores.fill_(NAN)
    assert torch.equal(case.run().nan_to_num(7), expected.nan_to_num(7))
