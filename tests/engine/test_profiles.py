"""The profile chooser: machines that do not exist get the right row, field by field; what cannot be is refused in
words; and what `look` finds on a machine that torch is made to describe."""

import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine import DoesNotFitError, EngineConfig, ModelConfig, RopeScaling, machine, profiles
from engine.fit import GIB, TINY_SHARE, check_weights, weight_bytes, weights_for
from engine.kv_memory import SCORERS
from engine.machine import Card, Machine, look
from engine.profile_rules import PROFILES, choose_profile
from engine.weights.names import layer_shapes
from kernels.linear import pack_fp8


def shape(hidden: int, layers: int, heads: int, kv_heads: int, d: int, ffn: int, vocab: int, tied: bool) -> ModelConfig:
    return ModelConfig(
        "llama", hidden, layers, heads, kv_heads, d, ffn, vocab, 1e-5, 1e4, RopeScaling(), 2**20, tied, False, False,
        (), None,
    )  # fmt: skip


STARTER = shape(576, 30, 9, 3, 64, 1536, 49152, tied=True)
QWEN3_4B = shape(2560, 36, 32, 8, 128, 9728, 151936, tied=True)
LLAMA_3_8B = shape(4096, 32, 32, 8, 128, 14336, 128256, tied=False)
LLAMA_70B = shape(8192, 80, 64, 8, 128, 28672, 128256, tied=False)
NO_TRITON = "Triton cannot be imported: No module named 'triton'"
BROKEN_TRITON = "Triton cannot compile here: RuntimeError: Failed to find C compiler"


def card(name: str, capability: tuple[int, int], gib: float, free: float | None = None, index: int = 0) -> Card:
    """`gib`: as the driver reports it; by default all but half a GiB is free."""
    return Card(index, name, capability, int(gib * GIB), int((gib - 0.5 if free is None else free) * GIB))


def with_cards(*cards: Card, no_card: str = "", no_triton: str = "") -> Machine:
    return Machine(cards, no_card, no_triton, 64 * GIB, 48 * GIB, 8)


def other(name: str, vendor: Any) -> Card:
    return Card(0, name, (0, 0), 16 * GIB, 16 * GIB, vendor)


# name -> (machine, profile, weights, KV format, capability, shared KB, rows, GiB of the limit)
CARDS = {
    "RTX 3060": (card("RTX 3060", (8, 6), 11.6), "ada", "int4", "k3v3", (8, 6), 99, 1, 9.6),
    "RTX 3090": (card("RTX 3090", (8, 6), 23.7), "ada", "int4", "k3v3", (8, 6), 99, 4, 21.7),
    "RTX 4060": (card("RTX 4060", (8, 9), 7.6), "ada", "int4", "k3v3", (8, 9), 99, 1, 5.6),
    "RTX 4070": (card("RTX 4070", (8, 9), 11.7), "ada", "int4", "k3v3", (8, 9), 99, 1, 9.7),
    "RTX 4080": (card("RTX 4080", (8, 9), 15.7), "ada", "int4", "k3v3", (8, 9), 99, 4, 13.7),
    "RTX 4090": (card("RTX 4090", (8, 9), 24.0), "ada", "int4", "k3v3", (8, 9), 99, 4, 22.0),
    "RTX 4090, 6 GiB free": (card("RTX 4090", (8, 9), 24.0, 6), "ada", "int4", "k3v3", (8, 9), 99, 1, 5.75),
    "A100 40": (card("A100-40GB", (8, 0), 39.4), "ampere-dc", "bf16", "k4v4", (8, 0), 163, 8, 38.65),
    "A100 80": (card("A100-80GB", (8, 0), 79.3), "ampere-dc", "bf16", "k4v4", (8, 0), 163, 16, 78.55),
    "A100, a slice": (card("A100 MIG 1g.10gb", (8, 0), 9.5), "ampere-dc", "int4", "k3v3", (8, 0), 163, 1, 8.75),
    "A30": (card("A30", (8, 0), 23.5), "ampere-dc", "int4", "k4v4", (8, 0), 163, 4, 22.75),
    "A10": (card("A10", (8, 6), 22.5), "ada", "int4", "k3v3", (8, 6), 99, 4, 20.5),
    "A40": (card("A40", (8, 6), 44.4), "ada", "bf16", "k4v4", (8, 6), 99, 8, 42.4),
    "L4": (card("L4", (8, 9), 22.0), "ada", "int4", "k3v3", (8, 9), 99, 4, 20.0),
    "L40S": (card("L40S", (8, 9), 44.4), "ada", "fp8", "k4v4", (8, 9), 99, 8, 42.4),
    "H100 80": (card("H100", (9, 0), 79.1), "hopper", "fp8", "fp8", (9, 0), 227, 16, 78.35),
    "H100, mostly taken": (card("H100", (9, 0), 79.1, 20), "hopper", "fp8", "k4v4", (9, 0), 227, 4, 19.75),
    "H200": (card("H200", (9, 0), 139.8), "hopper", "fp8", "fp8", (9, 0), 227, 16, 139.05),
    "B200": (card("B200", (10, 0), 178.4), "blackwell", "fp8", "fp8", (10, 0), 227, 16, 177.65),
    "B300": (card("B300", (10, 3), 267), "blackwell", "fp8", "fp8", (10, 3), 227, 16, 266.25),
    "RTX 5070": (card("RTX 5070", (12, 0), 11.5), "blackwell", "int4", "k4v4", (12, 0), 99, 1, 9.5),
    "RTX 5090": (card("RTX 5090", (12, 0), 31.4), "blackwell", "fp8", "k4v4", (12, 0), 99, 8, 29.4),
    "RTX PRO 6000": (card("RTX PRO 6000", (12, 0), 94.9), "blackwell", "fp8", "fp8", (12, 0), 99, 16, 92.9),
    "DGX Spark": (card("GB10", (12, 1), 119.6), "blackwell", "fp8", "fp8", (12, 1), 99, 16, 117.6),
    "of 2030": (card("RTX 9090", (14, 0), 64), "blackwell", "fp8", "fp8", (14, 0), 99, 16, 62.0),
}


