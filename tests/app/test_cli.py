"""The command line: bad input, wrong use, exit codes, quick start, and that docs/cli.md names everything."""

import argparse
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app import environment
from app.cli import build_parser, main
from app.commands.failures import exit_code, explain
from app.errors import BadInput, DoesNotFit, WrongUse
from tests.app.cli_runner import ROOT, is_one_error


def make_pdf(path: Path, pages: list[str], password: str = "") -> Path:
    from reportlab.lib.pdfencrypt import StandardEncryption
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path), encrypt=StandardEncryption(password, strength=128) if password else None)
    for text in pages:
        for number, line in enumerate(text.splitlines()):
            canvas.drawString(60, 780 - 16 * number, line)
        canvas.showPage()
    canvas.save()
    return path


def make_scanned_pdf(path: Path) -> Path:
    """One page that is a picture, without any text."""
    from PIL import Image
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path))
    canvas.drawImage(ImageReader(Image.effect_noise((400, 560), 60)), 0, 0, 595, 842)
    canvas.showPage()
    canvas.save()
    return path


def in_process(capsys, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["ask"], 2, "No question"),
        (["ask", "-q", "What?"], 2, "No file"),
        (["ask", "a.pdf", "-q", " "], 2, "No question"),
        (["ask", "missing.pdf", "-q", "What?"], 4, "no file missing.pdf"),
        (["ask", "a.pdf", "--questions", "missing.txt"], 4, "missing.txt"),
        (["ask", "a.pdf", "-q", "x", "--whole", "--passages"], 2, "not allowed with"),
        (["ask", "a.pdf", "-q", "x", "--json", "--csv"], 2, "not allowed with"),
        (["ask", "a.pdf", "-q", "x", "--pages", "1", "--passages"], 2, "--passages"),
        (["chat", "--pages", "1", "--passages"], 2, "--passages"),
        (["ask", "a.pdf", "-q", "x", "--modle", "y"], 2, "--model"),
        (["aks"], 2, "ask"),
        (["models", "lst"], 2, "list"),
        (["models", "remove", "../x"], 2, "no model"),
        (["models", "get", "no-such-name"], 2, "catalogue"),
        (["models", "import", "no/such/folder"], 4, "no model at"),
        (["settings", "set", "kv_formt", "k8v4"], 2, "kv_format"),
        (["settings", "set", "kv_format"], 2, "needs a key and a value"),
        (["settings", "--kv-format", "widest"], 2, "not in this version"),
        (["settings", "--mode", "Fast!"], 2, "exact, balanced, fast"),
        (["settings", "--reuse-interval", "3"], 2, "32 or 64"),
        (["settings", "--temperature", "hot"], 2, "number from 0 to 2"),
        (["run", "--port", "70000"], 2, "no port"),
        (["run", "--port", "many"], 2, "--port"),
        (["cache", "prune", "--to", "few"], 2, "--to"),
    ],
)
def test_wrong_use_is_one_sentence_one_hint_and_its_code(capsys, data_dir, words, code, says):
    got, out, err = in_process(capsys, *words)
    assert got == code, err
    assert is_one_error(err), err
    assert says in err
    assert out == ""


def test_help_is_quick_and_imports_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-m", "app.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=60)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    heavy = {"torch", "gradio", "numpy", "huggingface_hub", "sqlite_utils", "pypdfium2", "engine", "storage"}
    assert "app.commands" in imported
    assert not imported & heavy
    for command_name in ("run", "ask", "chat", "doctor", "models", "settings", "library", "cache"):
        assert command_name in done.stdout


def test_version_is_the_projects(capsys):
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert in_process(capsys, "--version") == (0, f"unabridged {version}\n", "")


def test_data_dir_works_before_and_after_the_command(capsys, tmp_path):
    for words in (["--data-dir", tmp_path, "settings", "--json"], ["settings", "--json", "--data-dir", tmp_path]):
        code, out, _ = in_process(capsys, *words)
        assert code == 0
        assert json.loads(out)["data_dir"] == str(tmp_path)


