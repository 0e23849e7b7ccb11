"""Loading leaves nothing to compile for the first question, and what is broken elsewhere does not stop it."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from engine import UnsupportedModelError
from engine.patterns import PatternError
from kernels import cpu_jit
from tests.engine.tiny_models import make_model
from tests.engine.tools import random_ids, tiny_engine, turn

ROOT = Path(__file__).parents[2]


QUESTION = """
import sys
from pathlib import Path

import numba.core.dispatcher as dispatcher

from tests.engine.tiny_models import make_model
from tests.engine.tools import random_ids, tiny_engine, turn
from engine import Sparsity

model = make_model("llama", layers=4, max_position=4096)
sparsity = Sparsity(budget=640, ratio=0.0, reading_budget=640, crossover=0)
options = {"sparsity": sparsity, "kv_format": sys.argv[2], "decode_weights": "auto"}
engine = tiny_engine(Path(sys.argv[1]), model=model, **options)
compiled, real = [], dispatcher.Dispatcher.compile


def compile(self, signature):
    compiled.append(self.py_func.__name__)
    return real(self, signature)


dispatcher.Dispatcher.compile = compile
result = turn(engine, random_ids(2000), tokens=6, mode="balanced", reading="fast")
assert result.stats.selected_pages_read_share < 0.5
print("compiled", compiled)
"""


@pytest.mark.slow
@pytest.mark.skipif(not cpu_jit.available(), reason=cpu_jit.unavailable_reason() or "compiled")
@pytest.mark.parametrize("kv_format", ["bf16", "k8v4"])
def test_a_sparse_question_compiles_nothing(tmp_path, kv_format):
    """In a process of its own, where no other test has compiled anything."""
    command = [sys.executable, "-c", QUESTION, str(tmp_path), kv_format]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "compiled []"


def test_a_broken_installed_pattern_is_an_error_only_for_who_asks_for_it(tmp_path, monkeypatch, caplog):
    point = importlib.metadata.EntryPoint("broken", "no_such_module:pattern", "unabridged.patterns")
    real = importlib.metadata.entry_points

    def points(**query):
        return importlib.metadata.EntryPoints([point]) if query.get("group") == "unabridged.patterns" else real(**query)

    monkeypatch.setattr(importlib.metadata, "entry_points", points)
    engine = tiny_engine(tmp_path)
    assert "broken" in caplog.text
    assert turn(engine, random_ids(40), tokens=2).stats.output_tokens > 0
    with pytest.raises(PatternError, match="broken"):
        engine.generate([5], mode="broken")


def test_a_head_that_cannot_be_packed_is_refused_by_name(tmp_path):
    model = make_model("llama", hidden_size=48, heads=4, kv_heads=2)
    with pytest.raises(UnsupportedModelError, match="12"):
        tiny_engine(tmp_path, model=model, kv_format="k4v4")