@pytest.mark.parametrize("name", CARDS)
def test_every_card_gets_its_row(name):
    found, profile, weights, kv_format, capability, shared, rows, limit = CARDS[name]
    chosen = choose_profile(with_cards(found))
    assert chosen.memory_limit == pytest.approx(limit * GIB, rel=1e-6)
    chunk = {1: 2048, 4: 4096}.get(rows, 8192)
    assert asdict(replace(chosen, reason="", memory_limit=0)) == {
        "name": profile, "reason": "", "device": "cuda:0", "weights": weights, "kv_format": kv_format,
        "dtype": torch.bfloat16, "kernels": "triton", "capability": capability, "emulated": False,
        "shared_memory": shared * 1024, "batch_rows": rows, "largest_chunk": chunk, "memory_limit": 0, "threads": 8,
    }  # fmt: skip
    assert found.name in chosen.reason
    assert f"{capability[0]}.{capability[1]}" in chosen.reason
    assert ("newer than this version knows" in chosen.reason) == (name == "of 2030")


# name -> (machine, words of the reason)
WITHOUT = {
    "T4": (with_cards(card("T4", (7, 5), 15)), "T4 has compute capability 7.5, and kernels here need 8.0"),
    "V100": (with_cards(card("V100", (7, 0), 32)), "V100 has compute capability 7.0"),
    "GTX 1080": (with_cards(card("GTX 1080", (6, 1), 8)), "GTX 1080 has compute capability 6.1"),
    "MI300X": (with_cards(other("AMD Instinct MI300X", "amd"), no_card="ROCm"), "MI300X is not one of NVIDIA's cards"),
    "Apple": (with_cards(other("Apple GPU", "apple")), "Apple GPU is not one of NVIDIA's"),
    "Intel Arc": (with_cards(other("Intel Arc A770", "intel")), "Arc A770 is not one of NVIDIA's"),
    "no card": (with_cards(no_card="no NVIDIA driver was found"), "no NVIDIA driver was found"),
    "CPU build": (with_cards(no_card="this PyTorch is built for CPUs"), "this PyTorch is built for CPUs"),
    "old driver": (with_cards(no_card="the NVIDIA driver is too old"), "driver is too old"),
    "two old cards": (with_cards(card("T4", (7, 5), 15), card("GTX 1080", (6, 1), 8, index=1)), "T4 .* GTX 1080"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_every_other_machine_computes_on_the_cpu_and_says_why(name):
    found, words = WITHOUT[name]
    chosen = choose_profile(found)
    assert asdict(replace(chosen, reason="")) == {
        "name": "cpu", "reason": "", "device": "cpu", "weights": "f32+packed", "kv_format": "bf16",
        "dtype": torch.float32, "kernels": "torch", "capability": (0, 0), "emulated": False, "shared_memory": 0,
        "batch_rows": 1, "largest_chunk": 512, "memory_limit": 48 * GIB, "threads": 8,
    }  # fmt: skip
    assert re.search(words, chosen.reason)
    with pytest.raises(ValueError, match="device: got 'cuda:0', need auto or cpu"):
        choose_profile(found, device="cuda:0")
    with pytest.raises(ValueError, match="profile: got 'ada', need auto or cpu"):
        choose_profile(found, "ada")


def test_there_are_at_least_twenty_five_machines():
    assert len(CARDS) + len(WITHOUT) >= 25


@pytest.mark.parametrize("reason", [NO_TRITON, BROKEN_TRITON])
def test_without_triton_the_card_computes_through_torch(reason):
    chosen = choose_profile(with_cards(card("RTX 4090", (8, 9), 24), no_triton=reason))
    assert (chosen.name, chosen.device, chosen.kernels) == ("ada", "cuda:0", "torch")
    assert (chosen.weights, chosen.kv_format, chosen.batch_rows) == ("bf16", "bf16", 1)
    assert reason in chosen.reason


TWO = with_cards(card("RTX 3060", (8, 6), 11.6), card("RTX 4090", (8, 9), 24, index=1), card("T4", (7, 5), 40, index=2))


def test_of_several_cards_the_one_with_most_free_memory_that_can_compute():
    chosen = choose_profile(TWO)
    assert (chosen.device, chosen.batch_rows) == ("cuda:1", 4)
    assert "the one of 3 cards with most free memory" in chosen.reason
    busy = replace(TWO, cards=(TWO.cards[0], replace(TWO.cards[1], free=GIB), TWO.cards[2]))
    assert choose_profile(busy).device == "cuda:0"
    assert choose_profile(TWO, device="cuda").device == "cuda:1"
    named = choose_profile(TWO, device="cuda:0")
    assert (named.device, named.batch_rows) == ("cuda:0", 1)
    assert "asked for" in named.reason
    alike = with_cards(card("L4", (8, 9), 22, index=0), card("L4", (8, 9), 22, index=1))
    assert choose_profile(alike).device == "cuda:0"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"device": "cuda:2"}, r"device: got 'cuda:2', need auto or cpu or cuda:0 or cuda:1 \(T4 has compute"),
        ({"device": "cuda:7"}, r"device: got 'cuda:7', need .* \(there is no card 7"),
        ({"device": "tpu"}, "device: got 'tpu', need auto, cpu, cuda or cuda:N"),
        (
            {"profile": "hopper"},
            r"profile: got 'hopper', need auto or cpu or ada \(RTX 4090 has compute",
        ),
        ({"profile": "ampere-dc"}, "profile: got 'ampere-dc', need auto or cpu or ada"),
        ({"profile": "volta"}, "profile: got 'volta', need auto or cpu or ada or ampere-dc or hopper or blackwell"),
        ({"profile": "cpu", "device": "cuda:0"}, "profile: got 'cpu' with device 'cuda:0'"),
        ({"profile": "ada", "device": "cpu"}, "profile: got 'ada' with device 'cpu'"),
        ({"kv_format": "k9v9"}, "kv_format: got 'k9v9', need auto or f32"),
        ({"kv_format": "fp8", "device": "cuda:0"}, r"kv_format: got 'fp8', need .*RTX 3060 computes no fp8; k8v8"),
        ({"weights": "int8"}, "weights: got 'int8', need auto or bf16 or fp8 or int4"),
        ({"weights": "fp8", "device": "cpu"}, "weights: got 'fp8', need auto or f32 or int8 or int4"),
    ],
)
def test_what_cannot_be_is_refused_with_the_choices(asked, message):
    with pytest.raises(ValueError, match=message):
        choose_profile(TWO, **asked)