def test_settings_show_origin_and_can_be_changed(capsys, data_dir, monkeypatch):
    monkeypatch.setenv("UNABRIDGED_THREADS", "3")
    assert in_process(capsys, "settings", "set", "cache.quota", "20GB")[0] == 0
    _, out, _ = in_process(capsys, "settings", "--json", "--context", "8k")
    rows = {row["key"]: row for row in json.loads(out)["settings"]}
    assert (rows["cache.quota"]["value"], rows["cache.quota"]["origin"]) == (20 * 10**9, "settings.toml")
    assert (rows["threads"]["value"], rows["threads"]["origin"]) == (3, "environment UNABRIDGED_THREADS")
    assert (rows["context"]["value"], rows["context"]["origin"]) == (8192, "flag --context")
    assert rows["model"]["origin"] == "default"
    assert rows["data_dir"]["origin"] == "environment UNABRIDGED_DATA_DIR"
    assert set(rows["model"]) == {"key", "value", "origin", "meaning"}
    assert in_process(capsys, "settings", "unset", "cache.quota")[0] == 0
    _, out, _ = in_process(capsys, "settings")
    assert re.search(r"cache\.quota +auto +default", out)


def test_bad_documents_are_exit_code_4_and_leave_no_conversation(capsys, data_dir, tmp_path, starter_model):
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    whole = make_pdf(tmp_path / "whole.pdf", ["Some text."] * 3)
    cut = tmp_path / "cut.pdf"
    cut.write_bytes(whole.read_bytes()[:200])
    locked = make_pdf(tmp_path / "locked.pdf", ["Secret."], password="sesame")
    for path, says in ((empty, "empty"), (cut, "cut.pdf"), (locked, "--password")):
        code, out, err = in_process(capsys, "ask", path, "-q", "What?", "--model", starter_model)
        assert code == 4, (path, err)
        assert is_one_error(err), err
        assert says in err
        assert out == ""
    code, out, _ = in_process(capsys, "library", "list", "--json")
    assert json.loads(out) == []
    from storage import Library

    library = Library.open(data_dir)
    assert library.conversations() == []
    library.close()


def test_a_locked_pdf_opens_with_its_password_which_is_not_stored(capsys, data_dir, tmp_path, starter_model):
    locked = make_pdf(tmp_path / "locked.pdf", ["The code word is heron."], password="sesame-7731")
    wrong = in_process(capsys, "library", "add", locked, "--password", "open")
    assert wrong[0] == 4
    code, out, err = in_process(capsys, "library", "add", locked, "--password", "sesame-7731", "--json")
    assert code == 0, err
    assert json.loads(out)["documents"][0]["name"] == "locked.pdf"
    for file in data_dir.rglob("*"):
        if file.is_file():
            assert b"sesame-7731" not in file.read_bytes(), file


def test_a_scanned_pdf_says_which_pages_have_no_text(capsys, data_dir, tmp_path, starter_model):
    scanned = make_scanned_pdf(tmp_path / "scan.pdf")
    code, out, err = in_process(capsys, "library", "add", scanned, "--json")
    said = err if code else " ".join(json.loads(out)["warnings"])
    assert code in (0, 4)
    assert "page" in said.lower()
    assert "1" in said


def test_library_add_list_remove(capsys, data_dir, tmp_path, starter_model):
    one = make_pdf(tmp_path / "one.pdf", ["First page.", "Second page."])
    assert in_process(capsys, "library", "add", one)[0] == 0
    assert in_process(capsys, "library", "add", one)[0] == 0
    _, out, _ = in_process(capsys, "library", "list", "--json")
    (document,) = json.loads(out)
    assert (document["name"], document["pages"]) == ("one.pdf", 2)
    from storage import Library

    library = Library.open(data_dir)
    assert len(library.conversations()) == 1
    library.close()
    code, _, err = in_process(capsys, "library", "remove", "two.pdf")
    assert (code, is_one_error(err)) == (2, True)
    assert in_process(capsys, "library", "remove", document["id"][:8])[0] == 0
    assert json.loads(in_process(capsys, "library", "list", "--json")[1]) == []
    library = Library.open(data_dir)
    assert library.conversations() == []
    library.close()
    assert not list((data_dir / "documents").iterdir())


