"""What machine is this: system, processor, NVIDIA card and driver, and is there a browser to open.

Knows nothing of packages. A missing or failing nvidia-smi means "no NVIDIA GPU", with the reason kept for the user.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

WSL_NVIDIA_SMI = "/usr/lib/wsl/lib/nvidia-smi"
NVIDIA_SMI_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA card. capability is (major, minor), or None where the driver is too old to say."""

    name: str
    driver: tuple[int, ...]
    capability: tuple[int, int] | None

    @property
    def driver_text(self) -> str:
        return ".".join(str(part) for part in self.driver)


@dataclass(frozen=True, slots=True)
class Machine:
    """system: Linux, Darwin or Windows; arch: x86_64 or arm64; note: why there is no gpu."""

    system: str
    arch: str
    gpu: Gpu | None
    note: str = ""

    @property
    def text(self) -> str:
        card = f"{self.gpu.name}, driver {self.gpu.driver_text}" if self.gpu else self.note
        return f"{self.system} {self.arch}, {card}"


def _arch(name: str) -> str:
    return {"amd64": "x86_64", "aarch64": "arm64"}.get(name.lower(), name.lower())


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.strip().split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def parse_cards(output: str) -> list[Gpu]:
    """Rows of `name, driver[, capability]` as nvidia-smi prints them; rows that say something else are left out."""
    cards: list[Gpu] = []
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        driver = _numbers(cells[1]) if len(cells) > 1 else ()
        if not driver:
            continue
        capability = _numbers(cells[2]) if len(cells) > 2 else ()
        cards.append(Gpu(cells[0], driver, (capability[0], capability[1]) if len(capability) == 2 else None))
    return cards


def find_gpu(
    which: Callable[[str], str | None] = shutil.which,
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> tuple[Gpu | None, str]:
    """(the newest NVIDIA card, "") or (None, why there is none)."""
    tool = which("nvidia-smi") or which(WSL_NVIDIA_SMI)
    if tool is None:
        return None, "no NVIDIA GPU"
    failure = ""
    # Drivers before 510 do not know compute_cap and refuse the whole query.
    for query in ("name,driver_version,compute_cap", "name,driver_version"):
        try:
            answer = run(
                [tool, f"--query-gpu={query}", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=NVIDIA_SMI_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"nvidia-smi does not run ({type(error).__name__})"
        cards = parse_cards(answer.stdout) if answer.returncode == 0 else []
        if cards:
            return max(cards, key=lambda card: card.capability or (0, 0)), ""
        said = (answer.stdout.strip() or answer.stderr.strip()).splitlines()
        failure = said[0] if said else "it printed nothing"
    return None, f"nvidia-smi sees no usable GPU ({failure})"


def look() -> Machine:
    system = platform.system()
    gpu, note = (None, "no NVIDIA GPU") if system == "Darwin" else find_gpu()
    return Machine(system, _arch(platform.machine()), gpu, note)


def has_browser(system: str, environment: Mapping[str, str]) -> bool:
    """Is a browser on this screen likely? Not over SSH, not in CI, not on a Linux without a display."""
    if environment.get("SSH_CONNECTION") or environment.get("CI"):
        return False
    if system == "Linux":
        return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))
    return True
