"""Stored KV pages into their places in torch: one copy for each tensor."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


class PageRows(NamedTuple):
    """A tensor of KV pages, [rows, units, ...], the units of a row side by side; a page is `units` of them."""

    tensor: torch.Tensor
    units: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in one row."""
        return self.units * self.tensor.element_size() * math.prod(self.tensor.shape[2:])


def place_pages(
    payloads: torch.Tensor, pages: int, places: Sequence[PageRows], skip: int, first: int, count: int
) -> None:
    """Write `count` pages into pages `first` on of all `places`, beginning with page `skip` of the payloads.

    `payloads`: uint8 [n, bytes]; each holds `pages` pages: for each place in turn [rows, pages, bytes of a page in a
    row]. Bytes behind that are not read.
    """
    offset = 0
    for place in places:
        tensor, units = place
        size = tensor.shape[0] * pages * place.page_bytes
        part = payloads[:, offset : offset + size].unflatten(1, (tensor.shape[0], pages, place.page_bytes))
        part = part.transpose(0, 1).flatten(1, 2)[:, skip : skip + count]
        target = tensor[:, first * units : (first + count) * units]
        target.copy_(part.flatten(1).contiguous().view(tensor.dtype).view(target.shape))
        offset += size
