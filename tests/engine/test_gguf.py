"""GGUF gives the same model as the Hugging Face folder: config, order of rows, every weight type, the stored codes."""

import gguf
import numpy as np
import pytest
import torch

from engine.config import RopeScaling
from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights import open_model
from engine.weights.gguf_header import TYPES, read_gguf_header
from engine.weights.names import gguf_name, huggingface_name
from tests.engine.tiny_models import FAMILIES, make_model, save_folder, write_gguf

FLOATS = ("F32", "F16", "BF16")
QUANTS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_same_model_as_the_folder(family, tied, tmp_path):
    model = make_model(family, tied=tied)
    folder = open_model(save_folder(model, tmp_path / "tiny"))
    file = open_model(write_gguf(model, tmp_path / "tiny.gguf"))
    assert set(file.names) == set(folder.names)
    for name in folder.names:
        assert torch.equal(file.tensor(name), folder.tensor(name)), name
    ours, theirs = file.config, folder.config
    for field in ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "ffn_size", "vocab_size", "rope_scaling",
                  "native_context", "tied_embeddings", "qkv_bias", "qk_norm", "eos_ids", "bos_id"):  # fmt: skip
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.rope_theta == pytest.approx(theirs.rope_theta)
    assert ours.norm_eps == pytest.approx(theirs.norm_eps)
    assert ours.family == ("llama" if family == "mistral" else family)


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTS, *K_QUANTS])
def test_every_type_is_what_the_gguf_package_reads(kind, tmp_path):
    # 512 columns in K-quants' blocks of 256; llama, so that q and k go through the change of row order.
    model = make_model("llama", hidden_size=256, ffn_size=512, layers=1)
    path = write_gguf(model, tmp_path / "tiny.gguf", tensor_type=kind)
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    source = open_model(path)
    for name in source.names:
        stored = reference[gguf_name(name)]
        expected = gguf.quants.dequantize(np.asarray(stored.data), stored.tensor_type).astype(np.float32)
        if name.endswith((".q", ".k")):
            heads = 4 if name.endswith(".q") else 2
            expected = expected.reshape(heads, -1, 2, expected.shape[1]).swapaxes(1, 2).reshape(expected.shape)
        weight = source.tensor(name)
        assert weight.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(
            stored.tensor_type.name, torch.float32
        )
        np.testing.assert_array_equal(weight.float().numpy(), expected)
        if kind in FLOATS:
            saved = model.state_dict()[huggingface_name(name)]
            assert torch.equal(weight, saved.to(weight.dtype)), name


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_stored_codes_make_the_same_weights(kind, tmp_path):
    source = open_model(write_gguf(make_model("llama"), tmp_path / "tiny.gguf", tensor_type=kind))
    bits = 8 if kind == "Q8_0" else 4
    for name in source.names:
        quantized, weight = source.quantized(name), source.tensor(name)
        if weight.dim() == 1:
            assert quantized is None
            continue
        assert quantized is not None
        assert (quantized.bits, quantized.group_size) == (bits, 32)
        assert quantized.codes.shape == weight.shape
        assert quantized.codes.dtype == (torch.int8 if bits == 8 else torch.uint8)
        assert quantized.scales.shape == quantized.minimums.shape == (weight.shape[0], weight.shape[1] // 32)
        if bits == 4:
            assert quantized.codes.max() <= 15
        torch.testing.assert_close(quantized.dequantize(), weight, rtol=1e-6, atol=1e-6)


def test_types_without_groups_of_32_have_no_codes(tmp_path):
    source = open_model(write_gguf(make_model("qwen2"), tmp_path / "tiny.gguf", tensor_type="Q5_1"))
    assert all(source.quantized(name) is None for name in source.names)
    with pytest.raises(KeyError):
        source.quantized("layers.7.q")


def test_our_table_of_types_is_the_packages():
    for number, (name, block, size) in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, block, size)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("rope", "expected", "context"),
    [
        ({"rope_type": "linear", "factor": 4.0}, RopeScaling("linear", 4.0, 256), 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
         RopeScaling("yarn", 4.0, 64), 256),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}, RopeScaling("llama3", 8.0, 8192, 1.0, 4.0), 256),
    ],
)  # fmt: skip
def test_rope_scaling_as_in_the_folder(family, rope, expected, context, tmp_path):
    model = make_model(family, rope=rope, rope_theta=500000.0)
    file = open_model(write_gguf(model, tmp_path / "tiny.gguf")).config
    folder = open_model(save_folder(model, tmp_path / "tiny")).config
    assert file.rope_scaling == folder.rope_scaling == expected
    assert file.native_context == folder.native_context == context


