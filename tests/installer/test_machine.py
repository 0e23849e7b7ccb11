import subprocess
from collections.abc import Callable

import machine
import pytest
from machine import Gpu, find_gpu, has_browser, parse_cards


def answering(
    *answers: tuple[int, str, str],
) -> tuple[Callable[..., subprocess.CompletedProcess[str]], list[list[str]]]:
    calls: list[list[str]] = []
    left = list(answers)

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        code, out, err = left.pop(0)
        return subprocess.CompletedProcess(command, code, out, err)

    return run, calls


def smi(name: str) -> str | None:
    return "/usr/bin/nvidia-smi" if name == "nvidia-smi" else None


def test_one_card_is_read() -> None:
    run, calls = answering((0, "NVIDIA GeForce RTX 4090, 580.65.06, 8.9\n", ""))
    assert find_gpu(smi, run) == (Gpu("NVIDIA GeForce RTX 4090", (580, 65, 6), (8, 9)), "")
    assert calls == [["/usr/bin/nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]]


def test_of_several_cards_the_newest_counts() -> None:
    run, _ = answering((0, "Tesla T4, 550.54.15, 7.5\nNVIDIA H200, 550.54.15, 9.0\n", ""))
    card, _ = find_gpu(smi, run)
    assert card is not None
    assert card.name == "NVIDIA H200"


def test_an_old_driver_that_refuses_the_query_is_asked_again() -> None:
    run, calls = answering((2, "", 'Field "compute_cap" is not a valid field'), (0, "Quadro P4000, 470.10\n", ""))
    assert find_gpu(smi, run) == (Gpu("Quadro P4000", (470, 10), None), "")
    assert len(calls) == 2


def test_a_failing_nvidia_smi_is_no_gpu_with_its_own_words() -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    run, _ = answering((9, words + "\nMore.", ""), (9, words + "\nMore.", ""))
    assert find_gpu(smi, run) == (None, f"nvidia-smi sees no usable GPU ({words})")


def test_no_nvidia_smi_is_no_gpu() -> None:
    assert find_gpu(lambda name: None) == (None, "no NVIDIA GPU")


def test_a_hanging_nvidia_smi_is_no_gpu() -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 20)

    assert find_gpu(smi, run) == (None, "nvidia-smi does not run (TimeoutExpired)")


def test_rows_without_a_driver_are_left_out() -> None:
    assert parse_cards("No devices were found\nA, [N/A], 9.0\n\n") == []


@pytest.mark.parametrize(
    ("system", "name", "expected"),
    [("Windows", "AMD64", ("Windows", "x86_64")), ("Darwin", "arm64", ("Darwin", "arm64"))],
)
def test_other_systems_by_a_faked_platform(
    monkeypatch: pytest.MonkeyPatch, system: str, name: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(machine.platform, "system", lambda: system)
    monkeypatch.setattr(machine.platform, "machine", lambda: name)
    monkeypatch.setattr(machine, "find_gpu", lambda: (None, "no NVIDIA GPU"))
    seen = machine.look()
    assert (seen.system, seen.arch) == expected
    assert seen.gpu is None


@pytest.mark.parametrize(
    ("system", "environment", "expected"),
    [
        ("Linux", {}, False),
        ("Linux", {"DISPLAY": ":0"}, True),
        ("Linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("Linux", {"DISPLAY": ":10", "SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}, False),
        ("Linux", {"DISPLAY": ":0", "CI": "true"}, False),
        ("Darwin", {}, True),
        ("Windows", {}, True),
        ("Darwin", {"SSH_CONNECTION": "x"}, False),
    ],
)
def test_where_a_browser_can_be_opened(system: str, environment: dict[str, str], expected: bool) -> None:
    assert has_browser(system, environment) is expected
