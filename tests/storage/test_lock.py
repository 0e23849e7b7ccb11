"""One app per data folder: the second is told where the first one is, and a dead one is no obstacle."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from storage import DataFolderBusy, DataFolderLock, FolderNotWritable

HOLDER = """
import sys, time
from pathlib import Path
from storage import DataFolderLock
lock = DataFolderLock(Path(sys.argv[1])).acquire()
lock.set_address("http://127.0.0.1:7860/")
print("held", flush=True)
time.sleep(60)
"""


def start_holder(folder: Path) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], cwd=root, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_the_second_app_learns_the_address_of_the_first(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    try:
        with pytest.raises(DataFolderBusy) as caught:
            DataFolderLock(tmp_path).acquire()
        assert caught.value.address == "http://127.0.0.1:7860/"
        assert caught.value.pid == holder.pid
        assert "http://127.0.0.1:7860/" in caught.value.message
        assert "--data-dir" in caught.value.hint
    finally:
        holder.kill()
        holder.wait()
    with DataFolderLock(tmp_path) as lock:  # the killed one's lock is gone, its text is not believed
        assert lock.held


def test_the_lock_within_one_process(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path / "new").acquire("here")
    with pytest.raises(DataFolderBusy):
        DataFolderLock(tmp_path / "new").acquire()
    with pytest.raises(ValueError, match="held"):
        lock.acquire()
    lock.release()
    lock.release()
    with pytest.raises(ValueError, match="acquire"):
        lock.set_address("x")
    DataFolderLock(tmp_path / "new").acquire().release()


def test_unreadable_text_in_the_file_still_means_busy(tmp_path: Path) -> None:
    with DataFolderLock(tmp_path) as lock:
        lock.path.write_text("{half")
        with pytest.raises(DataFolderBusy) as caught:
            DataFolderLock(tmp_path).acquire()
        assert (caught.value.address, caught.value.pid) == ("", None)


def _hold_nothing(path: str) -> None:
    import time

    time.sleep(3)


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path).acquire()
    child = multiprocessing.get_context("fork").Process(target=_hold_nothing, args=(str(tmp_path),))
    child.start()
    try:
        with pytest.raises(DataFolderBusy):
            DataFolderLock(tmp_path).acquire()
        lock.release()
        DataFolderLock(tmp_path).acquire().release()
    finally:
        child.kill()
        child.join()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderNotWritable):
        DataFolderLock(tmp_path / "file").acquire()


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights on Windows")
def test_the_lock_file_is_never_followed_elsewhere(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "app.lock").symlink_to(target)
    with pytest.raises(FolderNotWritable):
        DataFolderLock(tmp_path / "data").acquire()
    assert target.read_text() == "keep me"
