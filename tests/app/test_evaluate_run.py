"""The eval run: an engine that knows all answers, one that knows none, and the command with the real starter model."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.evaluate.engines import engine_loader
from app.evaluate.measure import Way
from app.evaluate.prompts import Prompts
from app.evaluate.report import AVERAGE, summarize, words
from app.evaluate.run import Plan, Results, make_sample, measure, plan_ways
from app.evaluate.tasks import AGREEMENT_TOKENS, TASKS
from app.model_face import ModelFace, open_face
from app.models import describe
from app.settings import load_settings
from tests.app.cli_runner import ROOT, is_one_error, unabridged

LENGTH = 512


@pytest.fixture(scope="module")
def face(starter_model: Path) -> ModelFace:
    return open_face(describe(starter_model, "starter"), None)


@pytest.fixture(scope="module")
def prompts(face: ModelFace) -> Prompts:
    return Prompts(face, 135_000_000)


@dataclass
class Known:
    """An engine made of what it should answer: right in every mode, or only in `exact`."""

    face: ModelFace
    answers: dict[tuple[int, ...], str]
    right: bool = True
    kv_format: str = "bf16"
    kv_bytes_per_token: int = 100
    held: dict[str, list[int]] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def tokenizer(self) -> Any:
        return self.face.tokenizer

    def __enter__(self) -> Known:
        return self

    def __exit__(self, *_: object) -> None:
        assert not [name for name, ids in self.held.items() if ids], "the KV of every sample has been freed"

    def unload(self, conversation: str) -> None:
        self.held.pop(conversation, None)

    def generate(
        self,
        ids: Sequence[int],
        sampling: Any,
        *,
        conversation: str,
        checkpoints: Sequence[int],
        mode: str,
        reading: str,
    ) -> Iterator[Any]:
        if mode not in ("exact", "fast"):
            raise ValueError(f"mode: got {mode!r}, need one of exact, fast")
        return self._answer(list(ids), sampling, conversation, checkpoints, mode, reading)

    def _answer(
        self, ids: list[int], sampling: Any, conversation: str, checkpoints: Sequence[int], mode: str, reading: str
    ) -> Iterator[Any]:
        from engine import Done, Token

        assert all(0 < at < len(ids) for at in checkpoints)
        before = self.held.get(conversation) or ids
        assert ids[: len(before)] == before, "a conversation only grows"
        self.held[conversation], self.read[conversation] = ids, reading
        self.calls.append((conversation, mode, reading))
        text = (
            self.answers.get(tuple(ids), " Many people live there.") if self.right or mode == "exact" else " No idea."
        )
        for id in self.tokenizer.encode(text)[: sampling.max_tokens]:
            yield Token(id, self.tokenizer.decode([id]))
        share = 1.0 if mode == "exact" else 0.25
        shares = dict.fromkeys(("kv_pages_read_share", "selected_pages_read_share"), share)
        prompt = 1.0 if reading == "exact" else 0.5
        yield Done(SimpleNamespace(**shares, prompt_pages_read_share=prompt))  # pyright: ignore[reportArgumentType]

    def score(
        self, ids: Sequence[int], continuation: Sequence[int], *, conversation: str, mode: str, reading: str
    ) -> Any:
        assert self.read[conversation] == reading
        self.held[conversation] = [*ids, *continuation]
        good = self.right or mode == "exact"
        return SimpleNamespace(
            nll_sum=(0.1 if good else 0.2) * len(continuation),
            tokens=len(continuation),
            greedy_matches=len(continuation) if good else 0,
            kv_pages_read_share=1.0 if mode == "exact" else 0.25,
            selected_pages_read_share=1.0 if mode == "exact" else 0.25,
        )


def all_answers(plan: Plan, prompts: Prompts) -> dict[tuple[int, ...], str]:
    found = {}
    for task in plan.tasks:
        for index in range(plan.samples):
            sample = make_sample(plan.seed, task, LENGTH, index, prompts)
            ids, _ = prompts.first(sample.document, sample.questions[0])
            for number, question in enumerate(sample.questions):
                if number:
                    ids = prompts.later(ids, prompts.answer(sample.questions[number - 1]), question)
                found[tuple(ids)] = question.answer or " Many people live there."
    return found


def run(face: ModelFace, prompts: Prompts, right: bool, **more: Any) -> tuple[Results, Known]:
    groups, dense = plan_ways(more.pop("modes", ["exact", "fast"]), ["bf16"], **more)
    plan = Plan((LENGTH,), tuple(TASKS.values()), 2, groups, dense)
    engine, results = Known(face, all_answers(plan, prompts), right), Results(plan)
    measure(plan, prompts, lambda way: engine, results, lambda text: None)  # pyright: ignore[reportArgumentType]
    return results, engine


def test_who_knows_all_answers_scores_100_everywhere(face: ModelFace, prompts: Prompts) -> None:
    results, _ = run(face, prompts, right=True)
    rows = summarize(results)
    assert {(row.task, row.score) for row in rows} == {(name, 100.0) for name in (*TASKS, AVERAGE)}
    assert {row.difference for row in rows} == {0}
    assert {round(row.nll_ratio or 0, 6) for row in rows} == {1.0}
    assert {row.pages_read_share for row in rows if row.mode == "fast"} == {0.25}
    assert len(results.records) == 2 * 2 * len(TASKS)
    assert words(results, rows) == []


def test_who_knows_none_scores_0_and_the_difference_says_so(face: ModelFace, prompts: Prompts) -> None:
    results, _ = run(face, prompts, right=False)
    sparse = [row for row in summarize(results) if row.mode == "fast"]
    assert {row.score for row in sparse} == {0.0}
    assert {row.difference for row in sparse} == {-100.0}
    assert {round(row.nll_ratio or 0, 6) for row in sparse} == {2.0}


@pytest.mark.parametrize(
    ("parts", "rows"),
    [
        (["both"], {("exact", "exact"), ("fast", "fast")}),
        (["decode", "prefill"], {("exact", "exact"), ("fast", "exact"), ("exact", "fast")}),
    ],
)
def test_who_reads_what(face: ModelFace, prompts: Prompts, parts: Any, rows: set[tuple[str, str]]) -> None:
    """One dense prefill of a sample serves all rows that read densely; the others read for themselves."""
    _, engine = run(face, prompts, right=True, parts=parts)
    shared = [call[1:] for call in engine.calls if call[0] == "evaluated densely"]
    assert len(shared) == 2 * len(TASKS)
    assert set(shared) == {("exact", "exact")}
    assert {call[1:] for call in engine.calls if call[0] == "evaluated row"} == rows


def test_modes_that_the_engine_refuses_are_named_and_the_rest_is_measured(face: ModelFace, prompts: Prompts) -> None:
    results, _ = run(face, prompts, right=True, modes=["exact", "swift"])
    assert [str(way) for way, _ in results.refused] == ["swift bf16"]
    assert "need one of exact, fast" in words(results, summarize(results))[0]
    assert {record.way.mode for record in results.records} == {"exact"}


def test_a_format_that_the_engine_refuses_is_named(face: ModelFace, prompts: Prompts) -> None:
    groups, dense = plan_ways(["exact"], ["k9v9"])
    plan = Plan((LENGTH,), (TASKS["needle"],), 1, groups, dense)
    engine, results = Known(face, all_answers(plan, prompts)), Results(plan)

    def load(way: Way) -> Any:
        if way.format != "bf16":
            raise ValueError(f"kv_format: got {way.format!r}, need bf16")
        return engine

    measure(plan, prompts, load, results, lambda text: None)
    assert results.refused == [(Way("exact", "k9v9"), "kv_format: got 'k9v9', need bf16")]
    assert len(results.records) == 1


def test_tasks_that_do_not_fit_are_named_not_cut(face: ModelFace, prompts: Prompts) -> None:
    groups, dense = plan_ways(["exact"], ["bf16"])
    plan = Plan((160, LENGTH), (TASKS["multi_query"],), 1, groups, dense)
    engine, results = Known(face, all_answers(plan, prompts)), Results(plan)
    measure(plan, prompts, lambda way: engine, results, lambda text: None)  # pyright: ignore[reportArgumentType]
    assert [record.length for record in results.records] == [LENGTH]
    assert "multi_query at 160 tokens was left out" in results.notes[0]


def test_agreement_asks_for_its_tokens(prompts: Prompts) -> None:
    assert TASKS["agreement"].answer_tokens == AGREEMENT_TOKENS == 128


def test_engines_are_as_sparse_as_the_settings_say(
    starter_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row's own budget and scorer come first; `exact` alone is loaded without streaming heads."""
    import engine
    from engine import Sparsity

    configs = []
    monkeypatch.setattr(engine.Engine, "load", lambda config: configs.append(config))
    (tmp_path / "settings.toml").write_text(
        "sparsity.ratio = 0.5\nsparsity.logical_pages = 32\nsparsity.reuse_interval = 8\nsparsity.crossover = 0\n"
        "sparsity.streaming_ratio = 0.5\nsparsity.budget = 640\nsparsity.score = 'min_max'\n"
    )
    settings = load_settings({"sparsity.crossover": 64}, {}, tmp_path)
    load = engine_loader(settings, describe(starter_model, "starter"), reading_budget=256)
    for way in (Way("fast", "bf16", "fast", 512, "mean_std"), Way("fast", "bf16", "fast"), Way("exact", "bf16")):
        load(way)
    common = {"ratio": 0.5, "logical_pages": 32, "reuse_interval": 8, "crossover": 64, "streaming_ratio": 0.5}
    assert [config.sparsity for config in configs] == [
        Sparsity(budget=512, score="mean_std", reading_budget=256, **common),
        Sparsity(budget=640, score="min_max", reading_budget=256, **common),
        Sparsity(),
    ]


