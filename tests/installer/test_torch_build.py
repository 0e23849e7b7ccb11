import tomllib
from pathlib import Path

import pytest
from machine import Gpu, Machine
from torch_build import (
    PYTORCH_INDEX,
    REQUIREMENT,
    NoBuildError,
    Peek,
    Source,
    choose,
    family_of,
    find_wheel,
    version_of,
    wanted,
)

LAPTOP = Machine("Linux", "x86_64", None, "no NVIDIA GPU")
CPU_WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
PYPI_WHEEL = "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
CU130_WHEEL = "torch-2.13.0+cu130-cp311-cp311-manylinux_2_28_x86_64.whl"
CU128_WHEEL = "torch-2.11.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl"


def with_card(driver: tuple[int, ...], capability: tuple[int, int] | None = (8, 9), system: str = "Linux") -> Machine:
    return Machine(system, "x86_64", Gpu("RTX", driver, capability))


class Shelf:
    """What each index offers; "" is pip's own configuration. Remembers who was asked."""

    def __init__(self, offers: dict[str, str]) -> None:
        self.offers = offers
        self.asked: list[str] = []

    def __call__(self, source: Source) -> Peek:
        key = source.index.removeprefix(PYTORCH_INDEX)
        self.asked.append(key)
        wheel = self.offers.get(key, "")
        return Peek(wheel, "" if wheel else "unreachable")


