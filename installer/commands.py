"""The installer's commands: run, test, setup, update, uninstall. They print for people; exit code 0 means done."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from console import say
from data_folder import DataFolderError, remove_data
from environment import Environment, ForeignEnvironmentError, LockTimeoutError, remove_tree
from machine import find_gpu, has_browser
from packages import InstallError
from setup_app import set_up
from torch_build import VARIABLE as TORCH_VARIABLE
from torch_build import NoBuildError

ROOT = Path(__file__).resolve().parent.parent
DESCRIPTION = """\
Sets Unabridged up inside this folder and starts it.

  python3 installer run [--port N ...]    set up if needed, start the app, open the browser
  python3 installer test [PYTEST ARGS]    set up with the test tools, then lint, types and all tests
  python3 installer setup [--again]       set up alone (--again: from nothing)
  python3 installer update                fetch the newest version and its packages
  python3 installer uninstall [--data]    remove what was installed (--data: and your conversations and documents)
"""
EPILOG = """\
Environment: UNABRIDGED_TORCH=auto|cpu|configured|cu130|cu128|cu126 chooses the PyTorch build;
UNABRIDGED_DATA_DIR puts the app's data elsewhere; PIP_CACHE_DIR keeps pip's downloads there.
"""


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 installer",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("run", add_help=False)
    commands.add_parser("test", add_help=False)
    setup = commands.add_parser("setup")
    setup.add_argument("--again", action="store_true", help="build the environment from nothing")
    setup.add_argument("--upgrade", action="store_true", help="newest versions inside the allowed ranges")
    commands.add_parser("update")
    uninstall = commands.add_parser("uninstall")
    uninstall.add_argument("--data", action="store_true", help="also delete conversations, documents and models")
    uninstall.add_argument("--yes", action="store_true", help="do not ask before deleting data")
    # What follows run and test belongs to the app and to pytest, so argparse does not see it.
    own, rest = (arguments[:1], list(arguments[1:])) if arguments[:1] in (["run"], ["test"]) else (arguments, [])
    rest = rest[1:] if rest[:1] == ["--"] else rest
    if any(word in ("-h", "--help") for word in rest):
        parser.print_help()
        return 0
    options = parser.parse_args(own)
    try:
        if options.command == "run":
            return run(root, rest, environment)
        if options.command == "test":
            return test(root, rest, environment)
        if options.command == "setup":
            return setup_alone(root, options.again, options.upgrade, environment)
        if options.command == "update":
            return update(root)
        return uninstall_app(root, options.data, options.yes, environment)
    except InstallError as error:
        for line in error.detail:
            print("    | " + line, file=sys.stderr)
        print(error, file=sys.stderr)
    except (NoBuildError, ForeignEnvironmentError, LockTimeoutError, DataFolderError) as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(
            f"The set-up stopped: {error}. Type the same command again; it repairs what is unfinished.", file=sys.stderr
        )
    except KeyboardInterrupt:
        print("\nStopped. Type the same command again; it goes on from here.", file=sys.stderr)
        return 130
    return 1


def run(root: Path, rest: Sequence[str], environment: Mapping[str, str]) -> int:
    stamp = set_up(root, with_tests=False, outer=environment)
    if stamp.family == "cpu" and stamp.override in ("", "auto") and stamp.reason == "no NVIDIA GPU" and find_gpu()[0]:
        say(
            "There is an NVIDIA GPU now and the CPU build is installed; `python3 installer setup --again` changes that."
        )
    arguments = ["run", *rest]
    if "--no-browser" not in rest and not has_browser(platform.system(), environment):
        arguments.append("--no-browser")
    return start(Environment(root), arguments, environment)


def start(place: Environment, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Becomes the app where the system can replace a process, else runs it and waits."""
    program = str(place.program("unabridged"))
    handed_on = {name: value for name, value in environment.items() if name != TORCH_VARIABLE}
    sys.stdout.flush()
    if os.name == "posix":
        os.execve(program, [program, *arguments], handed_on)
    return subprocess.run([program, *arguments], check=False, env=handed_on).returncode


def test(root: Path, rest: Sequence[str], environment: Mapping[str, str]) -> int:
    """Lint, format, types, then all tests; pytest's summary comes last. Every check runs, also after one has failed."""
    set_up(root, with_tests=True, outer=environment)
    place = Environment(root)
    python = str(place.python)
    inner = {"PYRIGHT_PYTHON_CACHE_DIR": str(place.state / "pyright"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    inner |= dict(environment)
    checks = {
        "ruff check": [python, "-m", "ruff", "check", "."],
        "ruff format": [python, "-m", "ruff", "format", "--check", "."],
        "pyright": [python, "-m", "pyright", "--pythonpath", python],
    }
    failed: list[str] = []
    for name, command in checks.items():
        say(f"== {name}")
        if subprocess.run(command, check=False, cwd=root, env=inner).returncode:
            failed.append(name)
    say("== pytest" + (f" (failed before it: {', '.join(failed)})" if failed else ""))
    command = [python, "-m", "pytest", *at_once(os.cpu_count() or 1), *rest]
    code = subprocess.run(command, check=False, cwd=root, env=inner).returncode
    if failed:
        print(f"Failed besides the tests' own result: {', '.join(failed)}", file=sys.stderr)
    return code or int(bool(failed))


def at_once(cores: int) -> list[str]:
    """Options for pytest: whole files of tests, side by side in two processes. More would want more memory than a small
    machine has; with one core there is nothing to win."""
    return ["-n", "2", "--dist", "loadfile"] if cores > 1 else []


def setup_alone(root: Path, again: bool, upgrade: bool, environment: Mapping[str, str]) -> int:
    stamp = set_up(root, with_tests=False, again=again, upgrade=upgrade, outer=environment)
    say(f"Set up, with PyTorch {stamp.torch} ({stamp.reason}). `python3 installer run` starts the app.")
    return 0


def update(root: Path) -> int:
    if not (root / ".git").exists() or shutil.which("git") is None:
        print(
            "This folder is not a git checkout, so it cannot fetch a new version itself. "
            "Unpack the new version over it, then type: python3 installer setup --upgrade",
            file=sys.stderr,
        )
        return 1
    say("Fetching the newest version")
    if subprocess.run(["git", "-C", str(root), "pull", "--ff-only"], check=False).returncode:
        print("git could not bring this folder up to date; its own words above say why.", file=sys.stderr)
        return 1
    # The new version may bring a new installer, so it is that one which installs.
    return subprocess.run([sys.executable, str(root / "installer"), "setup", "--upgrade"], check=False).returncode


def uninstall_app(root: Path, data: bool, yes: bool, environment: Mapping[str, str]) -> int:
    place = Environment(root)
    place.check_owner()
    if data:
        remove_data(environment, yes)
    if place.state.exists():
        with place.lock(say):
            place.stamp_file.unlink(missing_ok=True)
            for folder in (place.folder, root / "build", root / "unabridged.egg-info"):
                remove_tree(folder)
    remove_tree(place.state)
    say(f"Removed the environment of {root}. The folder itself is yours to delete.")
    return 0
