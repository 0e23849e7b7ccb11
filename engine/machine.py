"""What this machine is: its graphics cards, whether kernels can be compiled for them, host memory and cores.

`look` asks torch, psutil and Triton; nothing here decides anything. The rules (engine.profile_rules) work on a
`Machine` that may as well be made up.
"""

import os
import shutil
import sys
import warnings
from dataclasses import dataclass
from typing import Literal

import psutil
import torch

from kernels import triton_jit

Vendor = Literal["nvidia", "amd", "apple", "intel"]


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card that torch sees. `index`: as in cuda:N. `capability`: (major, minor) of NVIDIA's, else (0, 0).
    `total` and `free`: bytes; what this process holds in torch's allocator counts as free."""

    index: int
    name: str
    capability: tuple[int, int]
    total: int
    free: int
    vendor: Vendor = "nvidia"


@dataclass(frozen=True, slots=True)
class Machine:
    """`no_card`: why torch sees no card of NVIDIA's, "" if it does. `no_triton`: why Triton kernels cannot run on the
    cards, "" if they can, or where there is none. Memory of the host is in bytes; `cores` are physical ones."""

    cards: tuple[Card, ...]
    no_card: str
    no_triton: str
    memory_total: int
    memory_free: int
    cores: int


def look(device: str = "auto") -> Machine:
    """What is here. `device`: "cpu" leaves cards alone, "cuda:N" looks at that one only; asking a card for its free
    memory takes some of it for as long as this process lives."""
    memory = psutil.virtual_memory()
    cards, no_card, no_triton = (), "", ""
    if device != "cpu":
        cards, no_card = _cards(device)
        if any(card.vendor == "nvidia" for card in cards):
            no_triton = why_no_triton()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return Machine(cards, no_card, no_triton, memory.total, memory.available, cores)


def why_no_triton() -> str:
    """Why Triton kernels cannot run on the cards here, or "" if they can: a tiny one is compiled and run, once."""
    return triton_jit.unavailable_reason()


def c_compiler_hint() -> str:
    """What to install where no C compiler is found, which Triton needs once for each machine; "" if there is one."""
    if sys.platform != "linux" or os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"):
        return ""  # on Windows Triton brings its own
    return (
        "no C compiler was found, which Triton needs; install one: `sudo apt install gcc` (Debian, Ubuntu), "
        "`sudo dnf install gcc` (Fedora), `sudo pacman -S gcc` (Arch)"
    )


def _cards(device: str) -> tuple[tuple[Card, ...], str]:
    """(cards, why there is none of NVIDIA's)."""
    if not torch.cuda.is_available():
        return _other_cards(), _why_no_card()
    if torch.version.hip is not None:
        named = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        found = tuple(Card(i, p.name, (0, 0), p.total_memory, p.total_memory, "amd") for i, p in enumerate(named))
        return found, f"this PyTorch is built for AMD's cards (ROCm {torch.version.hip})"
    asked = torch.device(device).index if device.startswith("cuda") else None
    indices = range(torch.cuda.device_count()) if asked is None else [asked]
    return tuple(_card(index) for index in indices if index < torch.cuda.device_count()), ""


def _card(index: int) -> Card:
    free, total = torch.cuda.mem_get_info(index)
    free += torch.cuda.memory_reserved(index)
    return Card(index, torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), total, free)


def _other_cards() -> tuple[Card, ...]:
    if torch.backends.mps.is_available():
        total = psutil.virtual_memory().total
        return (Card(0, "Apple GPU", (0, 0), total, total, "apple"),)
    if torch.xpu.is_available():
        found = torch.xpu.get_device_properties(0)
        return (Card(0, found.name, (0, 0), found.total_memory, found.total_memory, "intel"),)
    return ()


def _why_no_card() -> str:
    """In the words that follow "because"."""
    if torch.version.cuda is None:
        return "this PyTorch is built for CPUs"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        said = str(error)
        if "too old" in said:
            return f"the NVIDIA driver is too old for this PyTorch (CUDA {torch.version.cuda}); update the driver"
        if "no NVIDIA driver" in said:
            return "no NVIDIA driver was found"
        return f"CUDA does not start: {said.splitlines()[0] if said else type(error).__name__}"
    return "no CUDA device was found"
