"""`unabridged doctor`: the shape of its report, honest failures, and exit codes."""

import json
from types import SimpleNamespace

import pytest

from app import doctor
from app.settings import Settings
from tests.app.cli_runner import unabridged

CHECKS = [
    "python",
    "torch",
    "compiled kernels",
    "packages",
    "sqlite",
    "data folder",
    "disk",
    "database",
    "starter model",
    "model",
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
