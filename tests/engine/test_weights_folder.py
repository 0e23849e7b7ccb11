"""A Hugging Face folder gives exactly the tensors and settings that transformers saved; damaged ones are refused."""

import json
import struct
import time
from pathlib import Path

import pytest
import torch

from engine.errors import EngineError, ModelFileError, UnsupportedModelError
from engine.weights import open_model
from engine.weights.names import huggingface_name
from engine.weights.safetensors import read_header
from tests.engine.tiny_models import FAMILIES, make_model, save_folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_every_tensor_is_the_saved_one(family, tied, tmp_path):
    model = make_model(family, tied=tied)
    with open_model(save_folder(model, tmp_path / "tiny")) as source:
        state = model.state_dict()
        assert {huggingface_name(name) for name in source.names} == set(state) - ({"lm_head.weight"} if tied else set())
        for name in source.names:
            assert torch.equal(source.tensor(name), state[huggingface_name(name)])
            assert source.quantized(name) is None
        assert source.config.family == family
        assert source.config.tied_embeddings == tied
        assert source.config.head_dim == (32 if family == "qwen3" else 16)
        assert (source.config.eos_ids, source.config.bos_id) == ((2,), 1)
        with pytest.raises(KeyError):
            source.tensor("layers.9.q")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_shards_and_half_types(dtype, tmp_path):
    model = make_model("qwen2")
    folder = save_folder(model, tmp_path / "tiny", dtype=dtype, shards=3)
    assert len(list(folder.glob("*.safetensors"))) > 1
    source = open_model(folder)
    for name in source.names:
        weight = source.tensor(name)
        assert weight.dtype == dtype
        assert torch.equal(weight, model.state_dict()[huggingface_name(name)].to(dtype))
    kept = source.tensor("embed")
    source.close()
    assert kept.isfinite().all()


def test_fingerprint_follows_every_byte_and_is_remembered(tmp_path):
    folder = save_folder(make_model("llama"), tmp_path / "tiny")
    known: dict[str, str] = {}
    steps: list[float] = []
    source = open_model(folder, fingerprints=known)
    first = source.read_fingerprint(lambda name, share: steps.append(share))
    assert first == source.fingerprint == open_model(folder).fingerprint
    assert steps == sorted(steps)
    assert steps[-1] == 1.0
    assert len(known) == 3
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    assert open_model(folder, fingerprints=known).fingerprint != first


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_folder(make_model("llama"), tmp_path_factory.mktemp("good") / "tiny")


def copy_of(folder: Path, target: Path) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def refused(path: Path, error: type[EngineError] = ModelFileError) -> EngineError:
    start = time.process_time()
    with pytest.raises(error) as caught:
        open_model(path)
    assert time.process_time() - start < 1
    assert caught.value.message.endswith(".")
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


def test_missing_parts_are_named(folder, tmp_path):
    assert "no model at" in refused(tmp_path / "nothing").message
    (tmp_path / "empty").mkdir()
    assert "config.json" in refused(tmp_path / "empty").message
    for file in ("tokenizer.json", "model.safetensors"):
        broken = copy_of(folder, tmp_path / f"without-{file}")
        (broken / file).unlink()
        refused(broken)
    (broken / "pytorch_model.bin").write_bytes(b"pickle")
    assert "pickled" in refused(broken).message
    assert "config" in refused(folder / "model.safetensors").message


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 3000, 0.5, -1])
def test_cut_weights_are_refused(folder, tmp_path, kept):
    broken = copy_of(folder, tmp_path / "cut")
    weights = broken / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: int(len(data) * kept) if kept == 0.5 else kept])
    assert "model.safetensors" in refused(broken).message


def spoil(folder: Path, target: Path, change) -> Path:
    """A copy whose safetensors header went through `change`."""
    broken = copy_of(folder, target)
    weights = broken / "model.safetensors"
    data = weights.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    return broken


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda h: h[Q].update(shape=[64, 65]), ModelFileError),
        (lambda h: h[Q].update(shape=[2**40, 2**40]), ModelFileError),
        (lambda h: h[Q].update(shape=[-64, -64]), ModelFileError),
        (lambda h: h[Q].update(shape="big"), ModelFileError),
        (lambda h: h[Q].update(shape=[16, 256]), ModelFileError),
        (lambda h: h[Q].update(data_offsets=[0, 16384]), ModelFileError),
        (lambda h: h[Q].update(data_offsets=[0]), ModelFileError),
        (lambda h: h[Q].update(dtype="F8_E4M3"), UnsupportedModelError),
        (lambda h: h.update({Q: 7}), ModelFileError),
        (lambda h: h.update({Q + "s": h.pop(Q)}), ModelFileError),
        (lambda h: h.update({"model.layers.0.self_attn.sinks": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
         UnsupportedModelError),
    ],
)  # fmt: skip
def test_spoiled_headers_are_refused(folder, tmp_path, change, error):
    refused(spoil(folder, tmp_path / "spoiled", change), error)


def test_a_header_of_gigabytes_is_not_read(folder, tmp_path):
    broken = copy_of(folder, tmp_path / "huge")
    with (broken / "model.safetensors").open("r+b") as handle:
        handle.write(struct.pack("<Q", 1 << 34))
        handle.truncate(1 << 35)
    refused(broken)


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": {}},
        {"weight_map": {Q: "../model.safetensors"}},
        {"weight_map": {Q: "/etc/hostname"}},
        {"weight_map": {Q: "model-00002-of-00009.safetensors"}},
        {"weight_map": {Q: 5}},
    ],
)
def test_an_index_names_only_files_beside_it(folder, tmp_path, index):
    broken = copy_of(folder, tmp_path / "indexed")
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(broken)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\x00", '{"hidden_size": 1e999}'])
def test_a_damaged_config_is_refused(folder, tmp_path, text):
    broken = copy_of(folder, tmp_path / "config")
    (broken / "config.json").write_text(text)
    refused(broken, EngineError)


def test_a_config_of_a_billion_layers_is_refused_at_once(folder, tmp_path):
    broken = copy_of(folder, tmp_path / "layers")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    assert "1000000000 layers" in refused(broken).message


def test_headers_agree_with_the_library(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as reference:
        header = read_header(folder / "model.safetensors")
        assert set(header) == set(reference.keys())
        assert all(tuple(reference.get_slice(name).get_shape()) == entry.shape for name, entry in header.items())
