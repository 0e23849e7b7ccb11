import ast
import subprocess
import sys
from pathlib import Path

import pytest
from python_check import problem, problem_here, read_os_release

NOTHING = {}.get
DEBIAN = {"ID": "debian"}
UBUNTU = {"ID": "pop", "ID_LIKE": "ubuntu debian"}
FEDORA = {"ID": "fedora"}


@pytest.mark.parametrize("name", ["__main__.py", "python_check.py"])
def test_the_first_files_parse_on_python_3_6(root: Path, name: str) -> None:
    text = (root / "installer" / name).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert "__future__" not in text  # annotations from there came with 3.7


@pytest.mark.parametrize(
    ("system", "release", "command"),
    [
        ("Linux", DEBIAN, "sudo apt install python3.11 python3.11-venv && python3.11 installer run"),
        ("Linux", UBUNTU, "sudo apt install python3.11 python3.11-venv && python3.11 installer run"),
        ("Linux", FEDORA, "sudo dnf install python3.12 && python3.12 installer run"),
        ("Darwin", {}, "brew install python@3.12 && python3.12 installer run"),
        ("Windows", {}, "winget install Python.Python.3.12 && py -3.12 installer run"),
    ],
)
def test_an_old_python_gets_one_sentence_with_the_command(system: str, release: dict[str, str], command: str) -> None:
    said = problem((3, 8, 10), True, system, release, NOTHING)
    assert said.endswith(command)
    assert "3.11 or newer and this is Python 3.8" in said
    assert "\n" not in said


def test_a_newer_python_on_the_path_is_named_first() -> None:
    found = {"python3.12": "/usr/bin/python3.12"}.get
    assert problem((3, 9, 2), True, "Linux", DEBIAN, found).endswith("type: python3.12 installer run")


@pytest.mark.parametrize(
    ("system", "release", "command"),
    [
        ("Linux", DEBIAN, "sudo apt install python3.11-venv && python3.11 installer run"),
        ("Linux", FEDORA, "sudo dnf install python3 python3-libs && python3 installer run"),
        ("Darwin", {}, "brew install python@3.12 && python3.12 installer run"),
        ("Windows", {}, "winget install Python.Python.3.12 && py -3.12 installer run"),
    ],
)
def test_a_python_without_venv_gets_the_command(system: str, release: dict[str, str], command: str) -> None:
    said = problem((3, 11, 2), False, system, release, NOTHING)
    assert said.endswith("type: " + command)
    assert "\n" not in said


def test_this_python_has_no_problem() -> None:
    assert problem_here() == ""


def test_os_release_is_read_without_quotes(tmp_path: Path) -> None:
    file = tmp_path / "os-release"
    file.write_text('NAME="Some Linux"\nID=some\n# comment\nID_LIKE="rhel fedora"\n')
    assert read_os_release(str(file))["ID_LIKE"] == "rhel fedora"
    assert read_os_release(str(tmp_path / "none")) == {}


def test_without_venv_the_command_itself_says_so_and_ends(root: Path) -> None:
    hidden = "import sys, runpy; sys.modules['ensurepip'] = None; sys.argv = ['installer', 'run'];"
    code = hidden + "import importlib.util as u; real = u.find_spec;"
    code += "u.find_spec = lambda name, *a: None if name == 'ensurepip' else real(name, *a);"
    code += f"runpy.run_path({str(root / 'installer')!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "has no venv module" in done.stderr
    assert len(done.stderr.splitlines()) == 1
