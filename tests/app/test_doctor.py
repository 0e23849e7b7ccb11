"""`unabridged doctor`: the shape of its report, honest failures, and exit codes."""

import json
from types import SimpleNamespace

import pytest

from app import doctor, wiring
from app.errors import WrongUse
from app.gates import SHIPPED
from app.settings import Settings
from engine import profiles
from engine.gates import read_gates
from engine.machine import Card, Machine
from kernels import triton_jit
from tests.app.cli_runner import unabridged

CHECKS = [
    "python",
    "torch",
    "profile",
    "triton",
    "compiled kernels",
    "packages",
    "sqlite",
    "data folder",
    "disk",
    "database",
    "starter model",
    "model",
    "room",
    "engine",
    "port",
]
KEYS = {
    "profile": str,
    "reason": str,
    "device": str,
    "memory_bytes": int,
    "largest_context": int,
    "triton": (str, type(None)),
    "sqlite_version": str,
    "data_dir": str,
    "checks": list,
}


@pytest.mark.slow
def test_the_report_of_a_sound_installation(tmp_path, starter_model):
    done = unabridged("doctor", "--json", "--model", starter_model, data_dir=tmp_path / "data", timeout=300)
    report = json.loads(done.stdout)
    assert list(report) == list(KEYS)
    assert all(isinstance(report[key], kind) for key, kind in KEYS.items())
    assert [check["name"] for check in report["checks"]] == CHECKS
    assert all(set(check) == {"name", "ok", "detail"} and check["detail"] for check in report["checks"])
    checks = {check["name"]: check for check in report["checks"]}
    assert all(check["ok"] for name, check in checks.items() if name != "starter model"), report["checks"]
    assert done.returncode == (0 if checks["starter model"]["ok"] else 1)
    assert 0 < report["largest_context"] <= 12288
    assert report["data_dir"] == str(tmp_path / "data")


def test_what_is_broken_fails_its_own_check_and_no_other(tmp_path, monkeypatch):
    """A file where the data folder should be, a model that is not there, and full-text search that finds nothing."""
    blocked = tmp_path / "file"
    blocked.write_text("x")
    settings = Settings(data_dir=blocked / "data", model=str(tmp_path / "none.gguf"))
    monkeypatch.setattr(doctor, "_generation", lambda *_: (_ for _ in ()).throw(RuntimeError("no engine today")))
    report = doctor.examine(settings)
    results = {check.name: check for check in report.checks}
    assert list(results) == CHECKS
    assert [name for name in ("python", "torch", "packages", "sqlite", "port") if not results[name].ok] == []
    for name in ("data folder", "disk", "database", "model", "engine"):
        assert not results[name].ok, results[name]
    assert "none.gguf" in results["model"].detail
    assert "no engine today" in results["engine"].detail
    assert report.largest_context is None
    assert not report.healthy
    assert any(line.startswith("FAIL  engine: ") for line in report.lines())


def test_a_running_app_is_no_failure_of_the_database(tmp_path):
    from app.paths import Paths
    from storage import DataFolderLock

    with DataFolderLock(tmp_path).acquire("http://127.0.0.1:1/?token=x"):
        assert "http://127.0.0.1:1/" in doctor._database(Paths(tmp_path))
    assert doctor._database(Paths(tmp_path)) == "0 documents, 0 conversations"


def test_little_free_disk_fails(tmp_path, monkeypatch):
    from app.paths import Paths

    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
    with pytest.raises(RuntimeError, match="only 5 B free"):
        doctor._disk(Paths(tmp_path))


def test_without_numba_the_slower_path_is_named(monkeypatch):
    monkeypatch.setattr("kernels.cpu_jit.unavailable_reason", lambda: "numba cannot be imported: none here")
    check = doctor._run("compiled kernels", doctor._kernels)
    assert not check.ok
    assert "none here" in check.detail
    assert "slower" in check.detail


GIB = 2**30
CARD = Card(0, "NVIDIA GeForce RTX 4090", (8, 9), 24 * GIB, 23 * GIB)


def a_machine(monkeypatch, *cards, no_card="", no_triton=""):
    """The chooser sees these cards; torch is asked about the first one only for its name and size."""
    import torch

    found = Machine(cards, no_card, no_triton, 64 * GIB, 48 * GIB, 8)
    monkeypatch.setattr("engine.machine.look", lambda device="auto": found)
    monkeypatch.setattr(profiles, "look", lambda device="auto": found)
    monkeypatch.setattr(triton_jit, "unavailable_reason", lambda: no_triton)
    monkeypatch.setattr(doctor, "_generation", lambda *_: "skipped")
    if cards:
        seen = SimpleNamespace(name=cards[0].name, major=8, minor=9, total_memory=cards[0].total)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: seen)


