"""Statistics of the eval suite against known cases, rows made of records, the JSON's shape, and the pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from app.evaluate.measure import Measured, PagesRead, Way
from app.evaluate.plots import write_plots
from app.evaluate.report import AVERAGE, Row, as_json, as_table, summarize, words
from app.evaluate.run import Plan, Record, Results, plan_ways
from app.evaluate.statistics import nll_ratio, paired_difference, stratified_difference, t_quantile
from app.evaluate.tasks import TASKS

DENSE, SPARSE = Way("exact", "bf16"), Way("fast", "bf16", "fast", 1024)


@pytest.mark.parametrize(
    ("share", "freedom", "known"),
    [(0.95, 1, 6.314), (0.95, 2, 2.920), (0.95, 9, 1.833), (0.975, 19, 2.093), (0.95, 99, 1.660), (0.95, 1e6, 1.646)],
)
def test_quantiles_of_students_t(share: float, freedom: float, known: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(known, abs=0.001)


def test_a_paired_difference_by_hand() -> None:
    """Differences -10, 0, 10, -20: mean -5, deviation 12.91, error 6.455, t(3) 2.353."""
    found = paired_difference([0, 50, 100, 40], [10, 50, 90, 60])
    assert (found.mean, found.pairs, found.equal) == (-5, 4, 1)
    assert found.lower == pytest.approx(-5 - 2.3534 * 6.4550, abs=0.001)


def test_equal_rows_have_no_difference_and_one_pair_no_bound() -> None:
    same = paired_difference([100, 0, 50], [100, 0, 50])
    assert (same.mean, same.lower, same.equal) == (0, 0, 3)
    assert paired_difference([90], [100]).lower is None


def test_tasks_count_the_same_however_many_samples_they_have() -> None:
    found = stratified_difference([([0.0] * 10, [10.0] * 10), ([10.0] * 2, [10.0] * 2)])
    assert found.mean == -5
    one = stratified_difference([([1.0, 5.0, 3.0], [0.0, 0.0, 0.0])])
    assert one == paired_difference([1.0, 5.0, 3.0], [0.0, 0.0, 0.0])
    two = stratified_difference([([1.0, 5.0, 3.0], [0.0] * 3)] * 2)
    assert one.lower is not None
    assert two.lower is not None
    assert one.lower < two.lower < two.mean == one.mean


def test_the_bound_holds_as_often_as_it_says() -> None:
    """4000 draws of 40 pairs of coarse scores: the true mean is under the bound in about one of twenty."""
    rng, missed, true = Random(5), 0, -0.15 * 100 + 0.1 * 100
    for _ in range(4000):
        draws = rng.choices((-100.0, 0.0, 100.0), (0.15, 0.75, 0.1), k=40)
        lower = paired_difference(draws, [0.0] * 40).lower
        missed += lower is not None and lower > true
    assert 0.03 < missed / 4000 < 0.07


@pytest.mark.parametrize("groups", [[], [([], [])], [([1.0], [1.0, 2.0])]])
def test_what_is_no_pair_is_refused(groups) -> None:
    with pytest.raises(ValueError, match="need pairs"):
        stratified_difference(groups)


def test_likelihoods_compare_by_their_means() -> None:
    assert nll_ratio([0.2, 0.4], [0.1, 0.5]) == pytest.approx(1.0)
    assert nll_ratio([], []) is None


def record(way: Way, task: str, index: int, score: float, nll: float = 1.0, share: float = 1.0) -> Record:
    depth = (0.0, 0.1, 0.5, 0.9, 0.99)[index % 5] if TASKS[task].has_depth else None
    return Record(
        way, 1024, task, index, depth, Measured(score, (score,), nll, PagesRead(share, share / 2, share), ("",))
    )


@pytest.fixture
def results() -> Results:
    tasks = tuple(TASKS[name] for name in ("needle", "two_hop", "arithmetic", "perplexity"))
    found = Results(Plan((1024,), tasks, 10, ((DENSE, SPARSE),), DENSE), bytes_per_token={"bf16": 23040})
    for i in range(10):
        found.records += [record(DENSE, "needle", i, 100.0, 0.1), record(SPARSE, "needle", i, 90.0, 0.11, 0.25)]
        found.records += [record(DENSE, "two_hop", i, 60.0, 0.3), record(SPARSE, "two_hop", i, 60.0, 0.3, 0.35)]
        found.records += [record(DENSE, "arithmetic", i, 10.0), record(SPARSE, "arithmetic", i, 90.0, share=0.3)]
        found.records += [record(DENSE, "perplexity", i, 40.0, 2.0), record(SPARSE, "perplexity", i, 39.0, 2.1, 0.3)]
    return found


def row(rows: list[Row], way: Way, task: str) -> Row:
    (found,) = [r for r in rows if r.way == way and r.task == task]
    return found


def test_rows(results: Results) -> None:
    rows = summarize(results)
    needle = row(rows, SPARSE, "needle")
    assert (needle.score, needle.difference, needle.difference_lower, needle.samples) == (90, -10, -10, 10)
    assert needle.nll_ratio == pytest.approx(1.1)
    assert needle.pages_read_share == needle.prompt_pages_read_share == 0.25
    assert needle.selected_pages_read_share == 0.125
    assert needle.by_depth == {"0": 90, "0.1": 90, "0.5": 90, "0.9": 90, "0.99": 90}
    perplexity = row(rows, SPARSE, "perplexity")
    assert (perplexity.averaged, perplexity.nll_ratio) == (False, pytest.approx(1.05))


def test_what_dense_cannot_do_is_shown_and_not_averaged(results: Results) -> None:
    rows = summarize(results)
    assert not row(rows, SPARSE, "arithmetic").averaged
    average = row(rows, SPARSE, AVERAGE)
    assert (average.score, average.difference, average.dense_score) == (75, -5, 80)
    assert average.pages_read_share == pytest.approx(0.3)
    assert average.nll_ratio == pytest.approx(0.41 / 0.4)
    assert any("arithmetic" in sentence and "under 30" in sentence for sentence in words(results, rows))
    assert "(arithmetic)" in [cells[3] for cells in as_table(rows)]


def test_samples_that_dense_was_not_measured_on_are_not_compared(results: Results) -> None:
    results.records = [r for r in results.records if r.way != DENSE or r.index < 4]
    results.partial = True
    rows = summarize(results)
    assert row(rows, SPARSE, "needle").samples == 10
    assert row(rows, SPARSE, "needle").equal_pairs == 0
    assert row(rows, SPARSE, "two_hop").equal_pairs == 4
    assert any("partial" in sentence for sentence in words(results, rows))


def test_a_sparse_row_that_read_everything_is_named(results: Results) -> None:
    assert not any("nothing was sparse" in sentence for sentence in words(results, summarize(results)))
    results.records = [record(r.way, r.task, r.index, r.measured.score) for r in results.records]
    said = [s for s in words(results, summarize(results)) if "nothing was sparse" in s]
    assert len(said) == 2
    assert "fast 1024 bf16 read 100 % of the KV pages in answering at 1024 tokens (4 of 4 rows)" in said[0]
    assert "fast 1024 bf16 read 100 % of the KV pages in reading at 1024 tokens" in said[1]


def test_json_has_designs_fields(results: Results) -> None:
    results.refused.append((Way("exact", "k9v9"), "no such format"))
    found = json.loads(json.dumps(as_json(results, summarize(results), "a model")))
    assert {"model", "rows", "partial", "refused", "seed", "dense", "notes"} <= set(found)
    for each in found["rows"]:
        assert {"mode", "format", "length", "task", "samples", "score", "pages_read_share"} <= set(each)
        assert {"selected_pages_read_share", "prompt_pages_read_share", "nll_ratio", "reading"} <= set(each)
    assert found["refused"][0] | {"mode": "exact", "format": "k9v9", "reason": "no such format"} == found["refused"][0]


def named(groups: tuple[tuple[Way, ...], ...]) -> list[list[str]]:
    return [[str(way) for way in group] for group in groups]


def test_ways_begin_with_dense_and_one_engine_has_one_budget() -> None:
    groups, dense = plan_ways(["fast", "exact"], ["k8v4", "bf16"], [512, 1024])
    assert dense == groups[0][0] == DENSE
    assert named(groups) == [
        ["exact bf16", "fast 512 bf16"],
        ["fast 1024 bf16"],
        ["exact k8v4", "fast 512 k8v4"],
        ["fast 1024 k8v4"],
    ]
    assert named(plan_ways(["fast"], ["k8v4"])[0]) == [["exact bf16"], ["fast k8v4"]]
    assert str(plan_ways(["exact"], ["f32"])[1]) == "exact f32"
    assert named(plan_ways(["exact"], ["bf16"], [512, 1024], ["min_max"])[0]) == [["exact bf16"]]
    assert named(plan_ways(["fast"], ["bf16"], apart=True)[0]) == [["exact bf16"], ["fast bf16"]]


def test_sparse_modes_can_read_or_answer_only() -> None:
    groups, _ = plan_ways(["exact", "fast"], ["bf16"], [512], ["mean_std", "min_max"], ["decode", "prefill"])
    assert named(groups) == [
        ["exact bf16", "fast (decode only) 512 mean_std bf16", "fast (prefill only) 512 mean_std bf16"],
        ["fast (decode only) 512 min_max bf16", "fast (prefill only) 512 min_max bf16"],
    ]
    assert groups[1] == (
        Way("fast", "bf16", "exact", 512, "min_max"),
        Way("exact", "bf16", "fast", 512, "min_max"),
    )


def test_a_row_that_only_answers_sparsely_is_not_blamed_for_its_reading(results: Results) -> None:
    only = Way("fast", "bf16", "exact", 1024)
    results.plan = replace(results.plan, groups=((DENSE, only),))
    results.records = [replace(r, way=only) if r.way == SPARSE else r for r in results.records]
    pages = PagesRead(0.3, 0.2, 1.0)
    results.records = [replace(r, measured=replace(r.measured, pages=pages)) for r in results.records]
    assert not any("nothing was sparse" in sentence for sentence in words(results, summarize(results)))


def test_pictures_are_drawn(results: Results, tmp_path: Path) -> None:
    written = write_plots(summarize(results), results.bytes_per_token, tmp_path)
    assert [path.name for path in written] == ["needle.png", "bytes.png", "budget.png"]
    for path in written:
        with Image.open(path) as image:
            assert image.format == "PNG"
            colours = image.convert("RGB").getcolors(1 << 20)
        assert colours is not None
        assert len(colours) > 10, "text and marks, not an empty sheet"


def test_the_needle_map_shows_the_scores_by_colour(results: Results, tmp_path: Path) -> None:
    from app.evaluate.plots import HIGH, LOW, needle_map

    def colours() -> set[object]:
        with Image.open(needle_map(summarize(results), tmp_path / "map.png")) as image:
            return {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}

    assert HIGH in colours()
    assert LOW not in colours()
    results.records = [record(r.way, r.task, r.index, 0.0) for r in results.records]
    assert LOW in colours()