def test_the_range_is_that_of_pyproject(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert REQUIREMENT in project["project"]["dependencies"]


@pytest.mark.parametrize(
    ("machine", "families"),
    [
        (LAPTOP, ("cpu",)),
        (with_card((580, 65, 6)), ("cu130", "cu128", "cu126")),
        (with_card((595, 1)), ("cu130", "cu128", "cu126")),
        (with_card((579, 99)), ("cu128", "cu126")),
        (with_card((525, 60, 13)), ("cu128", "cu126")),
        (with_card((525, 60, 12)), ("cpu",)),
        (with_card((470, 10), None), ("cpu",)),
        (with_card((580, 1), (7, 5)), ("cpu",)),
        (with_card((528, 33), system="Windows"), ("cu128", "cu126")),
        (with_card((528, 32), system="Windows"), ("cpu",)),
        (with_card((580, 1), system="FreeBSD"), ("cpu",)),
    ],
)
def test_families_by_card_and_driver(machine: Machine, families: tuple[str, ...]) -> None:
    assert wanted(machine).families == families


def test_a_cpu_build_beside_a_card_says_why() -> None:
    assert "driver 470.10 is too old for RTX: 525.60.13 or newer is needed" in wanted(with_card((470, 10))).reason
    assert "compute capability 7.5" in wanted(with_card((580, 1), (7, 5))).reason


def test_the_user_overrules_and_a_wrong_word_is_refused() -> None:
    assert wanted(LAPTOP, "cu128").families == ("cu128",)
    assert wanted(with_card((580, 1)), "cpu").families == ("cpu",)
    with pytest.raises(NoBuildError, match="UNABRIDGED_TORCH: got 'gpu', need auto, cpu, configured"):
        wanted(LAPTOP, "gpu")


@pytest.mark.parametrize(
    ("line", "wheel"),
    [
        (f"Processing /opt/shelf/{CPU_WHEEL}", CPU_WHEEL),
        (f"  Downloading {PYPI_WHEEL} (526.6 MB)", PYPI_WHEEL),
        (f"  Downloading {PYPI_WHEEL}.metadata (29 kB)", PYPI_WHEEL),
        (f"  Using cached {PYPI_WHEEL}", PYPI_WHEEL),
        (
            "  Downloading https://host/whl/cpu/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (190 MB)",
            "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl",
        ),
        (
            f"  Obtaining dependency information for torch<2.14,>=2.11 from https://host/ab/{PYPI_WHEEL}.metadata",
            PYPI_WHEEL,
        ),
        ("Collecting torch<2.14,>=2.11", ""),
        ("  Downloading pytorch-9.0-py3-none-any.whl (1 kB)", ""),
        ("  Downloading torchvision-0.28.0-cp311-cp311-manylinux_2_28_x86_64.whl", ""),
    ],
)
def test_the_wheel_is_found_in_what_pip_prints(line: str, wheel: str) -> None:
    assert find_wheel(line) == wheel


def test_versions_and_families() -> None:
    assert version_of(CPU_WHEEL) == "2.13.0+cpu"
    assert family_of(CPU_WHEEL, "Linux") == "cpu"
    assert family_of(PYPI_WHEEL, "Linux") == "cuda"
    assert family_of(PYPI_WHEEL, "Windows") == family_of(PYPI_WHEEL, "Darwin") == "cpu"
    assert family_of(CU128_WHEEL, "Linux") == "cu128"
    with pytest.raises(ValueError, match="wheel: got"):
        version_of("numpy-2.0-py3-none-any.whl")


def test_a_cpu_machine_takes_what_pip_has_when_that_is_a_cpu_build() -> None:
    shelf = Shelf({"": CPU_WHEEL})
    choice = choose(LAPTOP, "auto", shelf)
    assert (choice.version, choice.family, choice.source.index) == ("2.13.0+cpu", "cpu", "")
    assert shelf.asked == [""]


def test_a_cpu_machine_goes_to_the_cpu_index_when_pip_has_a_cuda_build() -> None:
    shelf = Shelf({"": PYPI_WHEEL, "cpu": CPU_WHEEL})
    choice = choose(LAPTOP, "auto", shelf)
    assert choice.source.arguments == ("--index-url", PYTORCH_INDEX + "cpu")
    assert choice.source.environment == {"PIP_EXTRA_INDEX_URL": PYTORCH_INDEX + "cpu"}


@pytest.mark.parametrize("offers", [{"": PYPI_WHEEL}, {"": PYPI_WHEEL, "cpu": CU130_WHEEL}, {}])
def test_a_cpu_machine_never_takes_a_cuda_build(offers: dict[str, str]) -> None:
    with pytest.raises(NoBuildError, match="UNABRIDGED_TORCH=configured"):
        choose(LAPTOP, "auto", Shelf(offers))


def test_what_pip_finds_is_taken_when_the_user_says_so() -> None:
    assert choose(LAPTOP, "configured", Shelf({"": PYPI_WHEEL})).family == "cuda"


def test_a_new_driver_takes_the_untagged_cuda_build() -> None:
    choice = choose(with_card((580, 1)), "auto", Shelf({"": PYPI_WHEEL}))
    assert choice.uses_gpu
    assert choice.source.index == ""


def test_an_older_driver_gets_cuda_12_from_its_own_index() -> None:
    shelf = Shelf({"": PYPI_WHEEL, "cu128": CU128_WHEEL})
    choice = choose(with_card((550, 54)), "auto", shelf)
    assert (choice.version, choice.source.index) == ("2.11.0+cu128", PYTORCH_INDEX + "cu128")


def test_a_card_without_any_reachable_cuda_build_gets_the_cpu_build_and_is_told() -> None:
    choice = choose(with_card((580, 1)), "auto", Shelf({"": CPU_WHEEL}))
    assert choice.family == "cpu"
    assert "the GPU will not be used" in choice.notes[0]
    assert f"offers {CPU_WHEEL}, a cpu build" in choice.notes[0]


def test_a_family_the_user_named_is_not_replaced() -> None:
    with pytest.raises(NoBuildError):
        choose(with_card((580, 1)), "cu126", Shelf({"": CPU_WHEEL}))


def test_windows_and_macos_take_what_pip_has_without_a_card() -> None:
    for system in ("Windows", "Darwin"):
        here = Machine(system, "x86_64", None, "no NVIDIA GPU")
        assert choose(here, "auto", Shelf({"": PYPI_WHEEL})).source.index == ""


def test_windows_with_a_card_does_not_take_the_cpu_build_of_pypi() -> None:
    shelf = Shelf({"": PYPI_WHEEL, "cu130": CU130_WHEEL})
    assert choose(with_card((581, 15), system="Windows"), "auto", shelf).family == "cu130"