def test_cache_commands(capsys, data_dir, starter_model):
    code, out, _ = in_process(capsys, "cache", "stats", "--json", "--cache-quota", "5MB")
    assert code == 0
    assert json.loads(out)["quota_bytes"] == 5 * 10**6
    assert json.loads(in_process(capsys, "cache", "verify", "--json")[1]) == {"rows": 0, "damaged": []}
    assert json.loads(in_process(capsys, "cache", "prune", "--to", "1GB", "--json")[1])["removed_bytes"] == 0
    for action in ("stats", "verify", "prune"):
        code, out, _ = in_process(capsys, "cache", action)
        assert code == 0
        assert out.strip()


def test_json_may_stand_before_the_action(capsys, data_dir, starter_model):
    for words in (("library", "list"), ("cache", "stats"), ("cache", "verify"), ("models", "list")):
        before = in_process(capsys, words[0], "--json", words[1])
        after = in_process(capsys, *words, "--json")
        assert before[0] == after[0] == 0
        first, second = json.loads(before[1]), json.loads(after[1])
        if words == ("cache", "stats"):  # the quota follows the free disk, which changes by itself
            del first["quota_bytes"], second["quota_bytes"]
        assert first == second
        json.loads(before[1])


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_what_is_stored_is_for_its_owner_only(capsys, tmp_path, starter_model):
    tmp_path.chmod(0o755)
    assert in_process(capsys, "library", "list", "--data-dir", tmp_path)[0] == 0
    assert in_process(capsys, "settings", "set", "threads", "1", "--data-dir", tmp_path)[0] == 0
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert {"library.db", "kvcache.db", "settings.toml", "app.lock"} <= {path.name for path in files}
    assert {path.name: path.stat().st_mode & 0o077 for path in files} == {path.name: 0 for path in files}


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, bool]]:
    """What every question asks for: (reading, whether pages are chosen). No question is answered."""
    from app import assistant

    seen: list[tuple[str, bool]] = []

    def ask(app, conversation_id, question, *, reading, pages, task):
        seen.append((reading, pages is not None))
        raise WrongUse("Not now.", "Later.")

    monkeypatch.setattr(assistant, "ask", ask)
    return seen


def test_a_choice_of_pages_means_whole_reading(capsys, data_dir, tmp_path, starter_model, asked):
    path = make_pdf(tmp_path / "a.pdf", ["One.", "Two."])
    in_process(capsys, "ask", path, "-q", "What?", "--pages", "1")
    in_process(capsys, "ask", path, "-q", "What?", "--whole", "--pages", "1")
    in_process(capsys, "ask", path, "-q", "What?")
    assert asked == [("whole", True), ("whole", True), ("auto", False)]


