"""The Triton page scores of a decode token against float64, through page tables, with NaN wherever nothing may be read.

Without a card they run under Triton's interpreter.
"""

import pytest
import torch

pytest.importorskip("triton")

from kernels.page_scores.triton import score_pages

LARGEST_ERROR = 1e-5 if torch.cuda.is_available() else 2e-6  # tensor cores cut off what they add: 3e-6 was seen
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN = float("nan")
# (kv_heads, group, d, logical pages of a page, tokens)
SHAPES = [
    (2, 4, 128, 4, 64 * 21 + 3),
    (1, 1, 64, 4, 64 * 3 + 64),
    (2, 3, 80, 2, 64 * 5 + 1),
    (1, 7, 96, 16, 64 * 6),
    (1, 8, 256, 4, 64 * 9 + 30),
    (1, 4, 64, 64, 64 * 2 + 1),
    (1, 4, 128, 1, 64 * 70 + 5),
]


def number(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


class Case:
    """Summaries behind a page table that mixes exact and packed places; rows that no page has are NaN."""

    def __init__(self, shape: tuple[int, ...], kind: str, dtype: torch.dtype, random: torch.Generator) -> None:
        kv_heads, group, d, logical, length = shape
        self.kind, self.length, self.known = kind, length, (length - 1) // 64
        capacity = self.known + 5
        self.exact = self.known + 3
        rows = torch.randperm(self.exact + capacity, generator=random)[: self.known]
        places = torch.where(rows < self.exact, rows, self.exact - 1 - rows)
        self.q = torch.randn(kv_heads * group, d, generator=random).mul_(3).to(dtype)
        first, second = (torch.randn(kv_heads, self.known, logical, d, generator=random).half() for _ in range(2))
        if kind == "mean_std":
            second = second.abs()
        else:
            first, second = first.minimum(second), first.maximum(second)
        self.first, self.second = (
            torch.full((kv_heads, self.exact + capacity, logical, d), NAN, dtype=torch.half, device=DEVICE)
            for _ in range(2)
        )
        self.first[:, rows], self.second[:, rows] = first.to(DEVICE), second.to(DEVICE)
        self.rows = rows
        table = torch.full((capacity,), 1 << 30, dtype=torch.int32)
        table[: self.known] = places
        self.table = table.to(DEVICE)
        self.scores = torch.full((kv_heads, capacity), NAN, device=DEVICE)

    def run(self, budget: int = 0, streaming: torch.Tensor | None = None) -> torch.Tensor:
        score_pages(
            self.q.to(DEVICE), self.first, self.second, self.kind, self.table, self.exact, number(self.length),
            number(budget), streaming, self.scores,
        )  # fmt: skip
        return self.scores.cpu()

    def expected(self) -> torch.Tensor:
        """float64 [kv_heads, known]"""
        first, second = (x.cpu()[:, self.rows].double().flatten(1, 2) for x in (self.first, self.second))
        q = self.q.double().view(first.shape[0], -1, first.shape[2])
        q0, q1 = (q, q.abs()) if self.kind == "mean_std" else (q.clamp(max=0), q.clamp(min=0))
        scores = q0 @ first.mT + q1 @ second.mT  # [kv_heads, group, known * logical]
        return scores.amax(1).unflatten(1, (self.known, -1)).amax(2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["mean_std", "min_max"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scores_are_those_of_the_formula(
    shape: tuple[int, ...], kind: str, dtype: torch.dtype, random: torch.Generator
) -> None:
    case = Case(shape, kind, dtype, random)
    scores, expected = case.run(), case.expected()
    assert scores[:, case.known :].isnan().all()
    scores = scores[:, : case.known].double()
    assert (scores - expected).norm() <= LARGEST_ERROR * expected.norm()
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", [2.0**-120, 1e-30, 1e-4, 7e4, 1e30])
def test_queries_of_any_size_keep_their_precision(size: float, random: torch.Generator) -> None:
    case = Case(SHAPES[0], "mean_std", torch.float32, random)
    case.q *= size
    scores, expected = case.run()[:, : case.known].double(), case.expected()
    assert (scores - expected).norm() <= LARGEST_ERROR * expected.norm()


def test_one_small_head_among_large_ones_still_counts(random: torch.Generator) -> None:
    case = Case(SHAPES[0], "mean_std", torch.float32, random)
    case.q[1:4] *= 1e-6
    case.q[0] = -1e3
    case.first[:] = 1
    case.second[:] = 0  # head 0 scores far below 0, the small heads decide
    scores, expected = case.run()[0, : case.known].double(), case.expected()[0]
    assert (scores - expected).norm() <= LARGEST_ERROR * expected.norm()


def test_nothing_is_computed_where_the_budget_holds_all_pages(random: torch.Generator) -> None:
    case = Case(SHAPES[0], "mean_std", torch.bfloat16, random)
    pages = -(-case.length // 64)
    assert case.run(budget=pages).isnan().all()
    assert case.run(budget=pages - 1)[:, : case.known].isfinite().all()


def test_streaming_heads_are_skipped(random: torch.Generator) -> None:
    case = Case(SHAPES[0], "mean_std", torch.bfloat16, random)
    scores = case.run(streaming=torch.tensor([1, 0], dtype=torch.uint8, device=DEVICE))
    assert scores[0].isnan().all()
    assert scores[1, : case.known].isfinite().all()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 129])
def test_only_pages_with_a_summary_are_scored(length: int, random: torch.Generator) -> None:
    case = Case(SHAPES[1], "mean_std", torch.bfloat16, random)
    case.length = length
    written = case.run().isfinite()[0]
    assert written.tolist() == [page < (length - 1) // 64 for page in range(written.shape[0])]


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_a_nan_makes_the_score_of_its_page_alone_infinite(shape: tuple[int, ...], random: torch.Generator) -> None:
    case = Case(shape, "mean_std", torch.bfloat16, random)
    clean = case.run().clone()
    case.second[0, case.rows[2], -1, 5] = NAN
    poisoned = case.run()
    assert poisoned[0, 2] == float("inf")
    poisoned[0, 2] = clean[0, 2]
    assert torch.equal(poisoned.nan_to_num(7), clean.nan_to_num(7))


def test_wrong_arguments_are_refused(random: torch.Generator) -> None:
    case = Case(SHAPES[1], "mean_std", torch.bfloat16, random)
    case.kind = "mean"
    with pytest.raises(ValueError, match=r"kind: got 'mean'"):
        case.run()
    case.kind, case.first = "mean_std", case.first.mT.contiguous().mT
    with pytest.raises(ValueError, match="contiguous"):
        case.run()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA card")
def test_many_pages_give_the_same_bits_every_time(random: torch.Generator) -> None:
    case = Case((8, 4, 128, 4, 131072), "mean_std", torch.bfloat16, random)
    first = case.run()
    assert (first[:, : case.known].double() - case.expected()).norm() <= LARGEST_ERROR * case.expected().norm()
    for _ in range(20):
        case.scores.fill_(NAN)
        assert torch.equal(case.run()[:, : case.known], first[:, : case.known])


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA card")
def test_summaries_past_two_to_the_31_elements(random: torch.Generator) -> None:
    rows = 2**31 // (4 * 128) + 100  # of each of two heads
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GB of free memory")
    case = Case(SHAPES[0], "mean_std", torch.bfloat16, random)
    expected = case.run().clone()
    at = rows - 1 - torch.arange(case.known, device=DEVICE)
    for name in ("first", "second"):
        small = getattr(case, name)[:, case.rows.to(DEVICE)]
        large = torch.full((2, rows, 4, 128), NAN, dtype=torch.half, device=DEVICE)
        large[:, at] = small
        setattr(case, name, large)
    case.exact = rows - 50
    case.table[: case.known] = torch.where(at < case.exact, at, case.exact - 1 - at).int()
    case.scores.fill_(NAN)
    assert torch.equal(case.run().nan_to_num(7), expected.nan_to_num(7))