def test_unpublished_rope_factors_are_handed_through(tmp_path):
    rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
            "original_max_position_embeddings": 100}  # fmt: skip
    scaling = open_model(write_gguf(make_model("llama", rope=rope), tmp_path / "tiny.gguf")).config.rope_scaling
    assert scaling.kind == "factors"
    assert scaling.factors is not None
    assert scaling.factors[0] == 1.0
    assert scaling.factors[-1] == pytest.approx(4.0)
    assert len(scaling.factors) == 8


@pytest.mark.parametrize(
    ("arrange", "named"),
    [
        (lambda w: w.add_sliding_window(128), "attention.sliding_window"),
        (lambda w: w.add_attn_logit_softcapping(50.0), "attn_logit_softcapping"),
        (lambda w: w.add_final_logit_softcapping(30.0), "final_logit_softcapping"),
        (lambda w: w.add_logit_scale(0.5), "logit_scale"),
        (lambda w: w.add_expert_count(8), "expert_count"),
        (lambda w: w.add_clamp_kqv(8.0), "clamp_kqv"),
        (lambda w: w.add_causal_attention(False), "attention.causal"),
        (lambda w: w.add_rope_dimension_count(8), "rope.dimension_count"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "longrope"),
        (lambda w: w.add_bool("qwen2.attention.shiny_new_thing", True), "shiny_new_thing"),
        (lambda w: w.add_uint16("split.count", 3), "3 parts"),
        (lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, np.float32)), "attn_sinks"),
        (lambda w: w.add_tensor("blk.0.ffn_gate.bias", np.zeros(96, np.float32)), "ffn_gate.bias"),
    ],
)
def test_what_changes_attention_is_refused_by_name(arrange, named, tmp_path):
    path = write_gguf(make_model("qwen2"), tmp_path / "tiny.gguf", arrange=arrange)
    with pytest.raises(UnsupportedModelError) as caught:
        open_model(path)
    assert named in caught.value.message


def test_a_window_as_long_as_the_context_has_no_effect(tmp_path):
    path = write_gguf(make_model("llama"), tmp_path / "tiny.gguf", arrange=lambda w: w.add_sliding_window(256))
    assert open_model(path).config.native_context == 256


def test_other_architectures_are_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gemma2")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="gemma2"):
        open_model(tmp_path / "other.gguf")


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    model = make_model("llama")
    model.config.num_hidden_layers = 3
    with pytest.raises(ModelFileError, match=r"blk\.2\.attn_norm\.weight is missing"):
        open_model(write_gguf(model, tmp_path / "short.gguf"))
    model.config.num_hidden_layers = 2
    model.config.intermediate_size = 128
    with pytest.raises(ModelFileError, match="shape"):
        open_model(write_gguf(model, tmp_path / "shape.gguf"))


def test_a_folder_with_one_gguf_file(tmp_path):
    write_gguf(make_model("llama"), tmp_path / "a.gguf")
    assert open_model(tmp_path).config.layers == 2
    write_gguf(make_model("llama"), tmp_path / "b.gguf")
    with pytest.raises(ModelFileError, match="2 GGUF files"):
        open_model(tmp_path)


def test_the_starter_model(starter_model):
    header = read_gguf_header(starter_model)
    reference = gguf.GGUFReader(starter_model)
    assert {t.name: (t.data_offset, t.n_bytes) for t in reference.tensors} == {
        t.name: (t.offset, t.size) for t in header.tensors.values()
    }
    for key in ("general.name", "llama.block_count", "llama.rope.freq_base", "tokenizer.ggml.merges"):
        field = reference.get_field(key)
        assert field is not None
        assert field.contents() == header.metadata[key]
    with open_model(starter_model) as source:
        config = source.config
        assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
        assert (config.native_context, config.tied_embeddings, config.vocab_size) == (8192, True, 49152)
        quantized = source.quantized("layers.3.k")
        assert quantized is not None
        torch.testing.assert_close(quantized.dequantize(), source.tensor("layers.3.k"), rtol=1e-5, atol=1e-6)