def test_what_was_asked_for_wins():
    chosen = choose_profile(TWO, kv_format="k2v2", weights="fp8", threads=3)
    assert (chosen.kv_format, chosen.weights, chosen.threads) == ("k2v2", "fp8", 3)
    on_cpu = choose_profile(TWO, "cpu", kv_format="k8v4", weights="int4")
    assert (on_cpu.device, on_cpu.kv_format, on_cpu.weights) == ("cpu", "k8v4", "f32+int4")
    assert on_cpu.reason == choose_profile(TWO, device="cpu").reason == "the CPU was asked for"


H200 = with_cards(CARDS["H200"][0])


def test_a_larger_card_stands_in_for_a_4090():
    chosen, real = choose_profile(H200, "ada"), choose_profile(with_cards(CARDS["RTX 4090"][0]))
    assert replace(chosen, reason="", emulated=False) == replace(real, reason="")
    assert chosen.emulated
    assert chosen.memory_limit == 22 * GIB  # 24, of which 1.5 are left to the desktop and 0.5 go to CUDA itself
    assert "ada was asked for, so it is used like a card of compute capability 8.9 with 24 GiB" in chosen.reason


def test_which_card_can_stand_in_for_which():
    can = {
        name: [asked for asked in PROFILES[1:] if _is_possible(with_cards(CARDS[name][0]), asked)]
        for name in ("RTX 3090", "RTX 4090", "A100 80", "H200", "B200", "RTX 5090")
    }
    assert can == {
        "RTX 3090": ["ada"],
        "RTX 4090": ["ada"],
        "A100 80": ["ada", "ampere-dc"],
        "H200": ["ada", "ampere-dc", "hopper"],
        "B200": ["ada", "ampere-dc", "hopper", "blackwell"],
        "RTX 5090": ["ada", "blackwell"],
    }
    assert choose_profile(with_cards(CARDS["A100 80"][0]), "ada").capability == (8, 6)
    assert choose_profile(with_cards(CARDS["L40S"][0]), "ada").memory_limit == 22 * GIB
    assert choose_profile(H200, "hopper").memory_limit == choose_profile(H200).memory_limit
    assert choose_profile(H200, "ampere-dc").shared_memory == 163 * 1024


