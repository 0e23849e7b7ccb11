import os
import subprocess
from pathlib import Path
from typing import Any

import commands
import pytest
from environment import Environment, Stamp
from machine import Gpu, Machine
from packages import InstallError

STAMP = Stamp("f", (), "2.13.0+cpu", "cpu", "no NVIDIA GPU", "auto", "/x")


class Recorder:
    """Stands where set_up, the app's start and subprocess.run are; keeps what they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, codes: dict[str, int] | None = None) -> None:
        self.set_ups: list[dict[str, Any]] = []
        self.starts: list[list[str]] = []
        self.runs: list[list[str]] = []
        self.codes = codes or {}
        monkeypatch.setattr(commands, "set_up", self.set_up)
        monkeypatch.setattr(commands, "start", self.start)
        monkeypatch.setattr(commands.subprocess, "run", self.run)
        monkeypatch.setattr(commands, "find_gpu", lambda: (None, "no NVIDIA GPU"))

    def set_up(self, root: Path, with_tests: bool, **options: Any) -> Stamp:
        self.set_ups.append({"with_tests": with_tests, **options})
        return STAMP

    def start(self, place: Environment, arguments: list[str], environment: dict[str, str]) -> int:
        self.starts.append(list(arguments))
        return 0

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.runs.append([str(word) for word in command])
        code = next((code for word, code in self.codes.items() if word in command), 0)
        return subprocess.CompletedProcess(command, code)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def test_run_starts_the_app_and_passes_its_arguments_on(recorder: Recorder, tmp_path: Path) -> None:
    assert commands.main(["run", "--port", "7999"], {"DISPLAY": ":0"}, tmp_path) == 0
    assert recorder.starts == [["run", "--port", "7999"]]
    assert recorder.set_ups[0]["with_tests"] is False


def test_the_installers_own_variable_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[dict[str, str]] = []
    monkeypatch.setattr(commands.os, "execve", lambda program, words, environment: handed.append(environment))
    monkeypatch.setattr(
        commands.subprocess,
        "run",
        lambda words, check, env: handed.append(env) or subprocess.CompletedProcess(words, 0),
    )
    commands.start(Environment(tmp_path), ["run"], {"UNABRIDGED_TORCH": "cpu", "UNABRIDGED_DATA_DIR": "/x"})
    assert handed[0] == {"UNABRIDGED_DATA_DIR": "/x"}


def test_run_without_a_browser_says_so_to_the_app_once(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.platform, "system", lambda: "Linux")
    commands.main(["run"], {}, tmp_path)
    commands.main(["run", "--no-browser"], {}, tmp_path)
    commands.main(["run", "--", "--port", "1"], {"CI": "true"}, tmp_path)
    assert recorder.starts == [["run", "--no-browser"], ["run", "--no-browser"], ["run", "--port", "1", "--no-browser"]]


def test_run_mentions_a_card_that_came_later(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "find_gpu", lambda: (Gpu("RTX 4090", (580, 1), (8, 9)), ""))
    commands.main(["run"], {}, tmp_path)
    assert "setup --again" in capsys.readouterr().out


def test_test_runs_lint_format_types_and_then_the_tests(recorder: Recorder, tmp_path: Path) -> None:
    assert commands.main(["test", "tests/installer", "-k", "x"], {}, tmp_path) == 0
    assert recorder.set_ups[0]["with_tests"] is True
    tools = [command[command.index("-m") + 1 :] for command in recorder.runs]
    assert [tool[0] for tool in tools] == ["ruff", "ruff", "pyright", "pytest"]
    assert tools[1] == ["ruff", "format", "--check", "."]
    assert tools[3] == ["pytest", *commands.at_once(os.cpu_count() or 1), "tests/installer", "-k", "x"]
    assert commands.at_once(1) == []


@pytest.mark.parametrize("broken", ["ruff", "pyright", "pytest"])
def test_any_failing_check_fails_the_whole_and_all_are_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str
) -> None:
    recorder = Recorder(monkeypatch, {broken: 1})
    assert commands.main(["test"], {}, tmp_path) != 0
    assert len(recorder.runs) == 4


def test_setup_passes_its_options_on(recorder: Recorder, tmp_path: Path) -> None:
    commands.main(["setup", "--again"], {}, tmp_path)
    commands.main(["setup", "--upgrade"], {}, tmp_path)
    assert [(call["again"], call["upgrade"]) for call in recorder.set_ups] == [(True, False), (False, True)]


def test_update_pulls_and_lets_the_new_installer_install(recorder: Recorder, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert commands.main(["update"], {}, tmp_path) == 0
    assert recorder.runs[0] == ["git", "-C", str(tmp_path), "pull", "--ff-only"]
    assert recorder.runs[1][1:] == [str(tmp_path / "installer"), "setup", "--upgrade"]


def test_update_installs_nothing_when_git_could_not_pull(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(monkeypatch, {"git": 1})
    (tmp_path / ".git").mkdir()
    assert commands.main(["update"], {}, tmp_path) == 1
    assert len(recorder.runs) == 1


def test_update_of_an_unpacked_archive_says_what_to_do(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["update"], {}, tmp_path) == 1
    assert "setup --upgrade" in capsys.readouterr().err
    assert recorder.runs == []


def test_uninstall_removes_what_was_made_and_keeps_the_rest(tmp_path: Path) -> None:
    place = Environment(tmp_path)
    place.begin()
    (place.folder / "lib").mkdir(parents=True)
    (tmp_path / "unabridged.egg-info").mkdir()
    (tmp_path / "README.md").touch()
    assert commands.main(["uninstall"], {"UNABRIDGED_DATA_DIR": str(tmp_path / "data")}, tmp_path) == 0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["README.md"]
    assert commands.main(["uninstall"], {}, tmp_path) == 0


def test_uninstall_leaves_an_environment_of_the_users_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".venv").mkdir()
    assert commands.main(["uninstall"], {}, tmp_path) == 1
    assert "did not make it" in capsys.readouterr().err
    assert (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InstallError("It broke. Do this.", ["last line"]), 1, "It broke. Do this."),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "Type the same command again"),
    ],
)
def test_errors_are_sentences(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: BaseException,
    code: int,
    words: str,
) -> None:
    def fail(*_: object, **__: object) -> Stamp:
        raise error

    monkeypatch.setattr(commands, "set_up", fail)
    assert commands.main(["setup"], {}, tmp_path) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [[], ["dance"], ["setup", "--nonsense"]])
def test_wrong_use_is_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        commands.main(arguments, {}, tmp_path)
    assert stopped.value.code == 2


def test_asking_for_help_installs_nothing(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["run", "--help"], {}, tmp_path) == 0
    assert recorder.set_ups == []
    assert "python3 installer run" in capsys.readouterr().out


def test_the_machine_is_not_looked_at_when_all_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import setup_app

    monkeypatch.setattr(Environment, "is_ready", lambda self, fingerprint, extras: STAMP)
    (tmp_path / "pyproject.toml").touch()

    def never() -> Machine:
        raise AssertionError("looked")

    assert setup_app.set_up(tmp_path, True, outer={}, look_at_machine=never) is STAMP
    assert not (tmp_path / ".setup").exists()
