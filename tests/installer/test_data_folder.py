import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
from data_folder import DataFolderError, data_folder, own_entries, remove_data


def refuse(question: str) -> str:
    raise AssertionError(f"asked {question!r}")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name in ("models", "documents", "backups"):
        (folder / name).mkdir(parents=True)
    for name in ("library.db", "library.db-wal", "library.db.corrupt-1", "kvcache.db", "settings.toml", "app.lock"):
        (folder / name).write_bytes(b"x" * 100)
    return folder


def test_the_folder_is_the_apps_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from app.paths import resolve_data_dir

    monkeypatch.delenv("UNABRIDGED_DATA_DIR", raising=False)
    for home in ({}, {"XDG_DATA_HOME": str(tmp_path)}):
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        for key, value in home.items():
            monkeypatch.setenv(key, value)
        assert data_folder(home) == Path(platformdirs.user_data_dir("unabridged", appauthor=False))
    named = {"UNABRIDGED_DATA_DIR": str(tmp_path / "mine")}
    assert data_folder(named) == resolve_data_dir(None, named)[0]


def test_the_folder_on_other_systems(tmp_path: Path) -> None:
    windows = {"LOCALAPPDATA": str(tmp_path / "Local")}
    assert data_folder(windows, "win32", tmp_path) == tmp_path / "Local" / "unabridged"
    mac = tmp_path / "Library" / "Application Support" / "unabridged"
    assert data_folder({}, "darwin", tmp_path) == mac


def test_everything_that_the_app_keeps_is_known(filled: Path) -> None:
    assert {entry.name for entry in own_entries(filled)} == {entry.name for entry in filled.iterdir()}


def test_the_folders_of_the_app_are_all_known(tmp_path: Path) -> None:
    from app.paths import Paths

    Paths(tmp_path / "data").prepare()
    assert len(own_entries(tmp_path / "data")) == len(list((tmp_path / "data").iterdir())) > 0


def test_data_goes_only_after_a_yes(filled: Path) -> None:
    environment = {"UNABRIDGED_DATA_DIR": str(filled)}
    for answer in ("", "y", "no"):
        with pytest.raises(DataFolderError, match="Nothing was deleted"):
            remove_data(environment, yes=False, ask=lambda question, answer=answer: answer)
    assert (filled / "library.db").exists()
    remove_data(environment, yes=False, ask=lambda question: "yes")
    assert not filled.exists()


def test_without_a_keyboard_nothing_is_deleted(filled: Path) -> None:
    def closed(question: str) -> str:
        raise EOFError

    with pytest.raises(DataFolderError, match="--yes"):
        remove_data({"UNABRIDGED_DATA_DIR": str(filled)}, yes=False, ask=closed)
    assert (filled / "library.db").exists()


def test_other_files_in_the_folder_stay(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (filled / "thesis.tex").touch()
    remove_data({"UNABRIDGED_DATA_DIR": str(filled)}, yes=True, ask=refuse)
    assert [entry.name for entry in filled.iterdir()] == ["thesis.tex"]
    assert "1 other file" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses to delete open files by itself")
def test_data_of_a_running_app_is_not_deleted(filled: Path) -> None:
    code = "import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX);"
    code += "print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(filled / "app.lock")], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(DataFolderError, match="is running"):
            remove_data({"UNABRIDGED_DATA_DIR": str(filled)}, yes=True, ask=refuse)
    finally:
        holder.kill()
        holder.wait()
    assert (filled / "library.db").exists()


def test_no_data_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remove_data({"UNABRIDGED_DATA_DIR": str(tmp_path / "none")}, yes=False, ask=refuse)
    assert "no data" in capsys.readouterr().out
