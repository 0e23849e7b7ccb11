"""Which weights a card gets, and in which way: as the profile says, as was asked, layer by layer, or not at all. The
card is this machine's CPU, which computes the same products."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import DoesNotFitError, EngineConfig, load
from engine.fit import LEAST_CONTEXT, weight_bytes, workspace_bytes
from engine.machine import Card, Machine
from engine.profile_rules import choose_profile
from engine.weights import open_model
from kernels.linear import DenseWeight, Fp8Weight
from tests.engine.tiny_models import make_model, save_folder

GIB = 2**30


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("card") / "model"
    save_folder(make_model("llama", max_position=2048), path)
    return path


@pytest.fixture
def loaded(folder, monkeypatch):
    """(free bytes, fields of the config) -> what `_weights_for_card` gives on an H100 that is this CPU."""
    card = Card(0, "H100", (9, 0), 80 * GIB, 79 * GIB)
    profile = choose_profile(Machine((card,), "", "", 0, 0, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")

    def run(free: int, limit: int = 2**20, **fields):
        config = EngineConfig(folder, prefill_chunk=32, threads=1, **fields)
        here = replace(
            profile, device="cpu", dtype=torch.float32, memory_limit=limit,
            weights=profile.weights if config.decode_weights == "auto" else config.decode_weights,
        )  # fmt: skip
        monkeypatch.setattr(load, "free_memory", lambda device: free)
        with open_model(folder) as source:
            _, rope = load.resolve_context(config, source.config, "cpu")
            return load._weights_for_card(config, here, source, rope, lambda step, share: None)

    return run


def test_packed_as_the_profile_says_and_compared_with_what_was_packed(loaded):
    decoder, name, reason, error = loaded(64 * GIB)
    assert (name, reason) == ("fp8", "by the profile")
    assert 0 < error < load.LARGEST_LOGIT_ERROR
    assert isinstance(decoder.layers[0].qkv, Fp8Weight)
    assert isinstance(decoder.head, Fp8Weight)
    assert decoder.decode_layers is decoder.layers


def test_tiny_models_stay_as_they_are(loaded):
    decoder, name, reason, error = loaded(64 * GIB, limit=64 * GIB)
    assert (name, reason, error) == ("bf16", "so small a model is not worth packing here", 0.0)
    assert isinstance(decoder.layers[0].qkv, DenseWeight)
    assert loaded(64 * GIB, limit=64 * GIB, decode_weights="fp8")[1:3] == ("fp8", "asked for")


def test_a_large_logit_error_keeps_bf16_unless_packing_was_asked_for(loaded, monkeypatch):
    monkeypatch.setattr(load, "logit_error", lambda *_: 0.5)
    decoder, name, reason, error = loaded(64 * GIB)
    assert (name, reason, error) == ("bf16", "fp8: logit error 0.5000", 0.0)
    assert isinstance(decoder.layers[0].qkv, DenseWeight)
    assert loaded(64 * GIB, decode_weights="fp8")[1::2] == ("fp8", 0.5)


def test_layer_by_layer_where_both_do_not_fit_at_once(loaded, folder):
    whole, _, _, _ = loaded(64 * GIB)
    both = weight_bytes(whole.config, "bf16") + weight_bytes(whole.config, "fp8") + workspace_bytes(whole.config, 16)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(load, "check_weights", lambda *_: None)
    decoder, name, reason, error = loaded(both - 1)
    monkey.undo()
    assert (name, reason) == ("fp8", "by the profile; packed layer by layer")
    assert math.isnan(error)
    for one, other in zip(decoder.layers, whole.layers):
        assert isinstance(one.down, Fp8Weight)
        assert isinstance(other.down, Fp8Weight)
        assert torch.equal(one.down.codes.view(torch.uint8), other.down.codes.view(torch.uint8))
    assert isinstance(decoder.head, Fp8Weight)


def test_what_does_not_fit_is_refused_before_any_weight_is_read(loaded, monkeypatch):
    monkeypatch.setattr(load, "load_decoder", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(DoesNotFitError, match=r"as fp8 with room for 4,096 tokens need 0\.\d GiB, and H100") as e:
        loaded(2**20)
    assert e.value.needed_tokens == LEAST_CONTEXT
