import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from environment import Environment, ForeignEnvironmentError, LockTimeoutError, Stamp, remove_tree, write_atomically


@pytest.fixture
def place(tmp_path: Path) -> Environment:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "unabridged"\n')
    return Environment(tmp_path)


def stamp_for(place: Environment, **changes: object) -> Stamp:
    stamp = Stamp(place.fingerprint("auto"), ("gpu",), "2.13.0+cpu", "cpu", "no NVIDIA GPU", "auto", str(place.root))
    return dataclasses.replace(stamp, **changes)  # pyright: ignore[reportArgumentType]


def furnish(place: Environment) -> None:
    """The parts of a finished environment that are looked at."""
    place.begin()
    place.scripts.mkdir(parents=True)
    place.python.touch()
    place.program("unabridged").touch()
    version = ".".join(str(part) for part in sys.version_info[:3])
    (place.folder / "pyvenv.cfg").write_text(f"home = somewhere\nversion = {version}\n")


def test_a_finished_environment_is_ready_and_an_unfinished_one_is_not(place: Environment) -> None:
    print_of = place.fingerprint("auto")
    furnish(place)
    assert place.is_ready(print_of, frozenset()) is None
    place.finish(stamp_for(place))
    assert place.is_ready(print_of, frozenset()) == stamp_for(place)
    assert place.is_reusable()
    place.begin()
    assert place.is_ready(print_of, frozenset()) is None
    assert not place.is_reusable()


def test_a_stamp_beside_the_unfinished_mark_does_not_count(place: Environment) -> None:
    furnish(place)
    place.finish(stamp_for(place))
    write_atomically(place.unfinished, "x")
    assert place.stamp() is None


def test_more_extras_than_installed_are_not_ready(place: Environment) -> None:
    furnish(place)
    place.finish(stamp_for(place))
    fingerprint = place.fingerprint("auto")
    assert place.is_ready(fingerprint, frozenset({"gpu"}))
    assert place.is_ready(fingerprint, frozenset({"gpu", "test"})) is None


def test_changed_requirements_or_torch_choice_are_not_ready_but_reusable(place: Environment) -> None:
    furnish(place)
    place.finish(stamp_for(place))
    assert place.is_ready(place.fingerprint("cu128"), frozenset()) is None
    (place.root / "pyproject.toml").write_text('[project]\nname = "unabridged"\ndependencies = ["x"]\n')
    assert place.is_ready(place.fingerprint("auto"), frozenset()) is None
    assert place.is_reusable()


@pytest.mark.parametrize("damage", ["python", "program", "stamp", "half a stamp", "other fields"])
def test_damage_is_noticed(place: Environment, damage: str) -> None:
    furnish(place)
    place.finish(stamp_for(place))
    if damage == "python":
        place.python.unlink()
    elif damage == "program":
        place.program("unabridged").unlink()
    elif damage == "stamp":
        place.stamp_file.unlink()
    elif damage == "half a stamp":
        place.stamp_file.write_text(place.stamp_file.read_text()[:40])
    else:
        place.stamp_file.write_text('{"extras": [], "fingerprint": "x", "more": 1}')
    assert place.is_ready(place.fingerprint("auto"), frozenset()) is None


def test_another_python_or_a_moved_folder_is_not_reusable(place: Environment) -> None:
    furnish(place)
    place.finish(stamp_for(place, root="/elsewhere"))
    assert not place.is_reusable()
    furnish_again = stamp_for(place)
    write_atomically(place.unfinished, "x")
    place.finish(furnish_again)
    (place.folder / "pyvenv.cfg").write_text("version = 3.99.1\n")
    assert not place.is_reusable()


def test_an_environment_of_the_users_own_is_left_alone(place: Environment) -> None:
    place.folder.mkdir()
    (place.folder / "precious").touch()
    with pytest.raises(ForeignEnvironmentError, match="did not make it"):
        place.begin()
    assert (place.folder / "precious").exists()


def test_removing_a_link_leaves_its_target(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "never there")
    assert target.exists()
    assert not (tmp_path / "link").exists()


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stamp"
    write_atomically(file, "old")

    def fail(*_: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="power cut"):
        write_atomically(file, "new")
    assert file.read_text() == "old"


HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from environment import Environment
with Environment(Path(sys.argv[2])).lock(print):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(root: Path, place: Environment) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(root / "installer"), str(place.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_two_set_ups_do_not_work_at_once(root: Path, place: Environment) -> None:
    said: list[str] = []
    holder = hold(root, place)
    try:
        with pytest.raises(LockTimeoutError), place.lock(said.append, wait=0.5):
            pass
        assert said == ["Another set-up of this folder is at work; waiting for it."]
    finally:
        holder.kill()
        holder.wait()


def test_a_killed_set_up_frees_its_lock(root: Path, place: Environment) -> None:
    holder = hold(root, place)
    holder.kill()
    holder.wait()
    start = time.monotonic()
    with place.lock(lambda text: None):
        assert time.monotonic() - start < 5
