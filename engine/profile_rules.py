"""Which profile a machine gets: pure rules on what `engine.machine.look` found. They ask no device anything.

A card's architecture chooses the profile, and with it the kernels; its memory chooses formats and budgets. Every
machine matches one row of `ROWS`, or is the profile `cpu` with a reason. Whatever was asked for by name wins, or is a
ValueError that says what there is.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine.machine import Card, Machine

GIB = 2**30
PROFILES = ("cpu", "ada", "ampere-dc", "hopper", "blackwell")
CPU_WEIGHTS = {"auto": "f32+packed", "f32": "f32", "int8": "f32+int8", "int4": "f32+int4"}
CARD_WEIGHTS = ("bf16", "fp8", "int4")
KV_FORMATS = ("f32", "bf16", "fp8", "k8v8", "k8v4", "k4v4", "k3v3", "k3v2", "k2v2")
CONTEXT_BYTES = GIB // 2  # that a process takes on a card besides its tensors: CUDA's own, kernels, libraries
MARGIN = GIB // 4  # of what is free now, for what changes while a model loads
DESKTOP = 3 * GIB // 2  # left to the screen on cards that people have in a desktop
_CPU_CHUNK = 512
_FIRST_WITH_FP8 = (8, 9)


class _Row(NamedTuple):
    """`largest`: GiB of memory up to which the row holds. `rows`: sequences decoded together at most. `chunk`: tokens
    of a prompt computed together at most; the smaller the card, the less it computes between two looks at Stop."""

    largest: float
    weights: str
    kv_format: str
    rows: int
    chunk: int


_MORE = float("inf")
ROWS: dict[str, tuple[_Row, ...]] = {
    "ada": (
        _Row(12, "int4", "k3v3", 1, 2048),
        _Row(24, "int4", "k3v3", 4, 4096),
        _Row(48, "fp8", "k4v4", 8, 8192),
        _Row(_MORE, "fp8", "fp8", 16, 8192),
    ),
    "ampere-dc": (
        _Row(12, "int4", "k3v3", 1, 2048),
        _Row(24, "int4", "k4v4", 4, 4096),
        _Row(48, "bf16", "k4v4", 8, 8192),
        _Row(_MORE, "bf16", "k4v4", 16, 8192),
    ),
    "hopper": (
        _Row(12, "int4", "k4v4", 1, 2048),
        _Row(24, "fp8", "k4v4", 4, 4096),
        _Row(48, "fp8", "fp8", 8, 8192),
        _Row(_MORE, "fp8", "fp8", 16, 8192),
    ),
    "blackwell": (
        _Row(12, "int4", "k4v4", 1, 2048),
        _Row(24, "int4", "k4v4", 4, 4096),
        _Row(48, "fp8", "k4v4", 8, 8192),
        _Row(_MORE, "fp8", "fp8", 16, 8192),
    ),
}
# Without fp8 in the card (sm_80, sm_86), 8 bits of KV are int8, and weights of 8 bits would only cost time.
_WITHOUT_FP8 = {"kv_format": {"fp8": "k8v8"}, "weights": {"fp8": "bf16"}}

_ROOMY, _TIGHT, _AMPERE = 227 * 1024, 99 * 1024, 163 * 1024
_SHARED = {(8, 0): _AMPERE, (8, 7): _AMPERE, (9, 0): _ROOMY, (10, 0): _ROOMY, (10, 3): _ROOMY, (11, 0): _ROOMY}
_EMULATED = {"ada": (8, 9), "ampere-dc": (8, 0), "hopper": (9, 0), "blackwell": (10, 0)}
_CAPS = {"ada": 24 * GIB, "ampere-dc": 80 * GIB, "hopper": 80 * GIB, "blackwell": 180 * GIB}


@dataclass(frozen=True, slots=True)
class Profile:
    """How the engine uses this machine. `reason`: one sentence for people.

    `device`: as torch names it. `weights`: "f32+packed" on a CPU (prefill from float32, decode from the fastest safe
    packing), else bf16, fp8 or int4. `kv_format`: what KV is kept in unless asked otherwise. `dtype`: of activations
    and unpacked weights. `kernels`: "triton" or "torch". `capability`: that kernels are configured for, (0, 0) on a
    CPU; `emulated`: it is not the card's own. `shared_memory`: bytes that a kernel's program may take, 0 on a CPU.
    `batch_rows`: sequences decoded together at most. `largest_chunk`: tokens of a prompt computed together at most.
    `memory_limit`: bytes that weights, KV and workspaces may take together.
    """

    name: str
    reason: str
    device: str
    weights: str
    kv_format: str
    dtype: torch.dtype
    kernels: str
    capability: tuple[int, int]
    emulated: bool
    shared_memory: int
    batch_rows: int
    largest_chunk: int
    memory_limit: int
    threads: int


def choose_profile(
    machine: Machine,
    profile: str = "auto",
    device: str = "auto",
    *,
    kv_format: str = "auto",
    weights: str = "auto",
    threads: int | None = None,
) -> Profile:
    """The profile of `machine`. "auto" and None leave a field to the rules. ValueError for what cannot be."""
    _check("profile", profile, ("auto", *PROFILES))
    _check("kv_format", kv_format, ("auto", *KV_FORMATS))
    if device not in ("auto", "cpu", "cuda") and not (device[:5] == "cuda:" and device[5:].isdecimal()):
        raise ValueError(f"device: got {device!r}, need auto, cpu, cuda or cuda:N")
    threads = threads or machine.cores
    if profile == "cpu" and device.startswith("cuda"):
        raise ValueError(f"profile: got 'cpu' with device {device!r}, need device auto or cpu")
    if device == "cpu" and profile not in ("auto", "cpu"):
        raise ValueError(f"profile: got {profile!r} with device 'cpu', need profile auto or cpu")
    if "cpu" in (profile, device):
        return _cpu(machine, "the CPU was asked for", kv_format, weights, threads)
    card, why = _best_card(machine, device)
    if card is None:
        if device != "auto":
            raise ValueError(f"device: got {device!r}, need {_devices(machine)} ({why})")
        if profile != "auto":
            raise ValueError(f"profile: got {profile!r}, need auto or cpu on this machine ({why})")
        return _cpu(machine, why, kv_format, weights, threads)
    return _on_card(machine, card, why, profile, kv_format, weights, threads)


def architecture(capability: tuple[int, int]) -> str:
    """The profile of NVIDIA cards of this compute capability; "" for those that have none."""
    if capability < (8, 0):
        return ""
    if capability[0] == 8:
        return "ampere-dc" if capability == (8, 0) else "ada"
    return "hopper" if capability[0] == 9 else "blackwell"


def shared_memory(capability: tuple[int, int]) -> int:
    """Bytes that one program of a kernel may take; where unknown what every card has."""
    return _SHARED.get(capability, _TIGHT)


def memory_limit(card: Card, cap: int) -> int:
    """Bytes that tensors may take on `card`, of which `cap` bytes are used at most: what is free, and never what the
    desktop needs."""
    desktop = DESKTOP if shared_memory(card.capability) == _TIGHT or cap < card.total else 0
    return max(0, min(card.free - MARGIN, min(cap, card.total) - desktop - CONTEXT_BYTES))


def _check(field: str, got: str, choices: tuple[str, ...]) -> None:
    if got not in choices:
        raise ValueError(f"{field}: got {got!r}, need {' or '.join(choices)}")


def _cpu(machine: Machine, reason: str, kv_format: str, weights: str, threads: int) -> Profile:
    _check("weights", weights, tuple(CPU_WEIGHTS))
    return Profile(
        "cpu", reason, "cpu", CPU_WEIGHTS[weights], "bf16" if kv_format == "auto" else kv_format, torch.float32,
        "torch", (0, 0), False, 0, 1, _CPU_CHUNK, machine.memory_free, threads,
    )  # fmt: skip


def _best_card(machine: Machine, device: str) -> tuple[Card | None, str]:
    """(card, why this one), or (None, why none)."""
    usable = [card for card in machine.cards if card.vendor == "nvidia" and architecture(card.capability)]
    if device.startswith("cuda:"):
        chosen = next((card for card in machine.cards if f"cuda:{card.index}" == device), None)
        if chosen is None:
            return None, machine.no_card or f"there is no card {device[5:]}"
        return (chosen, "asked for") if chosen in usable else (None, _why_not(chosen))
    if not usable:
        refused = [_why_not(card) for card in machine.cards]
        return None, "; ".join(dict.fromkeys(refused)) or machine.no_card or "no CUDA device was found"
    best = max(usable, key=lambda card: (card.free, -card.index))
    return best, "" if len(machine.cards) == 1 else f"the one of {len(machine.cards)} cards with most free memory"


def _why_not(card: Card) -> str:
    if card.vendor == "nvidia":
        major, minor = card.capability
        return f"{card.name} has compute capability {major}.{minor}, and kernels here need 8.0 or newer"
    return f"{card.name} is not one of NVIDIA's cards, the only ones that kernels here run on"


def _devices(machine: Machine) -> str:
    usable = [f"cuda:{c.index}" for c in machine.cards if c.vendor == "nvidia" and architecture(c.capability)]
    return " or ".join(["auto", "cpu", *usable])


def _on_card(machine: Machine, card: Card, why: str, asked: str, kv_format: str, weights: str, threads: int) -> Profile:
    own = architecture(card.capability)
    name = own if asked == "auto" else asked
    capability = card.capability if name == own else _emulated(card, name)
    cap = card.total if asked == "auto" or (name == own and name != "ada") else _CAPS[name]
    limit = memory_limit(card, cap)
    row = _row(name, capability, card, cap)
    fp8 = capability >= _FIRST_WITH_FP8
    chosen_kv, chosen_weights, rows, kernels = row.kv_format, row.weights, row.rows, "triton"
    if machine.no_triton:  # packed formats would be unpacked by one torch operation after the other
        chosen_kv, chosen_weights, rows, kernels = "bf16", "bf16", 1, "torch"
    if not fp8 and kv_format == "fp8":
        raise ValueError(
            f"kv_format: got 'fp8', need {' or '.join(name for name in KV_FORMATS if name != 'fp8')} "
            f"({card.name} computes no fp8; k8v8 has as many bits)"
        )
    _check("weights", weights, ("auto", *CARD_WEIGHTS))
    return Profile(
        name,
        _reason(machine, card, why, name, own, capability, cap),
        f"cuda:{card.index}",
        chosen_weights if weights == "auto" else weights,
        chosen_kv if kv_format == "auto" else kv_format,
        torch.bfloat16,
        kernels,
        capability,
        capability != card.capability,
        shared_memory(capability),
        rows,
        row.chunk,
        limit,
        threads,
    )


def _emulated(card: Card, name: str) -> tuple[int, int]:
    """The compute capability to configure kernels for where `name` is not the card's own profile."""
    wanted = _EMULATED[name]
    if name == "ada" and card.capability < wanted:
        wanted = (8, 6)
    possible = [other for other in PROFILES[1:] if other == architecture(card.capability) or _can_be(card, other)]
    if name not in possible:
        major, minor = card.capability
        raise ValueError(
            f"profile: got {name!r}, need {' or '.join(['auto', 'cpu', *possible])} "
            f"({card.name} has compute capability {major}.{minor})"
        )
    return wanted


