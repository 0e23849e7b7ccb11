"""Resolved frequencies against transformers' own, number by number."""

import pytest
import torch

from engine.config import ModelConfig, RopeScaling
from engine.rope import ntk_factor, resolve_rope


def model(theta: float = 500000.0, d: int = 128, context: int = 8192) -> ModelConfig:
    return ModelConfig(
        "llama", 4 * d, 1, 4, 4, d, 64, 100, 1e-5, theta, RopeScaling(), context, True, False, False, (), None
    )


CASES = {
    "default": (RopeScaling(), {}),
    "linear": (RopeScaling("linear", 4.0, 8192), {"factor": 4.0}),
    "llama3": (
        RopeScaling("llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0),
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    ),
    "yarn": (RopeScaling("yarn", 4.0, 8192), {"factor": 4.0, "original_max_position_embeddings": 8192}),
    "dynamic": (RopeScaling("dynamic", 2.0, 8192), {"factor": 2.0}),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(("theta", "d"), [(10000.0, 64), (500000.0, 128)])
def test_matches_transformers(kind, theta, d):
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling, fields = CASES[kind]
    config = transformers.LlamaConfig(
        hidden_size=4 * d, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=8192,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **fields},
    )  # fmt: skip
    context = 20000 if kind == "dynamic" else 8192
    theirs = LlamaRotaryEmbedding(config)
    cos, sin = theirs(torch.zeros(1), torch.arange(context)[None])  # resolves dynamic frequencies too
    rope = resolve_rope(model(theta, d), scaling, context)
    torch.testing.assert_close(rope.inv_freq, theirs.inv_freq, rtol=1e-6, atol=0)
    ours = rope.angles(context - 50, context)
    torch.testing.assert_close(ours[0], cos[0, -50:], rtol=0, atol=2e-3)
    torch.testing.assert_close(ours[1][:, d // 2 :], sin[0, -50:, d // 2 :], rtol=0, atol=2e-3)


def test_ntk_factor_multiplies_the_base():
    ntk = resolve_rope(model(d=64), RopeScaling("ntk", ntk_factor(4.0, 64)), 8192)
    larger = resolve_rope(model(theta=2000000.0, d=64), RopeScaling(), 8192)
    torch.testing.assert_close(ntk.inv_freq, larger.inv_freq, rtol=1e-5, atol=0)


def test_factors_divide_one_by_one():
    factors = tuple(float(i + 1) for i in range(32))
    plain = resolve_rope(model(d=64), RopeScaling(), 8192).inv_freq
    divided = resolve_rope(model(d=64), RopeScaling("factors", factors=factors), 8192).inv_freq
    torch.testing.assert_close(divided * torch.tensor(factors), plain)


def test_dynamic_does_not_move_once_resolved():
    scaling = RopeScaling("dynamic", 2.0, 8192)
    short, long = (resolve_rope(model(), scaling, context) for context in (4096, 20000))
    assert torch.equal(short.inv_freq, resolve_rope(model(), RopeScaling(), 4096).inv_freq)
    assert (long.inv_freq[1:] < short.inv_freq[1:]).all()
    assert torch.equal(long.angles(100, 101)[0], long.angles(0, 200)[0][100:101])
