"""The block index against a brute-force reading of the mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.block_index import BlockIndex, check_index, from_mask, reference, to_mask


@st.composite
def masks(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 40)))
    seed, share = draw(st.integers(0, 2**32)), draw(st.floats(0, 1))
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def brute_force(mask: torch.Tensor) -> tuple[list[int], list[int]]:
    offsets, pages = [0], []
    for head in mask.tolist():
        for row in head:
            pages += [page for page, listed in enumerate(row) if listed]
            offsets.append(len(pages))
    return offsets, pages


@settings(max_examples=150, deadline=None)
@given(masks())
def test_index_lists_what_the_mask_holds_on_all_paths(mask: torch.Tensor) -> None:
    offsets, pages = brute_force(mask)
    for capacity in (None, mask.numel(), len(pages), "torch"):  # a capacity is what other devices use
        index = reference.from_mask(mask) if capacity == "torch" else from_mask(mask, capacity)
        capacity = None if capacity == "torch" else capacity
        assert index.offsets.dtype == index.pages.dtype == torch.int32
        assert index.offsets.tolist() == offsets
        assert index.pages[: len(pages)].tolist() == pages
        assert index.pages.shape[0] == (len(pages) if capacity is None else capacity)
        assert torch.equal(to_mask(index, *mask.shape), mask)
        if mask.any(-1).all():
            check_index(index, *mask.shape)


def test_a_row_of_the_index_is_head_times_blocks_plus_block() -> None:
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    mask[..., 0] = True
    mask[1, 0, 4] = True
    index = from_mask(mask)
    assert index.pages[index.offsets[3] : index.offsets[4]].tolist() == [0, 4]


def test_an_expanded_mask_is_listed_like_its_copy() -> None:
    mask = (torch.arange(9) % 2 == 0).expand(3, 2, -1)
    assert from_mask(mask).pages.tolist() == [0, 2, 4, 6, 8] * 6


def index(offsets: list[int], pages: list[int]) -> BlockIndex:
    return BlockIndex(torch.tensor(offsets, dtype=torch.int32), torch.tensor(pages, dtype=torch.int32))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (index([0, 1, 1], [0]), "mine: no page for KV head 0, query block 1"),
        (index([0, 1, 2], [0, 4]), "mine: page 4 is out of range for KV head 0, query block 1, need 0 to 3"),
        (index([0, 1, 2], [-1, 1]), "mine: page -1 is out of range for KV head 0, query block 0"),
        (index([0, 1, 2], [2, 1]), "mine: page 2 lies after KV head 0, query block 0, which ends in page 1"),
        (index([0, 1, 3], [0, 2, 1]), "mine: pages are not ascending for KV head 0, query block 1"),
        (index([0, 1, 3], [0, 1, 1]), "mine: pages are not ascending for KV head 0, query block 1"),
        (index([0, 1], [0]), "mine: 2 offsets, need 3 for 2 rows"),
        (index([1, 2, 3], [0, 0, 0]), "mine: offsets must rise from 0"),
        (index([0, 2, 1], [0, 1]), "mine: offsets must rise from 0"),
        (index([0, 1, 9], [0, 1]), "mine: offsets must rise from 0"),
        (BlockIndex(torch.tensor([0, 1, 2]), torch.tensor([0, 1])), "mine: offsets is int64"),
    ],
)
def test_a_wrong_index_is_named(wrong: BlockIndex, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_index(wrong, 1, 2, 4, torch.tensor([1, 3]), "mine")
    assert str(caught.value).startswith(message)


def test_a_capacity_that_is_too_small_does_not_go_unnoticed() -> None:
    mask = torch.ones(1, 2, 4, dtype=torch.bool)
    short = from_mask(mask, capacity=5)
    assert short.pages.tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(ValueError, match="offsets must rise"):
        check_index(short, 1, 2, 4)