def test_a_card_is_named_with_its_profile_memory_and_kernels(tmp_path, monkeypatch, starter_model):
    a_machine(monkeypatch, CARD)
    monkeypatch.setattr(doctor, "_triton_version", lambda: "3.6.0")
    report = doctor.examine(Settings(data_dir=tmp_path, model=str(starter_model)))
    checks = {check.name: check for check in report.checks}
    assert (report.profile, report.memory_bytes, report.triton) == ("ada", 24 * GIB, "3.6.0, kernels run")
    assert report.device == "NVIDIA GeForce RTX 4090 (cuda:0, compute capability 8.9)"
    assert "compute capability 8.9 and 23.0 of 24.0 GiB free" in report.reason
    assert checks["profile"].ok
    assert checks["profile"].detail == (
        "ada: weights int4, KV k3v3, up to 22.0 GiB of memory, 8 threads, 99 KB of shared memory, 4 chats at once, "
        "kernels by triton"
    )
    assert report.largest_context == 12288
    assert "12,288 tokens" in checks["room"].detail
    wide = ",".join(map(str, read_gates(SHIPPED / "starter.json").wide_key_layers))
    assert f"KV k3v3 with 8-bit keys in {wide} (estimate)" in checks["room"].detail
    assert any("12,288 tokens (estimate)" in line for line in report.lines())


def test_a_missing_compiler_is_named_with_its_packages(tmp_path, monkeypatch, starter_model):
    a_machine(monkeypatch, CARD, no_triton="Triton cannot compile here: RuntimeError: Failed to find C compiler")
    monkeypatch.setattr("engine.machine.shutil.which", lambda name: None)
    monkeypatch.setattr("engine.machine.sys.platform", "linux")
    monkeypatch.delenv("CC", raising=False)
    report = doctor.examine(Settings(data_dir=tmp_path, model=str(starter_model)))
    check = next(check for check in report.checks if check.name == "triton")
    assert not check.ok
    for words in ("Failed to find C compiler", "apt install gcc", "dnf install gcc", "pacman -S gcc", "slower"):
        assert words in check.detail
    assert report.profile == "ada"
    assert "through torch, slower" in report.reason
    assert "kernels by torch" in next(check.detail for check in report.checks if check.name == "profile")


def test_a_profile_that_cannot_be_is_a_failed_check(tmp_path, monkeypatch, starter_model):
    a_machine(monkeypatch, CARD)
    settings = Settings(data_dir=tmp_path, model=str(starter_model), profile="hopper")
    report = doctor.examine(settings)
    assert [check.name for check in report.checks if not check.ok and check.name != "starter model"] == [
        "profile",
        "room",
    ]
    assert report.profile == "none"
    assert "got 'hopper', need auto or cpu or ada" in report.reason
    assert report.largest_context is None
    with pytest.raises(WrongUse, match="The setting profile: got 'hopper'"):
        wiring.profile_for(settings)
    with pytest.raises(WrongUse, match="The setting decode_weights: got 'int8', need auto or bf16"):
        wiring.profile_for(Settings(data_dir=tmp_path, decode_weights="int8"))


def test_a_model_that_does_not_fit_says_what_would(tmp_path, monkeypatch, starter_model):
    a_machine(monkeypatch, Card(0, "RTX 4090", (8, 9), 24 * GIB, GIB // 2))
    report = doctor.examine(Settings(data_dir=tmp_path, model=str(starter_model)))
    check = next(check for check in report.checks if check.name == "room")
    assert not check.ok
    assert "need 0." in check.detail
    assert "has 0.2 GiB" in check.detail
    assert "What fits: the CPU (device cpu), slowly" in check.detail


def test_what_the_profile_chose_reaches_the_engine(tmp_path, monkeypatch, starter_model):
    from app.models import Models

    model = Models(tmp_path).resolve(str(starter_model))
    a_machine(monkeypatch, CARD, Card(1, "H200", (9, 0), 140 * GIB, 139 * GIB))
    config = wiring.engine_config(Settings(data_dir=tmp_path), model)
    assert (config.device, config.profile, config.kv_format, config.decode_weights) == ("cuda:1", "auto", "fp8", "auto")
    config = wiring.engine_config(Settings(data_dir=tmp_path, profile="ada", kv_format="k4v4"), model)
    assert (config.device, config.profile, config.kv_format) == ("cuda:1", "ada", "k4v4")
    assert (profiles.profile_of(config).memory_limit, profiles.profile_of(config).weights) == (22 * GIB, "int4")
    a_machine(monkeypatch, no_card="this PyTorch is built for CPUs")
    config = wiring.engine_config(Settings(data_dir=tmp_path), model)
    assert (config.device, config.profile, config.kv_format, config.decode_weights) == ("cpu", "auto", "bf16", "auto")
