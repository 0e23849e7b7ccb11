"""The Triton prefill kernel against float64 attention over exactly the keys that each query may see.

Without a card the same tests run under Triton's interpreter, with few and small shapes.
"""

from dataclasses import replace

import pytest
import torch

from kernels.block_index import PAGE, BlockIndex, from_mask
from kernels.prefill_attention import sparse_prefill_attention

pytest.importorskip("triton")
from kernels.prefill_attention import triton as kernel

device = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = kernel.Config(rows=32, keys=64, num_warps=4, num_stages=2)


def cut(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """(first, end) of each query block of a chunk."""
    firsts = range(start - start % size, end, size)
    return [(max(first, start), min(first + size, end)) for first in firsts]


def exact(q, k, v, scale: float, seen: torch.Tensor | None = None) -> torch.Tensor:
    """float64 attention, `seen` bool [kv_heads, t, n] besides causality."""
    tokens, length = q.shape[0], k.shape[1]
    group = q.shape[1] // k.shape[0]
    causal = torch.arange(length) <= torch.arange(length - tokens, length)[:, None]
    seen = causal if seen is None else (causal & seen.cpu()).repeat_interleave(group, 0)
    q, k, v = (x.cpu().double() for x in (q.transpose(0, 1), k, v))
    k, v = (x.repeat_interleave(group, 0).nan_to_num() for x in (k, v))
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def plain(q, k, v, scale: float, seen: torch.Tensor | None = None) -> torch.Tensor:
    """The same by torch in the tensors' own dtype, weights rounded to it before the second product."""
    weights = exact(q, k, torch.eye(k.shape[1]).expand(k.shape[0], -1, -1), scale, seen).to(q.dtype)
    values = v.cpu().repeat_interleave(q.shape[1] // v.shape[0], 0).nan_to_num()
    return (weights.transpose(0, 1).float() @ values.float()).to(q.dtype).transpose(0, 1)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert not got.isnan().any()
    return float((got.cpu().double() - expected).norm() / expected.norm())


def random_inputs(generator, tokens: int, past: int, kv_heads: int, group: int, dim: int, dtype):
    q = torch.randn(tokens, kv_heads * group, dim, generator=generator)
    k, v = (torch.randn(kv_heads, past + tokens, dim, generator=generator) for _ in range(2))
    return [x.to(device, dtype) for x in (q * 1.5, k, v)]


def random_lists(generator, kv_heads: int, blocks: list[tuple[int, int]], share: float = 0.5):
    """A random index, its own pages listed or not by chance -> (index, bool [kv_heads, t, n] that a query may see)."""
    start, length = blocks[0][0], blocks[-1][1]
    pages = -(-length // PAGE)
    chosen = torch.rand(kv_heads, len(blocks), pages, generator=generator) < share
    seen = torch.zeros(kv_heads, length - start, pages, dtype=torch.bool)
    for number, (first, end) in enumerate(blocks):
        chosen[:, number, (end - 1) // PAGE + 1 :] = False
        seen[:, first - start : end - start] = chosen[:, number, None]
        seen[:, first - start : end - start, first // PAGE : (end - 1) // PAGE + 1] = True
    index = from_mask(chosen, capacity=int(chosen.sum()) + 3)
    index.pages[int(chosen.sum()) :] = 2**30  # what lies behind the lists means nothing
    seen = seen.repeat_interleave(PAGE, 2)[:, :, :length]
    return BlockIndex(*(x.to(device) for x in index)), seen


@pytest.fixture(params=["descriptors", "pointers"])
def descriptors(request: pytest.FixtureRequest) -> bool:
    if request.param == "descriptors" and device == "cuda" and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("this card has no tensor memory accelerator")
    return request.param == "descriptors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("use_index", [False, True])
def test_accuracy(use_index, dtype, random):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("Triton's interpreter cannot multiply bfloat16 matrices")
    start, tokens, dim = 200, 70, 64
    q, k, v = random_inputs(random, tokens, start, 2, 4, dim, dtype)
    index, seen = random_lists(random, 2, cut(start, start + tokens, 64)) if use_index else (None, None)
    expected = exact(q, k, v, dim**-0.5, seen)
    got = error(kernel.prefill_attention(q, k, v, index, dim**-0.5, 64, config=SMALL), expected)
    assert got < (2e-6 if dtype == torch.float32 else 0.005)
    if dtype != torch.float32:
        assert got <= 2 * error(plain(q, k, v, dim**-0.5, seen), expected)


@pytest.mark.parametrize(("dim", "group"), [(64, 1), (80, 3), (96, 7), (128, 8), (256, 4)])
@pytest.mark.parametrize("use_index", [False, True])
def test_shapes(dim, group, use_index, descriptors, random):
    start, tokens, kv_heads = 135, 37, 2 if group < 4 else 1
    config = replace(SMALL, descriptors=descriptors)
    q, k, v = random_inputs(random, tokens, start, kv_heads, group, dim, torch.float16)
    index, seen = random_lists(random, kv_heads, cut(start, start + tokens, 128)) if use_index else (None, None)
    got = kernel.prefill_attention(q, k, v, index, dim**-0.5, config=config)
    assert error(got, exact(q, k, v, dim**-0.5, seen)) < 0.002


@pytest.mark.parametrize("query_block", [32, 64, 96])
@pytest.mark.parametrize(("start", "tokens"), [(0, 1), (0, 110), (63, 2), (200, 5), (97, 70)])
def test_blocks(start, tokens, query_block, random):
    """Chunks that begin and end anywhere; a page half before the block is attended up to it."""
    q, k, v = random_inputs(random, tokens, start, 2, 2, 64, torch.float32)
    blocks = cut(start, start + tokens, query_block)
    index, seen = random_lists(random, 2, blocks)
    got = kernel.prefill_attention(q, k, v, index, 0.125, query_block, config=SMALL)
    assert error(got, exact(q, k, v, 0.125, seen)) < 2e-6
    if device == "cpu":
        assert error(got, sparse_prefill_attention(q, k, v, index, blocks, 0.125).double()) < 2e-6


@pytest.mark.parametrize(("keys", "use_index"), [(16, True), (32, False), (32, True), (128, False), (128, True)])
def test_steps(keys, use_index, descriptors, random):
    """Steps of less than a page and of more."""
    config = replace(SMALL, keys=keys, descriptors=descriptors)
    q, k, v = random_inputs(random, 45, 320, 1, 4, 64, torch.float16)
    index, seen = random_lists(random, 1, cut(320, 365, 32)) if use_index else (None, None)
    got = kernel.prefill_attention(q, k, v, index, 0.125, 32, config=config)
    assert error(got, exact(q, k, v, 0.125, seen)) < 0.002


def test_empty_and_full_lists_in_one_launch(random):
    """A head whose blocks list nothing sees its own pages only; one that lists everything is dense, bit for bit."""
    q, k, v = random_inputs(random, 70, 260, 2, 4, 64, torch.float16)
    mask = torch.zeros(2, len(cut(260, 330, 64)), 6, dtype=torch.bool)
    mask[1] = torch.arange(6) <= torch.tensor([(end - 1) // PAGE for _, end in cut(260, 330, 64)])[:, None]
    index = BlockIndex(*(x.to(device) for x in from_mask(mask)))
    got = kernel.prefill_attention(q, k, v, index, 0.125, 64, config=SMALL)
    seen = mask.repeat_interleave(PAGE, 2)[..., :330]
    own = torch.arange(330) // 64 == (torch.arange(260, 330) // 64)[:, None]
    seen = torch.stack([own, torch.ones_like(own)])
    assert error(got, exact(q, k, v, 0.125, seen)) < 0.002
    dense = kernel.prefill_attention(q, k, v, None, 0.125, 64, config=SMALL)
    assert error(got[:, 4:], dense[:, 4:].cpu().double()) < 0.001


def test_strides_and_output(descriptors, random):
    """K and V as parts of a larger workspace whose other tokens are NaN, q and out as parts of larger tensors."""
    q, k, v = random_inputs(random, 40, 200, 2, 4, 64, torch.float16)
    workspace = torch.full((2, 2, 300, 128), torch.nan, dtype=torch.float16, device=device)
    workspace[0, :, :240, :64], workspace[1, :, :240, 64:] = k, v
    index, seen = random_lists(random, 2, cut(200, 240, 128), share=0.6)
    lost = ~(seen.any(1).to(device))
    workspace[0, :, :240, :64][lost] = torch.nan
    workspace[1, :, :240, 64:][lost] = torch.nan
    wide = torch.full((40, 16, 64), torch.nan, dtype=torch.float16, device=device)
    wide[:, ::2] = q
    out = torch.full((40, 8, 96), 7.0, dtype=torch.float16, device=device)
    views = wide[:, ::2], workspace[0, :, :240, :64], workspace[1, :, :240, 64:]
    got = kernel.prefill_attention(
        *views, index, 0.125, out=out[..., 16:80], config=replace(SMALL, descriptors=descriptors)
    )
    assert got.data_ptr() == out[..., 16:80].data_ptr()
    assert error(got, exact(q, k, v, 0.125, seen)) < 0.002
    assert (out[..., :16] == 7).all()
    assert (out[..., 80:] == 7).all()


def test_an_unaligned_workspace_needs_no_descriptors(random):
    q, k, v = random_inputs(random, 20, 70, 1, 2, 64, torch.float16)
    odd = torch.zeros(1, 90, 65, dtype=torch.float16, device=device)
    odd[..., 1:] = k
    got = kernel.prefill_attention(q, odd[..., 1:], v, None, 0.125, config=replace(SMALL, descriptors=True))
    assert error(got, exact(q, k, v, 0.125)) < 0.002


def test_offsets_past_the_capacity_are_not_followed(random):
    q, k, v = random_inputs(random, 64, 192, 1, 2, 64, torch.float16)
    index = BlockIndex(
        torch.tensor([0, 900], dtype=torch.int32, device=device), torch.tensor([0, 2], dtype=torch.int32, device=device)
    )
    seen = torch.ones(1, 64, 256, dtype=torch.bool)
    seen[..., 64:128] = False
    got = kernel.prefill_attention(q, k, v, index, 0.125, config=SMALL)
    assert error(got, exact(q, k, v, 0.125, seen)) < 0.002


@pytest.mark.gpu
@pytest.mark.skipif(device == "cpu", reason="needs a CUDA card")
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("use_index", [False, True])
def test_the_cards_own_configuration(use_index, dim, descriptors, random):
    """The configuration that this card runs, over more keys; twenty repeats give the same bits."""
    start, tokens = 3000, 517
    config = kernel.configuration(torch.cuda.get_device_capability(), dim, 2)
    config = replace(config, descriptors=descriptors)
    q, k, v = random_inputs(random, tokens, start, 2, 4, dim, torch.bfloat16)
    index, seen = random_lists(random, 2, cut(start, start + tokens, 128), 0.3) if use_index else (None, None)
    expected = exact(q, k, v, dim**-0.5, seen)
    got = kernel.prefill_attention(q, k, v, index, dim**-0.5, config=config)
    assert error(got, expected) < 0.005
    assert error(got, expected) <= 2 * error(plain(q, k, v, dim**-0.5, seen), expected)
    for _ in range(20):
        assert torch.equal(got, kernel.prefill_attention(q, k, v, index, dim**-0.5, config=config))


@pytest.mark.gpu
@pytest.mark.skipif(device == "cpu", reason="needs a CUDA card")
def test_past_two_to_the_31_elements(descriptors, random):
    """The last head of a workspace begins 2^31 elements into it; all that no list names is NaN."""
    length, dim = 2**20, 128
    k, v = (torch.full((18, length, dim), torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    index, seen = random_lists(random, 1, cut(length - 100, length, 128), 0.01)
    used = seen.any(1)[0].to(device)
    q, *small = random_inputs(random, 100, int(used.sum()) - 100, 1, 4, dim, torch.bfloat16)
    k[-1, used], v[-1, used] = small[0][0], small[1][0]
    k, v = k[-1:], v[-1:]
    config = replace(kernel.configuration(torch.cuda.get_device_capability(), dim, 2), descriptors=descriptors)
    got = kernel.prefill_attention(q, k, v, index, dim**-0.5, config=config)
    assert error(got, exact(q, *small, dim**-0.5)) < 0.005
