"""Our decoder against transformers: every family, every RoPE scaling, and the starter model."""

from pathlib import Path

import gguf
import pytest
import torch

from engine import Engine, EngineConfig, RopeScaling, Sampling, ntk_factor
from tests.engine.tiny_models import FAMILIES, gguf_name, make_model
from tests.engine.tools import all_logits, error_ratio, random_ids, tiny_engine, turn

ROPES = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def expected_logits(model, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, tied, tmp_path):
    model = make_model(family, tied=tied, max_position=512)
    engine = tiny_engine(tmp_path, model=model)
    ids = random_ids(300)
    assert error_ratio(all_logits(engine, ids, 128), expected_logits(model, ids)) < 1e-4


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_rope_scaling(family, rope, tmp_path):
    model = make_model(family, rope=ROPES[rope], max_position=256)
    context = 400 if rope == "dynamic" else None  # longer than the model's own: transformers stretches to the prompt
    engine = tiny_engine(tmp_path, model=model, context=context)
    ids = random_ids(400 if rope == "dynamic" else 250)
    assert error_ratio(all_logits(engine, ids, 64), expected_logits(model, ids)) < 1e-4


def test_ntk_is_a_larger_base(tmp_path):
    stretched = make_model("llama", rope_theta=40000.0)
    scaling = RopeScaling("ntk", factor=ntk_factor(4.0, 16))
    engine = tiny_engine(tmp_path, model=make_model("llama", rope_theta=10000.0), rope_scaling=scaling)
    ids = random_ids(200)
    assert error_ratio(all_logits(engine, ids, 64), expected_logits(stretched, ids)) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_continuation_of_64_tokens(family, tmp_path):
    model = make_model(family, max_position=512)
    model.generation_config.eos_token_id = None
    engine = tiny_engine(tmp_path, model=model)
    ids = random_ids(100)
    with torch.inference_mode():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False)[0, len(ids) :].tolist()
    ends = [i for i, id in enumerate(expected) if id in engine.tokenizer.eos_ids]
    expected = expected[: ends[0] + 1] if ends else expected
    assert turn(engine, ids, tokens=64).ids == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_decode_is_prefill(family, tmp_path):
    engine = tiny_engine(tmp_path, family)
    ids = random_ids(150)
    assert error_ratio(all_logits(engine, ids, 512, decoded=140), all_logits(engine, ids, 512)) < 1e-5


@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
def test_chunk_size_changes_nothing(chunk, tmp_path):
    engine = tiny_engine(tmp_path)
    ids = random_ids(200)
    assert error_ratio(all_logits(engine, ids, chunk), all_logits(engine, ids, 512)) < 1e-5


@pytest.mark.parametrize(("kv_format", "limit"), [("bf16", 0.02), ("k8v4", 0.15)])
def test_kv_formats_stay_close(kv_format, limit, tmp_path):
    exact, rounded = (tiny_engine(tmp_path / f, kv_format=f, model=make_model("llama")) for f in ("f32", kv_format))
    ids = random_ids(600)
    error = error_ratio(all_logits(rounded, ids, 64, decoded=70), all_logits(exact, ids, 64, decoded=70))
    assert 0 < error < limit


@pytest.fixture(scope="module")
def starter_in_transformers(starter_model: Path):
    """transformers' Llama with the file's weights, read by the gguf package: nothing of our loader is used."""
    transformers = pytest.importorskip("transformers")
    reader = gguf.GGUFReader(starter_model)
    fields = {name.split(".", 1)[1]: reader.fields[name].contents() for name in reader.fields if "llama." in name}
    config = transformers.LlamaConfig(
        hidden_size=fields["embedding_length"],
        num_hidden_layers=fields["block_count"],
        num_attention_heads=fields["attention.head_count"],
        num_key_value_heads=fields["attention.head_count_kv"],
        intermediate_size=fields["feed_forward_length"],
        vocab_size=fields["vocab_size"],
        rms_norm_eps=fields["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["rope.freq_base"]},
        max_position_embeddings=fields["context_length"],
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    stored = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.from_numpy(stored[gguf_name(name)].copy())
            if count := heads.get(name.split(".")[-2]):  # GGUF interleaves the rows that RoPE pairs
                values = values.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
            weight.copy_(values)
    return model


TEXT = "The Eiffel Tower was finished in 1889. It is 330 metres tall and stands in Paris, the capital of"


@pytest.mark.slow
def test_starter_model(starter_model, starter_in_transformers):
    engine = Engine.load(EngineConfig(starter_model, kv_format="f32", decode_weights="f32", threads=2))
    ids = engine.tokenizer.encode(TEXT * 8)
    assert error_ratio(all_logits(engine, ids, 64), expected_logits(starter_in_transformers, ids)) < 1e-4
    with torch.inference_mode():
        expected = starter_in_transformers.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=64, do_sample=False,
            eos_token_id=None, repetition_penalty=1.0,
        )[0, len(ids) :].tolist()  # fmt: skip
    assert turn(engine, ids, sampling=Sampling(max_tokens=64)).ids == expected


@pytest.mark.slow
def test_packed_starter_model_stays_close(starter_model):
    engine = Engine.load(EngineConfig(starter_model, threads=2))
    assert engine.decode_weights in ("int4", "int8")
    assert 0 < engine.decode_logit_error < 0.02
    text = turn(engine, engine.tokenizer.encode(TEXT), tokens=4).text
    assert "France" in text
