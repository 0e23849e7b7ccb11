"""Where compiled kernels are kept, and that they are compiled anew when any of our kernel sources has changed."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kernels import cpu_jit

ROOT = Path(cpu_jit.__file__).parents[1]

pytestmark = pytest.mark.skipif(not cpu_jit.available(), reason=cpu_jit.unavailable_reason() or "compiled")


def run(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def swiglu_of_ones(folder: Path) -> str:
    return run(
        folder, "import torch; from kernels.swiglu import swiglu; print(swiglu(torch.ones(1, 2).bfloat16()).item())"
    )


@pytest.mark.slow
def test_a_changed_helper_is_not_answered_from_old_code(tmp_path):
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    first = swiglu_of_ones(tmp_path)
    assert swiglu_of_ones(tmp_path) == first
    assert list((tmp_path / "kernels" / "__pycache__").glob("compiled-*/**/*.nbi"))
    helper = tmp_path / "kernels" / "cpu_floats.py"
    text = helper.read_text()
    assert ".view(np.float32)\n\n\n@jit" in text
    helper.write_text(text.replace(".view(np.float32)\n\n\n@jit", ".view(np.float32) * np.float32(2)\n\n\n@jit", 1))
    assert swiglu_of_ones(tmp_path) != first


def test_another_folder_serves_where_the_source_cannot_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setattr(cpu_jit, "_places", [blocked / "below"])
    cpu_jit.cache_folder.cache_clear()
    try:
        assert cpu_jit.cache_folder() is None
        cpu_jit.cache_folder.cache_clear()
        cpu_jit.keep_compiled(tmp_path / "data")
        folder = cpu_jit.cache_folder()
        assert folder is not None
        assert folder.parent == tmp_path / "data"
        assert folder.is_dir()
    finally:
        cpu_jit.cache_folder.cache_clear()
