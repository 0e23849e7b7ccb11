"""What README and docs say about commands and files is true."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
STEP_FILES = {
    "ui.chat": "ui/chat.py",
    "app.assistant.ask": "app/assistant.py",
    "engine.Engine.generate": "engine/engine.py",
    "engine.prefill": "engine/prefill.py",
    "engine.decode": "engine/decode.py",
    "engine.attention": "engine/attention.py",
}


def file_map() -> list[tuple[str, str]]:
    """(path, what it is) of every row of README's map."""
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", README, re.MULTILINE)
    return [(path, meaning) for cell, meaning in rows for path in re.findall(r"`([^`]+)`", cell)]


def test_every_file_of_the_map_is_there_and_has_one_line() -> None:
    paths = [path for path, _ in file_map()]
    assert len(paths) >= 15
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert len(paths) == len(set(paths))


def test_every_top_level_folder_with_code_is_on_the_map() -> None:
    on_map = {path.rstrip("/") for path, _ in file_map()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages | {"installer", "tests", "docs"} <= on_map


def test_the_main_path_exists_in_the_order_given() -> None:
    line = re.search(r"The main path, in order:\n(.+?)\n\n", README, re.DOTALL)
    assert line is not None
    steps = re.findall(r"`([^`]+)`", line[1])
    assert steps == [*STEP_FILES, "kernels.<operation>"]
    for file in STEP_FILES.values():
        assert (ROOT / file).is_file(), file
    for step, name in (("app.assistant.ask", "ask"), ("engine.Engine.generate", "generate")):
        assert re.search(rf"^\s*def {name}\(", (ROOT / STEP_FILES[step]).read_text(encoding="utf-8"), re.MULTILINE)
    operations = [folder for folder in (ROOT / "kernels").iterdir() if (folder / "__init__.py").exists()]
    assert operations
    assert [folder.name for folder in operations if not (folder / "reference.py").exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_readmes_installer_commands_are_known_to_the_installer() -> None:
    asked = subprocess.run(
        [sys.executable, "installer", "--help"], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    ).stdout
    for page in PAGES:
        for command in re.findall(r"python3 installer (\w+)", page.read_text(encoding="utf-8")):
            assert f"python3 installer {command}" in asked, f"{page.name} names {command}"


def test_readmes_commands_are_known_to_the_program() -> None:
    from app.cli import build_parser

    lines = re.findall(r"^unabridged (.+?)(?: {2,}#.*)?$", README, re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        build_parser().parse_args([word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)])


def test_ci_runs_readmes_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "python3 installer test" in README
    assert script.rstrip().splitlines()[-1].startswith("exec python3 installer test")


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs" / "decisions" / "0004-dependencies.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["test"]]:
        name = re.split(r"[\s<>=!~;\[]", requirement)[0]
        assert re.search(rf"\b{re.escape(name)}\b", reasons), name


def test_decisions_have_numbers_of_their_own() -> None:
    names = [file.name for file in (ROOT / "docs" / "decisions").glob("*.md")]
    assert [name for name in names if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name)] == []
    numbers = [name[:4] for name in names]
    assert len(numbers) == len(set(numbers))


def test_honest_limits_are_said() -> None:
    for words in ("demo model: 135M, English, often wrong", "Windows and macOS are untried", "have not been measured"):
        assert words in README


def test_the_demo_model_is_named_with_its_licence() -> None:
    assert "SmolLM2-135M-Instruct" in README
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