def _is_possible(found: Machine, asked: str) -> bool:
    try:
        return choose_profile(found, asked).name == asked
    except ValueError:
        return False


def test_weights_by_format():
    assert weight_bytes(LLAMA_3_8B, "bf16") / 1e9 == pytest.approx(16.06, abs=0.01)
    assert weight_bytes(LLAMA_3_8B, "fp8") / 1e9 == pytest.approx(8.56, abs=0.05)
    assert weight_bytes(LLAMA_3_8B, "int4") / 1e9 == pytest.approx(5.2, abs=0.1)
    assert weight_bytes(QWEN3_4B, "int4") / 1e9 == pytest.approx(3.1, abs=0.2)
    assert weight_bytes(STARTER, "f32") == 4 * 134_515_008
    assert weights_for(STARTER, "int4", 22 * GIB)[0] == "bf16"
    assert weights_for(LLAMA_3_8B, "int4", 22 * GIB)[0] == "int4"
    assert weights_for(LLAMA_3_8B, "fp8", int(weight_bytes(LLAMA_3_8B, "bf16") / TINY_SHARE))[0] == "bf16"


def test_packed_weights_take_what_was_estimated():
    tiny = shape(64, 2, 4, 2, 16, 96, 128, tied=True)
    part = layer_shapes(tiny)
    joined = [("q", "k", "v"), ("o",), ("gate", "up"), ("down",)]
    matrices = [torch.zeros(sum(part[name][0] for name in names), part[names[0]][1]) for names in joined] * 2
    packed = [pack_fp8(matrix) for matrix in [*matrices, torch.zeros(128, 64)]]
    held = sum(weight.codes.nbytes + weight.scales.nbytes for weight in packed)
    assert weight_bytes(tiny, "fp8") == held + 2 * (128 * 64 + 5 * 64)


def test_weights_that_do_not_fit_name_what_does():
    kv, chunk = 30_000, 2048
    check_weights(LLAMA_3_8B, "int4", 22 * GIB, "a card", kv, chunk)
    with pytest.raises(DoesNotFitError, match=r"as bf16 .* need 15\.\d GiB, and a card has 12\.0 GiB") as caught:
        check_weights(LLAMA_3_8B, "bf16", 12 * GIB, "a card", kv, chunk)
    assert "What fits: decode weights fp8 (8." in caught.value.hint
    assert "decode weights int4 (5." in caught.value.hint
    with pytest.raises(DoesNotFitError, match=r"has 22\.0 GiB; as fp8 6\d\.\d GiB; as int4 3\d\.\d GiB") as caught:
        check_weights(LLAMA_70B, "bf16", 22 * GIB, "a card", kv, chunk)
    assert "models of up to some 39." in caught.value.hint
    assert "the CPU" in caught.value.hint
    with pytest.raises(DoesNotFitError) as caught:
        check_weights(LLAMA_3_8B, "f32+packed", 16 * GIB, "the CPU", kv, chunk)
    assert "card" not in caught.value.hint


@pytest.mark.parametrize("model", [LLAMA_3_8B, QWEN3_4B])
def test_an_emulated_4090_holds_a_long_context(model):
    profile = choose_profile(H200, "ada")
    config = EngineConfig(Path("m"), device="cuda:0", kv_format="k3v3")
    whole = profiles.estimated_context(config, profile, model, SCORERS)
    demoted = profiles.estimated_context(replace(config, context=2**20), profile, model, SCORERS)
    assert 320_000 <= whole < demoted < 2**20
    assert profiles.estimated_context(replace(config, context=8192), profile, model, SCORERS) == 8192


