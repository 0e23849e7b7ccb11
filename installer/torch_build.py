"""Which build of PyTorch fits this machine, and where pip can get it.

The choice is made before anything large is fetched: `peek` (given by the caller) says which wheel pip would take from
a source, and only a source whose wheel has the wanted family is used. Families are the local tags of PyTorch's own
wheels: `cpu`, `cu130`, `cu128`, ...; `cuda` stands for a Linux wheel without a tag, as PyPI serves it (CUDA 13).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from machine import Machine

REQUIREMENT = "torch>=2.11,<2.14"
PYTORCH_INDEX = "https://download.pytorch.org/whl/"
VARIABLE = "UNABRIDGED_TORCH"
CONFIGURED = "configured"

OLDEST_CAPABILITY = (8, 0)
# Oldest driver -> families to try, best first. CUDA 12 builds run on every driver that knows CUDA 12.0.
CUDA_BY_DRIVER = {
    "Linux": (((580,), ("cu130", "cu128", "cu126")), ((525, 60, 13), ("cu128", "cu126"))),
    "Windows": (((580,), ("cu130", "cu128", "cu126")), ((528, 33), ("cu128", "cu126"))),
}
UNTAGGED_CUDA_DRIVER = (580,)

_WHEEL = re.compile(r"\btorch-(?P<version>\d[^-\s/]*)-[^\s/]+?\.whl", re.IGNORECASE)


class NoBuildError(Exception):
    """No source has a build that this machine may fetch. The text is for the user."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """families: acceptable ones, best first ("configured" takes whatever pip finds); reason: why, for the user."""

    families: tuple[str, ...]
    reason: str

    @property
    def uses_gpu(self) -> bool:
        return self.families[0].startswith("cu")


@dataclass(frozen=True, slots=True)
class Source:
    """index: the one index to ask, or "" for what pip is configured to use."""

    index: str

    @property
    def text(self) -> str:
        return self.index or "what pip is configured to use"

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("--index-url", self.index) if self.index else ()

    @property
    def environment(self) -> dict[str, str]:
        # Replaces a configured extra index, which could otherwise offer a higher version of another family.
        return {"PIP_EXTRA_INDEX_URL": self.index} if self.index else {}


@dataclass(frozen=True, slots=True)
class Peek:
    """wheel: the file name pip would take, or "" with pip's own reason in `problem`."""

    wheel: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """version: as pip writes it, with the local tag; notes: what the user should know about the choice."""

    source: Source
    version: str
    family: str
    reason: str
    notes: tuple[str, ...] = ()

    @property
    def uses_gpu(self) -> bool:
        return self.family.startswith("cu")


def wanted(machine: Machine, override: str = "auto") -> Wanted:
    """What to look for. override is the value of UNABRIDGED_TORCH: auto, cpu, configured or a tag such as cu128."""
    if override not in ("", "auto"):
        if override not in ("cpu", CONFIGURED) and not re.fullmatch(r"cu\d{3}", override):
            raise NoBuildError(f"{VARIABLE}: got {override!r}, need auto, cpu, configured or a CUDA tag such as cu128")
        return Wanted((override,), f"{VARIABLE} says so")
    gpu = machine.gpu
    if gpu is None:
        return Wanted(("cpu",), machine.note)
    if machine.system not in CUDA_BY_DRIVER:
        return Wanted(("cpu",), f"there are no CUDA builds for {machine.system}")
    if gpu.capability is not None and gpu.capability < OLDEST_CAPABILITY:
        number = ".".join(str(part) for part in gpu.capability)
        return Wanted(("cpu",), f"{gpu.name} has compute capability {number} and 8.0 or newer is used")
    table = CUDA_BY_DRIVER[machine.system]
    for oldest, families in table:
        if gpu.driver >= oldest:
            return Wanted(families, f"{gpu.name}, driver {gpu.driver_text}")
    needed = ".".join(str(part) for part in table[-1][0])
    return Wanted(("cpu",), f"driver {gpu.driver_text} is too old for {gpu.name}: {needed} or newer is needed")


def find_wheel(line: str) -> str:
    """The torch wheel that a line of pip's output names, or ""."""
    found = _WHEEL.search(line.replace("%2B", "+").replace("%2b", "+"))
    return found.group(0) if found else ""


def version_of(wheel: str) -> str:
    found = _WHEEL.search(wheel)
    if found is None:
        raise ValueError(f"wheel: got {wheel!r}, need the file name of a torch wheel")
    return found.group("version")


def family_of(wheel: str, system: str) -> str:
    _, _, tag = version_of(wheel).partition("+")
    if tag:
        return tag
    return "cuda" if system == "Linux" else "cpu"


def acceptable(family: str, want: Wanted, machine: Machine) -> bool:
    if CONFIGURED in want.families or family in want.families:
        return True
    return family == "cuda" and want.uses_gpu and machine.gpu is not None and machine.gpu.driver >= UNTAGGED_CUDA_DRIVER


def _sources(want: Wanted) -> list[Source]:
    indexes = [Source(PYTORCH_INDEX + family) for family in want.families if family != CONFIGURED]
    return [Source(""), *indexes]


def choose(machine: Machine, override: str, peek: Callable[[Source], Peek]) -> Choice:
    """The first source with a fitting wheel: pip's own configuration, then PyTorch's index for each family.

    A machine with a card for which no CUDA build can be reached gets the CPU build, with a note. Raises NoBuildError.
    """
    want = wanted(machine, override)
    refused: list[str] = []
    choice = _first_fitting(machine, want, peek, refused)
    if choice is None and want.uses_gpu and override in ("", "auto"):
        note = "No CUDA build of PyTorch could be reached, so the GPU will not be used: " + "; ".join(refused) + "."
        want = Wanted(("cpu",), "no CUDA build could be reached")
        choice = _first_fitting(machine, want, peek, refused, (note,))
    if choice is None:
        raise NoBuildError(
            f"No PyTorch build fits this machine ({want.reason}): " + "; ".join(refused) + ". "
            f"Check the network and pip's configuration; {VARIABLE}=configured takes what pip finds, whatever its size."
        )
    return choice


def _first_fitting(
    machine: Machine, want: Wanted, peek: Callable[[Source], Peek], refused: list[str], notes: tuple[str, ...] = ()
) -> Choice | None:
    for source in _sources(want):
        seen = peek(source)
        if not seen.wheel:
            refused.append(f"{source.text}: {seen.problem}")
            continue
        family = family_of(seen.wheel, machine.system)
        if acceptable(family, want, machine):
            return Choice(source, version_of(seen.wheel), family, want.reason, notes)
        refused.append(f"{source.text}: offers {seen.wheel}, a {family} build")
    return None
