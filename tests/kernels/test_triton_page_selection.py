"""The Triton page selection against the torch reference, to the page, for scores of any kind.

Without a card it runs under Triton's interpreter.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from engine.patterns import QueryBlocks
from kernels.block_index import PageLists
from kernels.page_selection.reference import select_pages
from kernels.page_selection.triton import Config, select_page_lists

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Config(chunk=32, digit=3, num_warps=4)
LARGEST = torch.finfo(torch.float32).max
SPECIAL = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, LARGEST, -LARGEST, 1e-45, -1e-45])


def number(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


def expected_mask(
    scores: torch.Tensor, length: int, budget: int, sink: int, recent: int, streaming: torch.Tensor | None
) -> torch.Tensor:
    """bool [kv_heads, pages], as the torch path of a decode step makes it."""
    blocks = QueryBlocks.decode(length - 1)
    always = blocks.oldest(sink) | blocks.newest(recent)
    known = (length - 1) // 64
    if blocks.pages <= budget:
        mask = blocks.causal.expand(scores.shape[0], -1)
    else:
        mask = select_pages(scores[:, None, :known], always | blocks.own, blocks.causal, budget)[:, 0]
    return mask if streaming is None else torch.where(streaming.bool()[:, None], always, mask)


def selected(
    scores: torch.Tensor,
    length: int,
    budget: int,
    sink: int,
    recent: int,
    streaming: torch.Tensor | None = None,
    config: Config | None = SMALL,
) -> list[list[int]]:
    """The lists of all heads. scores [kv_heads, capacity]; what has no score is made NaN first."""
    heads, capacity = scores.shape
    scores = scores.clone()
    scores[:, (length - 1) // 64 :] = math.nan
    rows = torch.full((heads,), -7, dtype=torch.int32, device=DEVICE)
    lists = PageLists(rows, rows.clone(), torch.full((heads * capacity,), -7, dtype=torch.int32, device=DEVICE))
    streams = None if streaming is None else streaming.to(DEVICE)
    select_page_lists(scores.to(DEVICE), number(length), number(budget), sink, recent, streams, lists, config)
    starts, ends, pages = (x.tolist() for x in lists)
    assert starts == [head * capacity for head in range(heads)]
    for head in range(heads):
        assert all(page == -7 for page in pages[ends[head] : (head + 1) * capacity]), "written behind the list"
    return [pages[start:end] for start, end in zip(starts, ends)]


def listed(mask: torch.Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in mask]


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, int, int, int, int, torch.Tensor | None]:
    pages = draw(st.integers(1, 80))
    length = pages * 64 - draw(st.sampled_from([0, 1, 30, 62, 63]))
    heads = draw(st.integers(1, 3))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = heads, pages + draw(st.integers(0, 40))
    special = torch.rand(shape, generator=random) < draw(st.sampled_from([0, 0.5, 1]))
    scores = torch.randn(shape, generator=random) * 2.0 ** draw(st.integers(-20, 20)) + draw(st.sampled_from([0, 40]))
    if draw(st.booleans()):
        scores.round_()  # many ties
    scores = SPECIAL[torch.randint(len(SPECIAL), shape, generator=random)].where(special, scores)
    streaming = (torch.rand(heads, generator=random) < 0.5).to(torch.uint8) if draw(st.booleans()) else None
    sink, recent = draw(st.sampled_from([0, 1, 64, 65, 300])), draw(st.sampled_from([0, 1, 2, 64, 65, 256, 5000]))
    return scores, length, draw(st.integers(0, 90)), sink, recent, streaming


@settings(max_examples=200 if DEVICE.type == "cuda" else 40, deadline=None)
@given(cases())
def test_lists_are_those_of_the_reference(case: tuple[torch.Tensor, int, int, int, int, torch.Tensor | None]) -> None:
    mask = expected_mask(*case)
    assert selected(*case) == listed(mask)


@pytest.mark.parametrize("digit", [1, 2, 4])
def test_the_digits_of_the_search_change_nothing(digit: int, random: torch.Generator) -> None:
    scores = torch.randn(2, 120, generator=random)
    scores[1] = scores[1].mul(4).round()
    for budget in (6, 110):
        arguments = scores, 120 * 64 - 5, budget, 64, 256
        config = Config(chunk=64, digit=digit, num_warps=4)
        assert selected(*arguments, config=config) == listed(expected_mask(*arguments, None))


@pytest.mark.parametrize("value", [0.0, -0.0, -3.5, math.inf, -math.inf, math.nan])
def test_of_equal_scores_the_lower_pages_win(value: float) -> None:
    chosen = selected(torch.full((2, 100), value), 100 * 64, 9, 64, 256)
    assert chosen == [[*range(5), 96, 97, 98, 99]] * 2


def test_the_chosen_configurations(random: torch.Generator) -> None:
    for capacity, pages in ((900, 800), (2100, 2040), (4300, 4250)):
        scores = torch.randn(1, capacity, generator=random)
        arguments = scores, pages * 64 - 9, 64, 64, 256
        assert selected(*arguments, config=None) == listed(expected_mask(*arguments, None))


def test_streaming_heads_read_sink_and_newest_tokens_whatever_the_budget(random: torch.Generator) -> None:
    scores = torch.randn(2, 30, generator=random)
    streaming = torch.tensor([1, 0], dtype=torch.uint8)
    for budget in (8, 30):
        first, second = selected(scores, 30 * 64, budget, 64, 256, streaming)
        assert first == [0, 26, 27, 28, 29]
        assert len(second) == budget


def test_too_little_room_is_refused() -> None:
    rows = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    lists = PageLists(rows, rows, torch.zeros(19, dtype=torch.int32, device=DEVICE))
    with pytest.raises(ValueError, match="room for 19 pages"):
        select_page_lists(torch.zeros(2, 10, device=DEVICE), number(1), number(1), 64, 256, None, lists)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA card")
@pytest.mark.parametrize("pages", [128, 2048, 8192, 16384])
def test_long_lists(pages: int, random: torch.Generator) -> None:
    scores = torch.randn(8, pages, generator=random)
    scores[4:] = scores[4:].mul(50).round()
    for budget in (max(64, pages // 32), pages // 2, pages - 1):
        arguments = scores, pages * 64 - 9, budget, 64, 256
        expected = listed(expected_mask(*arguments, None))
        for _ in range(5):
            assert selected(*arguments, config=None) == expected
