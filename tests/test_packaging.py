"""The wheel: builds without a network, holds every package with its data and nothing else, and its command works."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "engine", "kernels", "storage", "ui")
COPIED = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)


def tracked(paths: tuple[str, ...]) -> list[str]:
    """Files of the checkout under these paths, without caches."""
    found: list[str] = []
    for path in paths:
        top = ROOT / path
        entries = [top] if top.is_file() else sorted(entry for entry in top.rglob("*") if entry.is_file())
        found += [entry.relative_to(ROOT).as_posix() for entry in entries if "__pycache__" not in entry.parts]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for file in tracked(COPIED):
        target = source / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / file).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_every_package(wheel: Path) -> None:
    assert set(tracked(PACKAGES)) <= names_in(wheel)


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert tops - set(PACKAGES) == {"unabridged-0.1.0.dist-info"}
    assert not [name for name in names_in(wheel) if name.endswith((".gguf", ".safetensors", ".pyc"))]


def test_every_package_says_that_it_is_typed(wheel: Path) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= names_in(wheel)


def test_licence_and_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert "Apache License" in archive.read("unabridged-0.1.0.dist-info/licenses/LICENSE").decode()
        entry = configparser.ConfigParser()
        entry.read_string(archive.read("unabridged-0.1.0.dist-info/entry_points.txt").decode())
        metadata = archive.read("unabridged-0.1.0.dist-info/METADATA").decode()
    assert entry["console_scripts"]["unabridged"] == "app.cli:main"
    assert "License-Expression: Apache-2.0" in metadata
    always = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert always
    assert not [line for line in always if "triton" in line or "transformers" in line]


def test_the_installed_command_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import app.cli;"
    code += "print(app.__file__); app.cli.main(['--help'])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
    assert "unabridged" in done.stdout
