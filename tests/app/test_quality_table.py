"""The quality table of tests/measure measures what `unabridged eval` would, document recorded or not."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "measure"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

import quality
from quality_reading import DocumentReader, FastAsker
from quality_samples import StoredPrompts, StoredSample, load, order, read_counts, save
from tiny_models import make_model, save_folder

from app.evaluate.measure import Asker, Measured, PagesRead, Way
from app.evaluate.run import Record
from app.evaluate.sample import Question, Sample
from app.evaluate.tasks import TASKS
from engine import Engine, EngineConfig, Sparsity

END, CHUNK, ANSWER_TOKENS = 640, 128, 4


def test_any_leading_part_of_the_order_covers_the_tasks_alike() -> None:
    counts = read_counts("needle:40,all:10")
    assert set(counts) == set(TASKS)
    wanted = order(counts)
    assert sorted(wanted) == sorted((task, i) for task, count in counts.items() for i in range(count))
    for part in range(1, len(wanted)):
        shares = {name: sum(task == name for task, _ in wanted[:part]) / count for name, count in counts.items()}
        fewer = [share for name, share in shares.items() if name != "needle"]
        assert max(fewer) - min(fewer) <= 0.1 + 1e-9
        assert min(1, shares["needle"] / 0.75) == pytest.approx(min(fewer), abs=0.15)
    assert [task for task, _ in order(read_counts("facts:2"))] == ["facts", "facts"]


def test_stored_samples_come_back(tmp_path: Path) -> None:
    questions = (Question("a?", "a is", ("1",), " 1."), Question("b?", "b is", ("2", "3"), " 2.", "any"))
    stored = StoredSample(
        "multi_turn", 3, [5, 49151, 0], Sample("multi_turn/3", questions, (), 0.5), ((7,), (8, 9)), ((1,), (2, 3))
    )
    other = replace(stored, index=4, ids=[70000])
    save(tmp_path / "samples.npz", [stored, other], {"end": 2})
    assert load(tmp_path / "samples.npz") == ([stored, other], {"end": 2})
    prompts = StoredPrompts(2)
    prompts.current = stored
    assert prompts.first("", questions[0]) == ([5, 49151, 0], 2)
    assert prompts.later([5], (1,), questions[1]) == [5, 1, 8, 9]


def test_the_table_is_made_of_what_all_rows_have() -> None:
    measured = Measured(100.0, (100.0,), 0.1, PagesRead(1, 1, 1), ("x",))
    ways = (Way("exact", "bf16"), Way("exact", "fp8"))
    records = [Record(way, 9, "needle", i, 0.0, measured) for way, count in zip(ways, (5, 3)) for i in range(count)]
    assert [(r.way, r.index) for r in quality.in_common(records)] == [(way, i) for way in ways for i in range(3)]


@pytest.fixture(scope="module", params=[pytest.param("exact k4v4", marks=pytest.mark.slow), "balanced bf16"])
def engine_and_way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Way]]:
    """Five layers, so that one of them has keys of 4 bits."""
    mode, name = request.param.split()
    model = tmp_path_factory.mktemp("model")
    save_folder(make_model("llama", layers=5, max_position=2048), model)
    sparsity = Sparsity(budget=384, reading_budget=256, crossover=0)
    config = EngineConfig(
        model, context=1024, threads=1, sparsity=sparsity, kv_format=name, prefill_chunk=CHUNK, decode_weights="f32"
    )
    with Engine.load(config) as engine:
        yield engine, Way(mode, name, mode)


def stored_sample(task: str, index: int, vocabulary: int) -> StoredSample:
    """Of tokens drawn at random."""
    random = Random(f"{task}/{index}")

    def draw(count: int) -> tuple[int, ...]:
        return tuple(random.randrange(3, vocabulary) for _ in range(count))

    turns = 3 if task == "multi_turn" else 1
    questions = tuple(Question(f"{turn}?", "", ("never",), "") for turn in range(turns))
    sample = Sample(f"{task}/{index}", questions, (), 0.5)
    followups, answers = tuple(draw(20) for _ in questions), tuple(draw(6) for _ in questions)
    return StoredSample(task, index, list(draw(END + 30)), sample, followups, answers)


@pytest.mark.parametrize("task", ["needle", "multi_turn"])
def test_measures_as_the_suite_does(engine_and_way: tuple[Engine, Way], task: str) -> None:
    """To the bit: the same chunks through the same code, kept and played again, also after another sample."""
    engine, way = engine_and_way
    stored = [stored_sample(task, index, engine.model.vocab_size) for index in (0, 1)]
    prompts = StoredPrompts(END)
    suite, reader = Asker(engine, prompts), DocumentReader(engine, way.reading, END)  # type: ignore[arg-type]
    fast = FastAsker(engine, prompts, reader)

    def both(asker: Asker) -> list[Measured]:
        found = []
        for prompts.current in stored:
            found.append(asker.questions(prompts.current.sample, way, ANSWER_TOKENS))
            asker.forget()
        return found

    expected = both(suite)
    assert expected[0].nll != expected[1].nll
    assert (expected[0].pages.prompt < 0.95) == way.sparse
    launched = both(fast)
    reader.record(lambda launch: launch)
    assert reader.recorded
    played = both(fast)
    for known, *others in zip(expected, launched, played):
        for found in others:
            assert (found.turn_scores, found.nll, found.answers) == (known.turn_scores, known.nll, known.answers)
            assert found.pages.selected == pytest.approx(known.pages.selected, abs=0.05)
    for found in (launched[0], played[0]):
        assert found.pages.prompt == pytest.approx(expected[0].pages.prompt, abs=1e-9)


def test_answers_that_are_known_are_not_generated(engine_and_way: tuple[Engine, Way]) -> None:
    """Only where the right answer is what greedy decoding writes, and nothing that follows could change its score."""
    engine, way = engine_and_way
    stored = stored_sample("needle", 2, engine.model.vocab_size)
    prompts = StoredPrompts(END)
    asker = FastAsker(engine, prompts, DocumentReader(engine, way.reading, END))
    prompts.current = stored
    greedy = tuple(asker.greedy(stored.sample, way, 8))
    assert len(greedy) == 8
    known, text = greedy[:6], engine.tokenizer.decode(greedy[:6])
    word = re.findall(r"\w+", text)[0]
    for gold, answer, is_known in ((word, known, True), ("never", known, False), (word, (*known[:5], 5), False)):
        sample = Sample("needle/2", (Question("?", "", (gold,), ""),), (), 0.5)
        prompts.current = replace(stored, sample=sample, answers=(answer,))
        before = asker.skipped
        found = asker.questions(sample, way, 8)
        assert asker.skipped - before == is_known
        assert found.score == 100.0 * (gold == word)
