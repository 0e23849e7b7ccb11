"""Stored KV pages into their places in one launch, however many tensors a cache consists of.

A program copies one page of one row of one tensor. Where that lies is an address in a table, so that a launch need not
name the tensors.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.place_pages.reference import PageRows

_WORDS = 512


class PageTable:
    """Addresses of `places`, which must stay where they are. ValueError where a size is no multiple of 2 bytes.

    `word`: 4 where all sizes are multiples of it, else 2.
    """

    def __init__(self, places: Sequence[PageRows]) -> None:
        self.word = 4
        for place in places:
            strides = place.page_bytes | place.tensor.stride(0) * place.tensor.element_size() | place.tensor.data_ptr()
            self.word = 2 if strides % 4 else self.word
        rows, offset = [], 0
        for place in places:
            tensor, size = place.tensor, place.page_bytes
            stride = tensor.stride(0) * tensor.element_size()
            if (size | stride | tensor.data_ptr()) % 2 or (tensor.shape[0] and not tensor[0].is_contiguous()):
                raise ValueError(f"places: got pages of {size} bytes, rows {stride} apart, need whole multiples of 2")
            for row in range(tensor.shape[0]):
                rows.append((tensor.data_ptr() + row * stride, size // self.word, offset // self.word))
                offset += size
        self.page_bytes = offset  # of all rows
        self._rows = torch.tensor(rows, dtype=torch.int64, device=places[0].tensor.device)

    def place(self, payloads: torch.Tensor, pages: int, skip: int, first: int, count: int) -> None:
        """As `kernels.place_pages.place_pages`, for payloads at multiples of a word. ValueError if they are not."""
        if not self.fits(payloads):
            raise ValueError(f"payloads: got rows {payloads.stride(0)} bytes apart, need multiples of {self.word}")
        for done in range(0, count, 65535):  # the most that a grid has in its second dimension
            some = min(count - done, 65535)
            _place_kernel[(self._rows.shape[0], some)](
                payloads, self._rows, payloads.stride(0) // self.word, pages, skip + done, first + done,
                WORD=self.word, WORDS=_WORDS, num_warps=4,  # type: ignore[reportCallIssue]
            )  # fmt: skip

    def fits(self, payloads: torch.Tensor) -> bool:
        """Whether they lie at multiples of a word."""
        return payloads.stride(1) == 1 and not (payloads.stride(0) | payloads.data_ptr()) % self.word


@triton.jit
def _place_kernel(payloads, table, payload_words, pages, skip, first, WORD: tl.constexpr, WORDS: tl.constexpr):
    entry = table + tl.program_id(0).to(tl.int64) * 3
    address, words, offset = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    page, at = first + tl.program_id(1).to(tl.int64), skip + tl.program_id(1).to(tl.int64)
    source = payloads.to(tl.pointer_type(tl.int32 if WORD == 4 else tl.int16), bitcast=True)
    source += (at // pages) * payload_words + offset * pages + (at % pages) * words
    target = (address + page * words * WORD).to(tl.pointer_type(tl.int32 if WORD == 4 else tl.int16))
    each = tl.arange(0, WORDS)
    for start in range(0, words, WORDS):
        inside = start + each < words
        tl.store(target + start + each, tl.load(source + start + each, inside, 0), inside)
