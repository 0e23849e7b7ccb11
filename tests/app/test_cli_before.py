"""`ask --plan` and the flags that choose, from the command line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from app.cli import main


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    for name, text in {
        "src/tide.py": "class Tide:\n    def height(self, hour):\n        return 4.2\n",
        "docs/long.txt": "The harbour opens at dawn. " * 4000,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (time.time() - 7200,) * 2)
    return root


def ask(capsys: pytest.CaptureFixture[str], data_dir: Path, model: Path, *arguments: str) -> tuple[int, str, str]:
    code = main(["ask", *arguments, "--data-dir", str(data_dir), "--model", str(model)])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_plan_says_what_reading_takes_and_what_fits(capsys, data_dir, starter_model, repo) -> None:
    code, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--json", "-q", "height of the tide")
    plan = json.loads(out)
    assert code == 0
    assert not plan["fits"]
    assert plan["tokens"] == plan["all_tokens"] > plan["room"]
    assert plan["memory_bytes"] == plan["tokens"] * plan["bytes_per_token"] > 0
    assert plan["seconds"] > 0
    assert not plan["measured"]
    (document,) = plan["documents"]
    assert [item["name"] for item in document["items"]] == ["docs/long.txt", "src/tide.py"]
    assert document["items"][-1]["running"] == document["tokens"] == plan["tokens"]
    match = next(s for s in plan["suggestions"] if s["kind"] == "match")
    assert match["tokens"] <= plan["room"]
    code, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan")
    assert "It does not fit" in out
    assert "(a guess: nothing was measured yet)" in out
    assert "--fit smallest" in out
    assert "cache.quota" not in out
    code, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--cache-quota", "1MB")
    assert "note: The snapshot of this read takes" in out
    code, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--cache-quota", "1MB", "--json")
    assert "cache.quota" in json.loads(out)["warnings"][-1]
    code, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--files", "src/*")
    assert "It fits" in out
    assert "Chosen: " in out
    code, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--map", "--json")
    mapped = json.loads(out)
    assert mapped["fits"]
    assert mapped["all_tokens"] == plan["all_tokens"]
    code, _, err = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--files", "scr/tide.py")
    assert code == 2
    assert "src/tide.py" in err
    code, _, err = ask(capsys, data_dir, starter_model, str(repo / "src/tide.py"), "--plan", "--map")
    assert code == 2


def test_a_changed_folder_is_named_and_taken_as_asked(capsys, data_dir, starter_model, repo) -> None:
    ask(capsys, data_dir, starter_model, str(repo), "--plan", "--json")
    (repo / "src/tide.py").write_text("class Tide:\n    pass\n")
    _, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--json", "--changed", "append")
    plan = json.loads(out)
    assert [d["kind"] for d in plan["documents"]] == ["folder", "update"]
    assert "1 file of repo changed since it was read: src/tide.py changed." in plan["warnings"]
    assert [item["name"] for item in plan["documents"][0]["items"]] == ["docs/long.txt"]
    _, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--json")
    plan = json.loads(out)
    assert [d["kind"] for d in plan["documents"]] == ["folder"]
    assert any("read again from the first change" in warning for warning in plan["warnings"])
    _, out, _ = ask(capsys, data_dir, starter_model, str(repo), "--plan", "--json")
    assert json.loads(out)["warnings"] == []
