"""Page scores by coarse keys against float64, compiled for the CPU and in torch."""

import pytest
import torch

from kernels import cpu_jit
from kernels.kv_codec import coarse_keys, logical_statistics
from kernels.kv_codec.coarse import coarse_codes
from kernels.page_scores import coarse_scores, mean_std_scores, reference

# kv_heads, blocks, rows, d, pages
SHAPES = [(3, 1, 3, 64, 5), (2, 2, 4, 128, 3), (1, 1, 1, 16, 1), (1, 1, 8, 256, 2), (2, 1, 7, 80, 4), (1, 1, 4, 96, 70)]


def inputs(shape: tuple[int, ...], random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """A query and the keys it is scored against, some channels of which stand out."""
    kv_heads, blocks, rows, d, pages = shape
    spread = torch.randn(kv_heads, 1, 1, d, generator=random).mul_(0.7).exp()
    centre = torch.randn(kv_heads, pages, 1, d, generator=random)
    keys = (torch.randn(kv_heads, pages, 64, d, generator=random) + centre) * spread
    return torch.randn(kv_heads, blocks, rows, d, generator=random), keys


def expected(q: torch.Tensor, summary: tuple[torch.Tensor, ...], scale: float) -> torch.Tensor:
    codes, step, minimum = summary
    keys = minimum.double()[:, :, None] + coarse_codes(codes).double() * step.double()[:, :, None]
    logits = torch.einsum("hbrd,hptd->hbrpt", q.double(), keys) * scale
    return logits.logsumexp(4).amax(2)


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_the_formula(shape: tuple[int, ...], random: torch.Generator) -> None:
    q, keys = inputs(shape, random)
    summary, scale = coarse_keys(keys), shape[3] ** -0.5
    exact = expected(q, summary, scale)
    found = [reference.coarse_scores(q, *summary, scale), coarse_scores(q, *summary, scale)]
    if cpu_jit.available():
        from kernels.page_scores import cpu_coarse

        found.append(cpu_coarse.coarse_scores(q, *summary, scale))
    for scores in found:
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores.double(), exact, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("size", [0.0, 1e-20, 30.0, 1000.0])
def test_compiled_scores_of_queries_of_any_size(size: float, random: torch.Generator) -> None:
    if not cpu_jit.available():
        pytest.skip(cpu_jit.unavailable_reason())
    from kernels.page_scores import cpu_coarse

    q, keys = inputs(SHAPES[1], random)
    summary = coarse_keys(keys)
    exact = expected(q * size, summary, 0.1)
    torch.testing.assert_close(cpu_coarse.coarse_scores(q * size, *summary, 0.1).double(), exact, rtol=2e-6, atol=2e-5)


def test_compiled_scores_are_the_same_on_one_thread_and_many(random: torch.Generator) -> None:
    if not cpu_jit.available():
        pytest.skip(cpu_jit.unavailable_reason())
    from kernels.page_scores import cpu_coarse

    q, keys = inputs((2, 1, 3, 64, 150), random)
    summary = coarse_keys(keys)
    whole = cpu_coarse.coarse_scores(q, *summary, 0.125)
    some = cpu_coarse.coarse_scores(q, *(x[:, :20] for x in summary), 0.125)  # too few pages for threads
    assert torch.equal(whole[..., :20], some)


def test_the_page_with_the_matching_key_scores_highest(random: torch.Generator) -> None:
    keys = torch.randn(1, 50, 64, 64, generator=random)
    q = torch.randn(1, 1, 1, 64, generator=random)
    keys[0, 31, 5] = 3 * q[0, 0, 0]
    summary = coarse_keys(keys)
    assert int(coarse_scores(q, *summary, 0.5).argmax()) == 31
    assert int(mean_std_scores(q, *logical_statistics(*summary)).argmax()) == 31