def test_the_limit_of_the_allocator_is_what_is_free(monkeypatch):
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(cuda, "memory_reserved", lambda device: 8 * GIB)
    monkeypatch.setattr(cuda, "memory_allocated", lambda device: 5 * GIB)
    monkeypatch.setattr(cuda, "get_per_process_memory_fraction", lambda device: 22 / 140)
    assert profiles.free_memory("cuda:0") == pytest.approx(17 * GIB, abs=2)
    monkeypatch.setattr(cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    assert profiles.free_memory("cuda:0") == 103 * GIB


def test_a_profile_in_force_limits_the_allocator_and_names_the_card_to_emulate(monkeypatch):
    from kernels import card as kernels_card

    set_to = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=139 * GIB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: set_to.append(given))
    monkeypatch.setattr(kernels_card, "_emulated", None)
    profiles.put_in_force(replace(choose_profile(H200, "ada"), threads=torch.get_num_threads()))
    assert set_to == [(22 / 139, "cuda:0")]
    assert kernels_card.capability(torch.device("cuda:0")) == (8, 9)
    assert kernels_card.capability(torch.device("cpu")) == (0, 0)
    profiles.put_in_force(replace(choose_profile(H200), threads=torch.get_num_threads()))
    assert kernels_card._emulated is None


def test_looking_at_two_cards(monkeypatch):
    _nvidia(monkeypatch, [("RTX 3060", (8, 6)), ("RTX 4090", (8, 9))])
    found = look()
    assert [(c.index, c.name, c.capability, c.free, c.total) for c in found.cards] == [
        (0, "RTX 3060", (8, 6), 11, 20), (1, "RTX 4090", (8, 9), 11, 20)
    ]  # fmt: skip
    assert found.no_triton == "no compiler"
    assert [c.index for c in look("cuda:1").cards] == [1]
    assert look("cuda:4").cards == ()
    assert look("cpu").cards == ()
    assert look("cpu").no_triton == ""


def _nvidia(monkeypatch: pytest.MonkeyPatch, cards: list[tuple[str, tuple[int, int]]]) -> None:
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(cuda, "mem_get_info", lambda index: (10, 20))
    monkeypatch.setattr(cuda, "memory_reserved", lambda index: 1)
    monkeypatch.setattr(cuda, "get_device_name", lambda index: cards[index][0])
    monkeypatch.setattr(cuda, "get_device_capability", lambda index: cards[index][1])
    monkeypatch.setattr(machine.triton_jit, "unavailable_reason", lambda: "no compiler")


def test_looking_at_amd_apple_and_intel(monkeypatch):
    properties = SimpleNamespace(name="AMD Instinct MI300X", total_memory=192)
    _nvidia(monkeypatch, [("AMD Instinct MI300X", (9, 4))])
    monkeypatch.setattr(torch.version, "hip", "6.3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    found = look()
    assert [(c.vendor, c.name) for c in found.cards] == [("amd", "AMD Instinct MI300X")]
    assert "ROCm 6.3" in found.no_card
    assert (found.no_triton, choose_profile(found).name) == ("", "cpu")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [c.vendor for c in look().cards] == ["apple"]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda i: SimpleNamespace(name="Arc", total_memory=16))
    assert [c.vendor for c in look().cards] == ["intel"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("The NVIDIA driver on your system is too old (found version 11040).", "driver is too old for this PyTorch"),
        ("Found no NVIDIA driver on your system.", "no NVIDIA driver was found"),
        ("CUDA unknown error\nmore", "CUDA does not start: CUDA unknown error"),
        ("", "no CUDA device was found"),
    ],
)
def test_why_a_cuda_build_sees_no_card(monkeypatch, said, words):
    def init() -> None:
        if said:
            raise RuntimeError(said)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    assert words in choose_profile(look()).reason


def test_a_missing_c_compiler_is_named_with_its_packages(monkeypatch):
    monkeypatch.setattr(machine.sys, "platform", "linux")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    hint = machine.c_compiler_hint()
    for words in ("apt install gcc", "dnf install gcc", "pacman -S gcc", "Debian", "Fedora", "Arch"):
        assert words in hint
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/clang" if name == "clang" else None)
    assert machine.c_compiler_hint() == ""


def test_compiled_kernels_go_where_the_app_keeps_its_data(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles.cpu_jit, "_places", list(profiles.cpu_jit._places))
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    profiles.keep_compiled_kernels(tmp_path)
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    profiles.keep_compiled_kernels(tmp_path)
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert tmp_path in profiles.cpu_jit._places