def test_a_choice_of_pages_in_a_chat(capsys, data_dir, starter_model, asked, monkeypatch):
    lines = ["/pages 1-2", "What?", "/pages", "What?", "/pages 3", "/passages", "What?", "/pages 1", "What?"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    code, _, err = in_process(capsys, "chat")
    assert code == 0
    assert asked == [("whole", True), ("auto", False), ("passages", False), ("passages", False)]
    assert "/whole first" in err


def test_a_quote_that_stands_nowhere_has_no_page():
    from app.citations import Citation
    from app.report import CSV_COLUMNS, citation_lines, csv_row

    citation = Citation("", "", 0, "", "Never said", "not_found")
    assert citation_lines([citation]) == ['1. no page (quote not found in the document): "Never said"']
    row = csv_row("What?", {"citations": [{"document": "", "page": 0}, {"document": "a.pdf", "page": 2}]})
    assert row[CSV_COLUMNS.index("citations")] == "no page; a.pdf p. 2"


def test_a_busy_data_folder_names_the_running_app(capsys, data_dir, starter_model):
    from storage import DataFolderLock

    with DataFolderLock(data_dir).acquire("http://127.0.0.1:7777/?token=abc"):
        code, out, err = in_process(capsys, "library", "list")
        assert (code, is_one_error(err)) == (1, True)
        assert "http://127.0.0.1:7777/?token=abc" in err
        code, out, err = in_process(capsys, "run", "--no-browser")
        assert (code, out) == (0, "Unabridged is at http://127.0.0.1:7777/?token=abc\n")


def test_every_error_becomes_a_sentence(capsys, data_dir, monkeypatch):
    import app.commands.settings as command

    for error, code, says in (
        (OSError(errno.ENOSPC, "No space left on device", "/x/library.db"), 1, "disk is full"),
        (RuntimeError("boom"), 1, "boom"),
        (MemoryError(), 1, "memory"),
        (ModuleNotFoundError("No module named 'torch'"), 1, "not complete"),
        (DoesNotFit("Too long.", "Choose pages."), 3, "Too long"),
    ):

        def fail(args: argparse.Namespace, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(command, "settings_from", fail)
        got, _, err = in_process(capsys, "settings")
        assert (got, is_one_error(err)) == (code, True), err
        assert says in err
        _, _, err = in_process(capsys, "settings", "--debug")
        assert "Traceback" in err
    monkeypatch.setattr(command, "settings_from", lambda args: (_ for _ in ()).throw(KeyboardInterrupt))
    got, _, err = in_process(capsys, "settings")
    assert got == 130
    assert "Traceback" not in err


def test_exit_codes_follow_the_cause():
    class ModelFileError(Exception):
        message, hint = "The model is cut.", "Fetch it again."

    wrapped = explain(ModelFileError())
    assert exit_code(wrapped) == 4
    assert (exit_code(BadInput("x")), exit_code(WrongUse("x")), exit_code(DoesNotFit("x"))) == (4, 2, 3)
    assert exit_code(ValueError("x")) == 1


def test_a_reader_that_goes_away_is_no_error(data_dir):
    command = f"{sys.executable} -m app.cli settings | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.stdout.startswith("data_dir")
    assert done.stderr == ""


def test_the_environment_is_cleaned_before_gradio_and_the_hub_are_imported():
    values = {"GRADIO_SHARE": "1", "GRADIO_ALLOWED_PATHS": "/", "GRADIO_MCP_SERVER": "1", "KEEP": "me"}
    environment.clean(values)
    assert values["KEEP"] == "me"
    assert not {"GRADIO_SHARE", "GRADIO_ALLOWED_PATHS", "GRADIO_MCP_SERVER"} & set(values)
    assert (values["GRADIO_ANALYTICS_ENABLED"], values["HF_HUB_OFFLINE"]) == ("False", "1")
    values = {}
    environment.clean(values, hub=True)
    assert "HF_HUB_OFFLINE" not in values
    assert values["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_docs_name_every_command_and_flag():
    """docs/cli.md has a section for each command, with each of its flags and, once for all, each setting."""
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `unabridged ([a-z ]+?)[ `](.*?)(?=^## |\Z)", text, flags=re.S | re.M))
    shared = text[: text.index("## `unabridged")]
    checked = 0

    def check(parser: argparse.ArgumentParser, name: str, section: str) -> None:
        nonlocal checked
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for child, child_parser in action.choices.items():
                    assert not name or f"`{name} {child}" in section, f"{name} {child} is not in docs/cli.md"
                    check(child_parser, f"{name} {child}".strip(), section or sections[child])
                continue
            for flag in action.option_strings or ([action.metavar] if action.metavar else []):
                checked += 1
                pattern = rf"(?<![\w-]){re.escape(str(flag))}(?![\w-])"
                assert re.search(pattern, section + shared), f"{name}: {flag} is not in docs/cli.md"

    check(build_parser(), "", "")
    assert set(sections) == {
        "run",
        "ask",
        "chat",
        "doctor",
        "models",
        "settings",
        "library",
        "export",
        "cache",
        "eval",
        "bench",
        "calibrate",
    }
    assert checked > 100