@pytest.mark.slow
def test_a_small_table_is_really_sparse(starter_model: Path, data_dir: Path) -> None:
    """The whole suite in small, with a setting of the user's: rows, likelihoods, and pages that were not read."""
    (data_dir / "settings.toml").write_text("sparsity.logical_pages = 32\n")
    done = unabridged(
        "eval", "--model", starter_model, "--lengths", "640", "--samples", "1", "--tasks", "needle,facts",
        "--modes", "exact,balanced", "--formats", "bf16,k4v4", "--budget", "320", "--reading-budget", "128",
        "--crossover", "0", "--threads", "1", "--json", data_dir=data_dir, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["refused"] == []
    rows = {(row["mode"], row["format"], row["task"]): row for row in found["rows"] if row["task"] != AVERAGE}
    assert len(rows) == 2 * 2 * 2
    for (mode, form, _), row in rows.items():
        assert math.isfinite(row["nll"])
        assert 0 < row["nll_ratio"] < math.inf
        if mode == "exact":
            shares = row["pages_read_share"], row["selected_pages_read_share"], row["prompt_pages_read_share"]
            assert shares == (1, 1, 1)
            assert form != "bf16" or (row["difference"], row["nll_ratio"]) == (0, 1)
        else:
            assert row["selected_pages_read_share"] < row["pages_read_share"] < 0.7
            # Of the 90 KV heads 47 stream, and those read everything at this length while a prompt is read.
            assert row["prompt_pages_read_share"] < 0.95
    assert len({row["nll"] for row in rows.values()}) == len(rows), "each way reads for itself"
    assert found["bytes_per_token"]["k4v4"] < 0.42 * found["bytes_per_token"]["bf16"]  # twelve layers keep 8-bit keys
    assert (found["sparsity"]["logical_pages"], found["sparsity"]["crossover"]) == (32, 0)
    assert "sparsity.logical_pages is 32 in all sparse rows, from settings.toml." in done.stderr


@pytest.mark.slow
def test_the_command_with_the_starter_model(starter_model: Path, data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = unabridged(
        "eval", "--model", starter_model, "--lengths", "512", "--samples", "1", "--tasks", "needle,facts",
        "--formats", "bf16,k8v4", "--threads", "1", "--json", "--out", out, data_dir=data_dir,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "135M" in found["model"]
    assert [(row["mode"], row["format"], row["task"]) for row in found["rows"]][:2] == [
        ("exact", "bf16", "needle"),
        ("exact", "bf16", "facts"),
    ]
    assert {row["format"] for row in found["rows"]} == {"bf16", "k8v4"}
    assert {row["pages_read_share"] for row in found["rows"]} == {1.0}
    assert found["bytes_per_token"]["k8v4"] < 0.5 * found["bytes_per_token"]["bf16"]
    dense = found["rows"][0]
    assert (dense["difference"], dense["samples"], dense["length"]) == (0, 1, 512)
    assert json.loads((out / "results.json").read_text()) == found
    assert len((out / "samples.jsonl").read_text().splitlines()) == 4
    assert (out / "needle.png").stat().st_size > 1000
    kept = {str(path.relative_to(data_dir)) for path in data_dir.rglob("*") if path.is_file()}
    assert kept <= {"gates/fingerprints"}, "of what it measured, it stores nothing in the data folder"


@pytest.mark.slow
def test_an_interrupted_run_tells_what_it_has(starter_model: Path, data_dir: Path, tmp_path: Path) -> None:
    words = ["eval", "--model", str(starter_model), "--lengths", "512", "--samples", "500", "--tasks", "needle"]
    words += ["--formats", "bf16", "--threads", "1", "--json", "--out", str(tmp_path)]
    log = tmp_path / "samples.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        deadline = time.monotonic() + 120
        while not (log.exists() and len(log.read_text().splitlines()) >= 2):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["partial"]
    assert found["rows"][0]["samples"] == len(log.read_text().splitlines()) >= 2
    assert "partial" in err


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--tasks", "needel"], 2, "'needle'"),
        (["--samples", "0"], 2, "--samples"),
        (["--lengths", "far"], 2, "--lengths"),
        (["--lengths", ","], 2, "--lengths"),
        (["--modes", "fast", "--budget", "10"], 2, "budget: got 10"),
        (["--crossover", "soon"], 2, "--crossover"),
        (["--device", "tpu"], 2, "device"),
        (["--lengths", "900k"], 3, "does not fit"),
    ],
)
def test_wrong_use(starter_model: Path, data_dir: Path, more: list[str], code: int, says: str) -> None:
    done = unabridged("eval", "--model", starter_model, *more, data_dir=data_dir)
    assert done.returncode == code
    assert is_one_error(done.stderr)
    assert says in done.stderr