def _can_be(card: Card, name: str) -> bool:
    """Whether kernels of profile `name` run on `card`, which has another one."""
    wanted = (8, 6) if name == "ada" and card.capability < _EMULATED["ada"] else _EMULATED[name]
    roomy = shared_memory(card.capability) >= shared_memory(wanted)
    return roomy and (card.capability >= wanted or (name == "ada" and card.capability >= (8, 0)))


def _row(name: str, capability: tuple[int, int], card: Card, cap: int) -> _Row:
    """By the memory of the card; by its free memory only where more than half is taken, as a format that came and went
    with every other program would make documents be read again."""
    total = min(cap, card.total)
    size = total if card.free >= total / 2 else card.free
    row = next(row for row in ROWS[name] if size <= row.largest * GIB)
    if capability >= _FIRST_WITH_FP8:
        return row
    kv, weights = (_WITHOUT_FP8[field].get(getattr(row, field), getattr(row, field)) for field in _WITHOUT_FP8)
    return row._replace(kv_format=kv, weights=weights)


def _reason(machine: Machine, card: Card, why: str, name: str, own: str, capability: tuple[int, int], cap: int) -> str:
    major, minor = card.capability
    said = f"{card.name} has compute capability {major}.{minor} and {card.free / GIB:.1f} of "
    said += f"{card.total / GIB:.1f} GiB free"
    if why:
        said += f" ({why})"
    if name != own or cap < card.total:
        said += f"; {name} was asked for, so it is used like a card of compute capability "
        said += f"{capability[0]}.{capability[1]} with {min(cap, card.total) / GIB:.0f} GiB"
    elif capability[0] > 12:
        said += "; it is newer than this version knows"
    if machine.no_triton:
        said += f"; it computes through torch, slower: {machine.no_triton}"
    return said
