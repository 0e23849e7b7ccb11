"""Prefill and partial attention against plain float64 attention over all keys."""

import pytest
import torch

from kernels.partial_attention import merge_attention, partial_attention
from kernels.partial_attention import reference as partial_reference
from kernels.prefill_attention import prefill_attention
from kernels.prefill_attention import reference as prefill_reference


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int) -> torch.Tensor:
    """q [t, heads, d] at positions first, first + 1, ...; k and v [kv_heads, n, d] -> float64 [t, heads, d]."""
    group = q.shape[1] // k.shape[0]
    k, v = (x.double().repeat_interleave(group, 0) for x in (k, v))
    scores = q.double().transpose(0, 1) @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    future = torch.arange(k.shape[1])[None, :] > first + torch.arange(q.shape[0])[:, None]
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ v).transpose(0, 1)


def ratio(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert not got.isnan().any()
    return float((got.double() - expected).norm() / expected.norm())


@pytest.fixture(params=["flash", "products"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "flash":
        if not partial_reference.flash_is_available():
            pytest.skip("this torch has no CPU flash attention")
    else:
        monkeypatch.setattr(partial_reference, "flash_is_available", lambda: False)
        monkeypatch.setattr(partial_reference, "_PRODUCT_KEYS", 300)
    return request.param


@pytest.mark.parametrize("past", [0, 1, 64, 700, 1300])
@pytest.mark.parametrize(("tokens", "group"), [(1, 4), (63, 1), (256, 2), (530, 3)])
def test_prefill_attention(path, past, tokens, group, random, monkeypatch):
    monkeypatch.setattr(prefill_reference, "_PAST_KEYS", 512)
    q = torch.randn(tokens, 2 * group, 64, generator=random)
    k, v = (torch.randn(2, past + tokens, 64, generator=random) for _ in range(2))
    polls = []
    got = prefill_attention(q, k, v, 0.125, lambda: polls.append(1))
    assert ratio(got, exact(q, k, v, past)) < 1e-5
    assert (len(polls) > 0) == (past > 0 or tokens > 256)


def test_prefill_gives_up_when_told(random):
    q, k = torch.randn(4, 2, 64, generator=random), torch.randn(2, 100, 64, generator=random)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefill_attention(q, k, k, 0.125, stop)


def test_log_sum_exp(path, random):
    q, k = torch.randn(2, 5, 64, generator=random), torch.randn(2, 900, 64, generator=random)
    expected = (q.double() @ k.double().transpose(1, 2) * 0.125).logsumexp(-1)
    _, lse = partial_attention(q, k, k, 0.125)
    assert ratio(lse, expected) < 1e-6


def test_merge_gives_far_parts_no_weight(random):
    out, other = torch.randn(1, 1, 8, generator=random), torch.randn(1, 1, 8, generator=random)
    merged = merge_attention([(out, torch.tensor([[0.0]])), (other, torch.tensor([[-torch.inf]]))])
    assert torch.equal(merged, out)
