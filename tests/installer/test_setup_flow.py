"""Which steps a set-up takes on which machine, with the packages' side faked: no pip, no network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import setup_app
from environment import Environment
from machine import Gpu, Machine
from packages import InstallError
from torch_build import PYTORCH_INDEX, Peek, Source

LAPTOP = Machine("Linux", "x86_64", None, "no NVIDIA GPU")
WORKSTATION = Machine("Linux", "x86_64", Gpu("RTX 4090", (580, 65), (8, 9)), "")
WHEEL = "torch-2.13.0{}-cp311-cp311-manylinux_2_28_x86_64.whl"


class FakePackages:
    """Records the steps. offers: what each index has; uv_works: None where there is no uv."""

    steps: list[Any]
    offers: dict[str, str]
    uv_works: bool | None
    sees_gpu: bool

    def __init__(self, place: Environment, outer: object, descriptor: int) -> None:
        self.place, self.fetched = place, 0
        self.uv = ""
        self.torch = "2.13.0+cu130"

    def configure(self) -> None:
        self.uv = "" if FakePackages.uv_works is None else "/usr/bin/uv"

    def make_environment(self) -> None:
        FakePackages.steps.append("venv")
        self.place.scripts.mkdir(parents=True, exist_ok=True)
        self.place.python.touch()
        self.place.program("unabridged").touch()
        (self.place.folder / "pyvenv.cfg").write_text(f"version = {setup_app_python()}\n")

    def peek(self, source: Source) -> Peek:
        wheel = FakePackages.offers.get(source.index.removeprefix(PYTORCH_INDEX), "")
        return Peek(wheel, "" if wheel else "unreachable")

    def install_torch(self, version: str, source: Source) -> None:
        self.torch = version
        FakePackages.steps.append(("torch", version, source.index))

    def install_app(self, extras: Sequence[str], torch: str, upgrade: bool) -> None:
        self.torch = torch
        FakePackages.steps.append(("app", tuple(extras), torch, upgrade))

    def install_with_uv(self, extras: Sequence[str], backend: str, upgrade: bool) -> bool:
        FakePackages.steps.append(("uv", tuple(extras), backend))
        return bool(FakePackages.uv_works)

    def install_starter(self) -> None:
        FakePackages.steps.append("starter")

    def installed(self, name: str) -> str:
        return self.torch

    def ask(self, code: str, otherwise: str) -> str:
        return f"{self.torch} {'cuda' if FakePackages.sees_gpu else 'cpu'}"


def setup_app_python() -> str:
    import platform

    return platform.python_version()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    (tmp_path / "pyproject.toml").write_text("x = 1\n")
    FakePackages.steps, FakePackages.uv_works, FakePackages.sees_gpu = [], None, True
    FakePackages.offers = {"": WHEEL.format("+cpu"), "cu130": WHEEL.format("+cu130")}
    monkeypatch.setattr(setup_app, "Packages", FakePackages)
    monkeypatch.setattr(setup_app, "free_bytes", lambda folder: 10**12)
    return Environment(tmp_path)


def set_up(place: Environment, machine: Machine, with_tests: bool = False, **options: Any) -> Any:
    FakePackages.steps = []
    outer = options.pop("outer", {})
    return setup_app.set_up(place.root, with_tests, outer=outer, look_at_machine=lambda: machine, **options)


def test_a_laptop_gets_the_cpu_build_and_no_triton(place: Environment) -> None:
    stamp = set_up(place, LAPTOP)
    assert FakePackages.steps == ["venv", ("torch", "2.13.0+cpu", ""), ("app", (), "2.13.0+cpu", False), "starter"]
    assert (stamp.family, stamp.extras) == ("cpu", ())


def test_a_card_gets_the_cuda_build_and_the_gpu_packages(place: Environment) -> None:
    stamp = set_up(place, WORKSTATION)
    assert FakePackages.steps[1] == ("torch", "2.13.0+cu130", PYTORCH_INDEX + "cu130")
    assert FakePackages.steps[2] == ("app", ("gpu",), "2.13.0+cu130", False)
    assert stamp.extras == ("gpu",)


def test_tests_bring_triton_to_a_laptop_and_keep_pytorch(place: Environment) -> None:
    set_up(place, LAPTOP)
    stamp = set_up(place, LAPTOP, with_tests=True)
    assert FakePackages.steps == [("app", ("gpu", "test"), "2.13.0+cpu", False), "starter"]
    set_up(place, LAPTOP)
    assert FakePackages.steps == []  # what tests need holds all that the app needs
    assert stamp.extras == ("gpu", "test")


def test_another_choice_of_pytorch_builds_anew(place: Environment) -> None:
    set_up(place, LAPTOP)
    set_up(place, LAPTOP, outer={"UNABRIDGED_TORCH": "cu130"})
    assert FakePackages.steps[:2] == ["venv", ("torch", "2.13.0+cu130", PYTORCH_INDEX + "cu130")]


def test_again_builds_anew_and_upgrade_asks_for_the_newest(place: Environment) -> None:
    set_up(place, LAPTOP)
    set_up(place, LAPTOP, again=True)
    assert FakePackages.steps[0] == "venv"
    set_up(place, LAPTOP, upgrade=True)
    assert FakePackages.steps == [("torch", "2.13.0+cpu", ""), ("app", (), "2.13.0+cpu", True), "starter"]


@pytest.mark.parametrize(("machine", "extras"), [(LAPTOP, ()), (WORKSTATION, ("gpu",))])
def test_uv_picks_the_build_itself(place: Environment, machine: Machine, extras: tuple[str, ...]) -> None:
    FakePackages.uv_works = True
    set_up(place, machine)
    assert FakePackages.steps == ["venv", ("uv", extras, "auto"), "starter"]


def test_uv_is_told_what_it_cannot_know(place: Environment) -> None:
    FakePackages.uv_works = True
    old = Machine("Linux", "x86_64", Gpu("RTX 2080", (470, 10), (7, 5)), "")
    set_up(place, old)
    assert FakePackages.steps[1] == ("uv", (), "cpu")
    set_up(place, LAPTOP, again=True, outer={"UNABRIDGED_TORCH": "cu128"})
    assert FakePackages.steps[1] == ("uv", ("gpu",), "cu128")


def test_pip_goes_on_where_uv_fails(place: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    FakePackages.uv_works = False
    set_up(place, LAPTOP)
    assert [step[0] for step in FakePackages.steps[1:4]] == ["uv", "torch", "app"]
    assert "uv could not do it" in capsys.readouterr().out


def test_a_card_that_pytorch_does_not_see_is_said(place: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    FakePackages.sees_gpu = False
    set_up(place, WORKSTATION)
    assert "does not see the GPU" in capsys.readouterr().out


def test_a_full_disk_stops_it_before_anything_is_made(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_app, "free_bytes", lambda folder: 10**9)
    with pytest.raises(InstallError, match=r"there are 1\.0 GB"):
        set_up(place, LAPTOP)
    assert FakePackages.steps == []
    assert not place.folder.exists()


def test_a_folder_without_write_rights_is_a_sentence(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_app, "is_writable", lambda folder: False)
    with pytest.raises(InstallError, match="cannot be written"):
        set_up(place, LAPTOP)


def test_what_it_takes_is_said_first(place: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    set_up(place, WORKSTATION)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].strip() == "machine   Linux x86_64, RTX 4090, driver 580.65"
    assert [line.split()[0] for line in lines[2:6]] == ["PyTorch", "to", "on", "free"]
    assert lines[6].startswith("[1/5]")
