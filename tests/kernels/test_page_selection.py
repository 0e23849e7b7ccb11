"""Page selection against sorting in Python."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import cpu_jit
from kernels.page_selection import reference, select_pages

LARGEST = torch.finfo(torch.float32).max
SPECIAL = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, LARGEST, -LARGEST])


def oracle(scores: list[float], forced: list[bool], allowed: list[bool], count: int) -> list[bool]:
    def worth(page: int) -> float:
        score = scores[page]
        return LARGEST if math.isnan(score) else min(max(score, -LARGEST), LARGEST)

    chosen = {page for page in range(len(scores)) if forced[page] and allowed[page]}
    rest = sorted((p for p in range(len(scores)) if allowed[p] and p not in chosen), key=lambda p: (-worth(p), p))
    chosen.update(rest[: max(0, count - len(chosen))])
    return [page in chosen for page in range(len(scores))]


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    shape = 1, draw(st.integers(1, 4)), draw(st.integers(1, 24))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    special = torch.rand(shape, generator=random) < draw(st.sampled_from([0, 0.5, 1]))
    scores = SPECIAL[torch.randint(len(SPECIAL), shape, generator=random)].where(
        special, torch.randn(shape, generator=random)
    )
    kinds = torch.randint(draw(st.integers(3, 12)), shape, generator=random)
    scored = draw(st.integers(0, shape[2]))
    return scores[..., :scored], kinds[0] == 0, kinds[0] != 1, draw(st.integers(0, 30))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_selection_is_that_of_the_sorted_oracle(case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]) -> None:
    scores, forced, allowed, count = case
    before = scores.clone()
    for select in (select_pages, reference.select_pages):
        selected = select(scores, forced, allowed, count)
        assert torch.equal(scores.nan_to_num(7), before.nan_to_num(7))
        unscored = torch.arange(allowed.shape[1]) >= scores.shape[2]
        for row in range(scores.shape[1]):
            padded = [*scores[0, row].tolist(), *[0.0] * int(unscored.sum())]
            parts = padded, (forced | unscored)[row].tolist(), allowed[row].tolist()
            assert selected[0, row].tolist() == oracle(*parts, count)


@pytest.mark.parametrize("value", [0.0, -3.5, math.inf, -math.inf, math.nan])
def test_of_equal_scores_the_lower_pages_win(value: float) -> None:
    scores = torch.full((2, 3, 100), value)
    forced = torch.zeros(3, 100, dtype=torch.bool)
    forced[:, -1] = True
    selected = select_pages(scores, forced, torch.ones(3, 100, dtype=torch.bool), 5)
    assert (selected == torch.tensor([True] * 4 + [False] * 95 + [True])).all()


def test_everything_allowed_is_selected_when_it_fits(random: torch.Generator) -> None:
    scores = torch.randn(2, 3, 40, generator=random)
    allowed = torch.arange(40) < torch.tensor([[1], [8], [9]])
    selected = select_pages(scores, torch.zeros(3, 40, dtype=torch.bool), allowed, 8)
    assert torch.equal(selected[:, :2], allowed[:2].expand(2, -1, -1))
    assert selected[:, 2].sum(-1).tolist() == [8, 8]


def test_scores_of_later_pages_have_no_influence(random: torch.Generator) -> None:
    scores = torch.randn(3, 4, 64, generator=random)
    allowed = torch.arange(64) <= torch.tensor([[20], [30], [40], [50]])
    forced = (torch.arange(64) == 0).expand(4, -1)
    clean = select_pages(scores, forced, allowed, 10)
    for poison in (math.nan, math.inf, -math.inf):
        assert torch.equal(select_pages(scores.where(allowed, poison), forced, allowed, 10), clean)


def test_compiled_and_torch_agree(random: torch.Generator) -> None:
    if not cpu_jit.available():
        pytest.skip(cpu_jit.unavailable_reason())
    from kernels.page_selection import cpu

    for pages, count in ((130, 32), (2000, 64), (5, 9)):
        scores = torch.randn(3, 4, pages, generator=random).mul_(4).round_()  # many ties
        allowed = torch.arange(pages) < torch.tensor([[pages // 3], [pages - 1], [pages], [1]])
        forced = (torch.arange(pages) % 50 == 0).expand(4, -1)
        expected = reference.select_pages(scores, forced, allowed, count)
        assert torch.equal(cpu.select_pages(scores, forced, allowed, count), expected)
