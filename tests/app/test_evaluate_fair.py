"""Every way of a real engine is measured as if it were the only one, whatever was measured before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.evaluate.measure import Asker, Measured, Way
from app.evaluate.prompts import Prompts
from app.evaluate.run import make_sample
from app.evaluate.sample import Sample
from app.evaluate.tasks import TASKS
from app.model_face import open_face
from app.models import describe
from engine import Engine, EngineConfig, Sparsity

pytestmark = pytest.mark.slow

LENGTH, ANSWER_TOKENS = 768, 4
EXACT, SPARSE = Way("exact", "bf16"), Way("balanced", "bf16", "balanced")
DECODE_ONLY = Way("balanced", "bf16")


@pytest.fixture(scope="module")
def prompts(starter_model: Path) -> Prompts:
    return Prompts(open_face(describe(starter_model, "starter"), None), 135_000_000)


@pytest.fixture(scope="module")
def engine(starter_model: Path) -> Iterator[Engine]:
    sparsity = Sparsity(budget=384, reading_budget=128, crossover=0)
    with Engine.load(EngineConfig(starter_model, context=2048, threads=1, sparsity=sparsity)) as engine:
        yield engine


@pytest.fixture(scope="module")
def sample(prompts: Prompts) -> Sample:
    return make_sample(1, TASKS["multi_turn"], LENGTH, 0, prompts)


def measured(engine: Engine, prompts: Prompts, sample: Sample, *ways: Way) -> dict[Way, Measured]:
    """One asker goes through the ways, in this order."""
    asker = Asker(engine, prompts)
    try:
        return {way: asker.questions(sample, way, ANSWER_TOKENS) for way in ways}
    finally:
        asker.forget()


def test_three_turns_measure_the_same_in_any_order(engine: Engine, prompts: Prompts, sample: Sample) -> None:
    """Answers, likelihoods and pages read, bit for bit, so that rows of engines with and without `exact` compare."""
    alone = measured(engine, prompts, sample, SPARSE, DECODE_ONLY, EXACT)
    assert len({found.nll for found in alone.values()}) == 3, "three different ways, or this compares nothing"
    assert 0.2 < alone[SPARSE].pages.prompt < 0.95
    assert alone[SPARSE].pages.selected < 0.95
    behind = measured(engine, prompts, sample, EXACT, DECODE_ONLY, SPARSE)
    for way, found in behind.items():
        assert found == alone[way], way
