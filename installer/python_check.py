"""Is this Python able to set the app up? If not, one sentence with the command to type.

Parses on Python 3.6: no newer syntax here (no `|` in annotations, no `match`, no `:=`).
"""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping

OLDEST = (3, 11)
NEWER_NAMES = ("python3.14", "python3.13", "python3.12", "python3.11")
APT_FAMILY = ("debian", "ubuntu")
DNF_FAMILY = ("fedora", "rhel", "centos")


def read_os_release(path: str = "/etc/os-release") -> Mapping:
    """The keys of os-release, or nothing where there is no such file."""
    fields = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, found, value = line.strip().partition("=")
                if found:
                    fields[key] = value.strip("\"'")
    return fields


def _family(os_release: Mapping) -> str:
    names = (os_release.get("ID", "") + " " + os_release.get("ID_LIKE", "")).split()
    if any(name in APT_FAMILY for name in names):
        return "apt"
    if any(name in DNF_FAMILY for name in names):
        return "dnf"
    return ""


def newer_python(system: str, os_release: Mapping, which: Callable) -> str:
    """What to type to run the installer with a Python that is new enough."""
    for name in NEWER_NAMES:
        if which(name):
            return name + " installer run"
    if system == "Darwin":
        return "brew install python@3.12 && python3.12 installer run"
    if system == "Windows":
        return "winget install Python.Python.3.12 && py -3.12 installer run"
    family = _family(os_release)
    if family == "apt":
        return "sudo apt install python3.11 python3.11-venv && python3.11 installer run"
    if family == "dnf":
        return "sudo dnf install python3.12 && python3.12 installer run"
    return "PYTHON installer run, with the path of a Python 3.11 or newer for PYTHON"


def with_venv(system: str, os_release: Mapping, version: tuple) -> str:
    """What to type to give this Python its missing venv module."""
    name = "python" + str(version[0]) + "." + str(version[1])
    family = _family(os_release)
    if system == "Linux" and family == "apt":
        return "sudo apt install " + name + "-venv && " + name + " installer run"
    if system == "Linux" and family == "dnf":
        return "sudo dnf install python3 python3-libs && python3 installer run"
    if system == "Darwin":
        return "brew install python@3.12 && python3.12 installer run"
    if system == "Windows":
        return "winget install Python.Python.3.12 && py -3.12 installer run"
    return "PYTHON installer run, with the path of a Python that has venv and ensurepip for PYTHON"


def problem(version: tuple, has_venv: bool, system: str, os_release: Mapping, which: Callable) -> str:
    """One sentence on what is missing and what to type, or nothing when all is well."""
    number = ".".join(str(part) for part in version[:2])
    if tuple(version[:2]) < OLDEST:
        return "Unabridged needs Python 3.11 or newer and this is Python {}; type: {}".format(  # noqa: UP032
            number, newer_python(system, os_release, which)
        )
    if not has_venv:
        return "This Python {} has no venv module, which the set-up needs; type: {}".format(  # noqa: UP032
            number, with_venv(system, os_release, version)
        )
    return ""


def problem_here() -> str:
    has_venv = all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip"))
    return problem(tuple(sys.version_info[:3]), has_venv, platform.system(), read_os_release(), shutil.which)
