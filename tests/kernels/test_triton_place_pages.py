"""Stored KV pages find their places in one launch as they do tensor by tensor, and nothing else is written."""

import pytest
import torch

from kernels.place_pages import PageRows, place_pages

pytest.importorskip("triton")

from kernels.place_pages.triton import PageTable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [  # rows, shape and type of a unit, units of a page
    (3, (12,), torch.uint8, 1),
    (2, (5, 8), torch.bfloat16, 4),
    (0, (16,), torch.float16, 1),
    (1, (600,), torch.float32, 1),
]
ODD = [(2, (1,), torch.float16, 1), *SHAPES]  # fp8: a page's values have one scale, so words of 2 bytes
CAPACITY = 9  # pages


def places(fill: int, shapes=SHAPES) -> list[PageRows]:
    """Tensors of `fill` bytes, the one in bf16 a part of a larger one: its rows stand apart."""
    found = []
    for rows, shape, dtype, units in shapes:
        count = CAPACITY * units * torch.empty(0, dtype=dtype).element_size()
        for extent in shape:
            count *= extent
        apart = 64 if dtype == torch.bfloat16 else 0
        memory = torch.full((rows, count + apart), fill, dtype=torch.uint8, device=DEVICE)
        tensor = memory.view(dtype)[:, : count // dtype.itemsize].unflatten(1, (CAPACITY * units, *shape))
        found.append(PageRows(tensor, units))
    return found


def as_bytes(all_places: list[PageRows]) -> list[torch.Tensor]:
    return [place.tensor.contiguous().view(torch.uint8) for place in all_places]


@pytest.mark.parametrize(
    ("payloads", "pages", "skip", "first", "count"), [(3, 2, 0, 1, 6), (4, 1, 1, 6, 3), (1, 4, 2, 0, 2)]
)
@pytest.mark.parametrize("behind", [0, 20])
@pytest.mark.parametrize(("shapes", "word"), [(SHAPES, 4), (ODD, 2)])
def test_as_tensor_by_tensor(random, payloads, pages, skip, first, count, behind, shapes, word) -> None:
    expected, got = places(85, shapes), places(85, shapes)
    size = pages * sum(place.tensor.shape[0] * place.page_bytes for place in expected)
    data = torch.randint(0, 256, (payloads, size + behind), generator=random, dtype=torch.uint8).to(DEVICE)
    place_pages(data[:, :size], pages, expected, skip, first, count)
    table = PageTable(got)
    assert (table.page_bytes * pages, table.word) == (size, word)
    table.place(data[:, :size], pages, skip, first, count)
    for one, other, untouched in zip(as_bytes(expected), as_bytes(got), as_bytes(places(85, shapes))):
        assert torch.equal(one, other)
        assert one.numel() == 0 or not torch.equal(one, untouched)


def test_the_reference_by_hand() -> None:
    place = PageRows(torch.zeros(2, 4, 1, dtype=torch.uint8), 1)
    payload = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.uint8)  # two pages of two rows each
    place_pages(payload, 2, [place], 1, 0, 3)
    assert place.tensor[..., 0].tolist() == [[2, 5, 6, 0], [4, 7, 8, 0]]


def test_what_is_not_whole_words_is_refused() -> None:
    with pytest.raises(ValueError, match="places"):
        PageTable([PageRows(torch.zeros(2, 4, 3, dtype=torch.uint8, device=DEVICE), 1)])
    table = PageTable([PageRows(torch.zeros(2, 4, 4, dtype=torch.uint8, device=DEVICE), 1)])
    with pytest.raises(ValueError, match="payloads"):
        table.place(torch.zeros(2, 9, dtype=torch.uint8, device=DEVICE), 1, 0, 0, 2)
