"""Settings refuse impossible values, and config.json's fields are honoured or refused by name."""

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, RopeScaling, Sampling
from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights.hf_config import parse_config
from engine.weights.rope_settings import from_factors, llama3_factors

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 480,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 512}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}


def parse(fields: dict[str, Any], generation: dict[str, Any] | None = None):
    return parse_config(fields, generation or {}, "tiny")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: RopeScaling("spiral"), "kind"),  # type: ignore[arg-type]
        (lambda: RopeScaling("linear", factor=0.5), "factor"),
        (lambda: RopeScaling("linear", factor=float("nan")), "factor"),
        (lambda: RopeScaling("llama3", factor=8.0), "low_freq_factor"),
        (lambda: RopeScaling("llama3", 8.0, 8192, 4.0, 1.0), "high_freq_factor"),
        (lambda: RopeScaling("factors", factors=(1.0, 0.0)), "factors"),
        (lambda: RopeScaling("yarn", 2.0, factors=(1.0,)), "factors"),
        (lambda: EngineConfig(Path("m"), context=0), "context"),
        (lambda: EngineConfig(Path("m"), kv_format="k9v9"), "kv_format"),  # type: ignore[arg-type]
        (lambda: EngineConfig(Path("m"), threads=True), "threads"),
        (lambda: Sampling(temperature=-0.1), "temperature"),
        (lambda: Sampling(top_p=0.0), "top_p"),
        (lambda: Sampling(min_p=1.5), "min_p"),
        (lambda: Sampling(stop=("",)), "stop"),
        (lambda: Sampling(max_tokens=0), "max_tokens"),
    ],
)
def test_impossible_values_name_the_field(make, field):
    with pytest.raises(ValueError, match=rf"^{field}: got .*, need "):
        make()


def test_a_llama_config():
    config = parse(LLAMA, {"eos_token_id": 7})
    assert (config.family, config.head_dim, config.kv_heads) == ("llama", 16, 2)
    assert (config.eos_ids, config.bos_id, config.rope_theta) == ((2, 3, 7), 1, 10000.0)
    assert config.rope_scaling == RopeScaling()
    assert not config.tied_embeddings
    assert not config.qkv_bias


def test_families_bring_their_flags():
    assert parse(QWEN2).qkv_bias
    assert not parse(QWEN2).qk_norm
    assert parse(QWEN3).qk_norm
    assert parse(QWEN3).head_dim == 32
    assert parse({**QWEN3, "head_dim": None}).head_dim == 128
    assert parse(MISTRAL).family == "mistral"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({**LLAMA, "attention_bias": True}, "attention_bias"),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({**LLAMA, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({**LLAMA, "sliding_window": 1024}, "sliding_window"),
        ({**LLAMA, "layer_types": ["full_attention", "chunked_attention"] * 2}, "layer_types"),
        ({**LLAMA, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({**LLAMA, "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({**LLAMA, "attention_sinks": 4}, "attention_sinks"),
        ({**LLAMA, "logits_scaling": 8.0}, "logits_scaling"),
        ({**LLAMA, "num_local_experts": 8}, "num_local_experts"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({**LLAMA, "rope_interleaved": True}, "rope_interleaved"),
        ({**LLAMA, "rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "longrope"),
        ({**LLAMA, "rope_scaling": {"type": "su"}}, "su"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0, "attention_factor": 2.0}}, "attention_factor"),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate"),
        ({key: value for key, value in MISTRAL.items() if key != "sliding_window"} | {"max_position_embeddings": 32768},
         "sliding_window 4096"),
        ({**QWEN2, "use_sliding_window": True, "max_window_layers": 2}, "sliding_window 512"),
        ({**QWEN2, "layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types"),
        ({**QWEN3, "attention_bias": True}, "attention_bias"),
        ({**LLAMA, "architectures": ["Gemma2ForCausalLM"]}, "Gemma2ForCausalLM"),
        ({**LLAMA, "architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ],
)  # fmt: skip
def test_what_changes_attention_is_refused_by_name(fields, named):
    with pytest.raises(UnsupportedModelError) as caught:
        parse(fields)
    assert named in caught.value.message
    assert "Qwen3" in caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        {**QWEN2, "use_sliding_window": False},
        {**QWEN2, "use_sliding_window": True, "max_window_layers": 4},
        {**QWEN2, "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 2048},
        {**QWEN3, "layer_types": ["full_attention"] * 4, "use_sliding_window": False},
        {**MISTRAL, "sliding_window": 2048},
        {**LLAMA, "attention_dropout": 0.1, "rope_interleaved": False, "pretraining_tp": 1, "pruned_heads": {}},
        {**LLAMA, "attn_logit_softcapping": None, "num_local_experts": 0},
    ],
)
def test_settings_without_effect_are_accepted(fields):
    assert parse(fields).native_context == 2048


def test_rope_settings_of_both_layouts_agree():
    yarn = {"factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 16.0}
    old = parse({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "yarn", **yarn}})
    new = parse({**LLAMA, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **yarn}})
    assert old == new
    assert old.rope_theta == 5e5
    assert old.rope_scaling == RopeScaling("yarn", 4.0, 512, beta_fast=16.0)
    assert old.native_context == 2048


def test_native_context_counts_the_models_own_scaling():
    linear = parse({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert (linear.native_context, linear.rope_scaling.original_context) == (8192, 2048)
    dynamic = parse({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert (dynamic.native_context, dynamic.rope_scaling.original_context) == (4096, 2048)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama = parse({**LLAMA, "rope_scaling": {**llama3, "original_max_position_embeddings": 256}})
    assert (llama.native_context, llama.rope_scaling.original_context) == (2048, 256)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"hidden_size": None},
        {"hidden_size": "64"},
        {"num_hidden_layers": -1},
        {"num_key_value_heads": 3},
        {"head_dim": 15},
        {"rms_norm_eps": 0},
        {"eos_token_id": "2"},
        {"eos_token_id": 480},
        {"rope_scaling": [1]},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": "2"}},
    ],
)
def test_a_config_that_cannot_be_is_a_bad_file(spoiled):
    with pytest.raises(ModelFileError):
        parse({**LLAMA, **spoiled})


def test_llama3_factors_of_gguf_are_recognised():
    scaling = RopeScaling("llama3", 32.0, 8192, 1.0, 4.0)
    assert from_factors(llama3_factors(scaling, 5e5, 128), 5e5, 128) == scaling
    assert from_factors([1.0] * 64, 5e5, 128) == RopeScaling()
    other = [1.0, 2.0, 3.5, 4.0]
    assert from_factors(other, 1e4, 8) == RopeScaling("factors", factors=tuple(other))
