"""Loading leaves nothing to compile for the first question, and what is broken elsewhere does not stop it."""

import importlib.metadata

import pytest

from engine import UnsupportedModelError
from engine.patterns import PatternError, Sparsity
from kernels import cpu_jit
from tests.engine.tiny_models import make_model
from tests.engine.tools import random_ids, tiny_engine, turn

SPARSE = Sparsity(budget=640, ratio=0.0, reading_budget=640, crossover=0)


@pytest.mark.skipif(not cpu_jit.available(), reason=cpu_jit.unavailable_reason() or "compiled")
@pytest.mark.parametrize("kv_format", ["bf16", "k8v4"])
def test_a_sparse_question_compiles_nothing(tmp_path, kv_format, monkeypatch):
    import numba.core.dispatcher as dispatcher

    model = make_model("llama", layers=4, max_position=4096)
    engine = tiny_engine(tmp_path, model=model, sparsity=SPARSE, kv_format=kv_format, decode_weights="auto")

    def compile(self, signature):
        raise AssertionError(f"{self.py_func.__name__} is compiled for {signature} during a question")

    monkeypatch.setattr(dispatcher.Dispatcher, "compile", compile)
    result = turn(engine, random_ids(2000), tokens=6, mode="balanced", reading="fast")
    assert result.stats.selected_pages_read_share < 0.5


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
