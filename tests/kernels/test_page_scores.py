"""Page scores against loops in float64."""

import pytest
import torch

from kernels import cpu_jit
from kernels.kv_codec import bounds, summarize
from kernels.page_scores import mean_std_scores, min_max_scores, reference

SHAPES = [(3, 1, 3, 64, 5, 4), (2, 4, 48, 32, 5, 4), (1, 2, 1, 16, 1, 1), (2, 1, 8, 128, 3, 2)]


def inputs(shape: tuple[int, ...], random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kv_heads, blocks, rows, d, pages, logical = shape
    q = torch.randn(kv_heads, blocks, rows, d, generator=random)
    first, second = (torch.randn(kv_heads, pages, logical, d, generator=random).half() for _ in range(2))
    return q, first, second


def loops(q: torch.Tensor, first: torch.Tensor, second: torch.Tensor, kind: str) -> torch.Tensor:
    q, first, second = q.double(), first.double(), second.double()
    out = torch.empty(q.shape[0], q.shape[1], first.shape[1], dtype=torch.double)
    for head in range(out.shape[0]):
        for block in range(out.shape[1]):
            for page in range(out.shape[2]):
                best = -float("inf")
                for row in q[head, block]:
                    for a, b in zip(first[head, page], second[head, page]):
                        parts = row * a + row.abs() * b if kind == "mean_std" else torch.maximum(row * a, row * b)
                        best = max(best, float(parts.sum()))
                out[head, block, page] = best
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["mean_std", "min_max"])
def test_scores_are_those_of_the_formula(shape: tuple[int, ...], kind: str, random: torch.Generator) -> None:
    q, first, second = inputs(shape, random)
    first, second = (first, second.abs()) if kind == "mean_std" else (first.minimum(second), first.maximum(second))
    score = mean_std_scores if kind == "mean_std" else min_max_scores
    expected = loops(q, first, second, kind)
    for types in (torch.float16, torch.float32):
        scores = score(q, first.to(types), second.to(types))
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-4)


def test_compiled_and_torch_agree(random: torch.Generator) -> None:
    if not cpu_jit.available():
        pytest.skip(cpu_jit.unavailable_reason())
    from kernels.page_scores import cpu

    for pages in (7, 1500):  # the second one runs on all threads
        q, mean, std = inputs((2, 1, 3, 64, pages, 4), random)
        expected = reference.largest(q, q.abs(), mean, std)
        torch.testing.assert_close(cpu.largest(q, q.abs(), mean, std), expected, rtol=1e-5, atol=1e-4)


def test_large_products_are_cut_into_slabs(random: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    q, mean, std = inputs((2, 7, 16, 32, 6, 4), random)
    whole = reference.largest(q, q.abs(), mean, std)
    monkeypatch.setattr(reference, "_SLAB", 2 * 2 * 16 * 6 * 4)  # two blocks a slab, and a last one alone
    torch.testing.assert_close(reference.largest(q, q.abs(), mean, std), whole)


def test_a_view_with_gaps_scores_as_its_copy(random: torch.Generator) -> None:
    q, mean, std = inputs((3, 1, 3, 64, 10, 4), random)
    assert torch.equal(mean_std_scores(q, mean[:, :6], std[:, :6]), mean_std_scores(q, mean, std)[..., :6])


def test_min_max_bounds_every_key(random: torch.Generator) -> None:
    keys = torch.randn(2, 5, 64, 32, generator=random) * 3
    q = torch.randn(2, 3, 4, 32, generator=random)
    true = torch.einsum("hbrd,hptd->hbrpt", q, keys).amax(dim=(2, 4))
    assert (min_max_scores(q, *bounds(keys)) >= true - 1e-3).all()


def test_mean_std_finds_the_page_with_the_matching_key(random: torch.Generator) -> None:
    keys = torch.randn(1, 50, 64, 64, generator=random)
    q = torch.randn(1, 1, 1, 64, generator=random)
    keys[0, 31, 5] = 4 * q[0, 0, 0]
    assert int(mean_std_scores(q, *summarize(keys)).argmax()) == 31


@pytest.mark.parametrize("score", [mean_std_scores, min_max_scores])
@pytest.mark.parametrize("rows", [2, 48])
def test_a_poisoned_page_leaves_the_others_alone(score, rows: int, random: torch.Generator) -> None:
    q, first, second = inputs((2, 1, rows, 32, 8, 4), random)
    clean = score(q, first, second)
    first[:, 5:], second[:, 5:] = float("nan"), float("nan")
    assert torch.equal(score(q, first, second)[..., :5], clean[..., :5])
