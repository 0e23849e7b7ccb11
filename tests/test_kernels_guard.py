"""Three guards around the folder name `kernels`, which transformers looks for as an unrelated package.

A version inside that package's accepted range, or code in our `kernels/__init__.py`, would break every model class of
transformers, which our tests use as the oracle. docs/decisions/0001-layout.md has the details.
"""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def version_numbers() -> tuple[int, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return tuple(int(part) for part in project["version"].split("."))


def test_the_package_itself_is_a_docstring_only() -> None:
    body = ast.parse((ROOT / "kernels" / "__init__.py").read_text(encoding="utf-8")).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)
    assert isinstance(body[0].value, ast.Constant)
    assert isinstance(body[0].value.value, str)


@pytest.mark.slow
def test_transformers_sees_no_kernels_package_and_its_models_import() -> None:
    code = (
        "from transformers.utils import import_utils; assert not import_utils.is_kernels_available();"
        "from transformers import LlamaConfig, LlamaForCausalLM;"
        "sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32);"
        "c = LlamaConfig(**sizes);"
        "import kernels; print(kernels.__file__, type(LlamaForCausalLM(c)).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    file, model = done.stdout.split()
    assert Path(file) == ROOT / "kernels" / "__init__.py"
    assert model == "LlamaForCausalLM"


def test_no_distribution_of_that_name_is_installed_and_our_version_stays_out_of_its_range() -> None:
    names = {(dist.metadata["Name"] or "").lower() for dist in importlib.metadata.distributions()}
    assert "kernels" not in names
    assert not (0, 18, 2) <= version_numbers() < (0, 19)
