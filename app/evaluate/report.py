"""From single measurements to rows: means, paired comparison with dense, and what to tell in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from app.evaluate.measure import DENSE_MODE, Way
from app.evaluate.run import Record, Results
from app.evaluate.statistics import Difference, nll_ratio, stratified_difference
from app.evaluate.tasks import TASKS

LOWEST_DENSE = 30.0
"""Where dense attention scores less, the model cannot do the task, and nothing follows from a row's score."""
AVERAGE = "average"
_ALL_PAGES = 0.9995


@dataclass(frozen=True, slots=True)
class Row:
    """One way, length and task. Scores 0 to 100, `nll` in nats per token of the right answer.

    `difference`: score minus dense's, paired by sample, `difference_lower`: its one-sided 95 % bound; `nll_ratio`: to
    dense's. None where there is nothing to compare. `averaged`: counted in the row `average` of this way and length.
    `pages_read_share`: of the KV pages that answering could have read, `selected_...`: without the first two layers,
    which read densely, `prompt_...`: of those that the prompt's query blocks could have read.
    `by_depth`: score at each depth, for tasks that plant at one. `turn_scores`: of each question, where there are more.
    """

    mode: str
    reading: str
    format: str
    budget: int | None
    scorer: str | None
    gates: bool
    length: int
    task: str
    samples: int
    score: float
    pages_read_share: float
    selected_pages_read_share: float
    prompt_pages_read_share: float
    dense_score: float | None
    difference: float | None
    difference_lower: float | None
    equal_pairs: int
    nll: float
    nll_ratio: float | None
    averaged: bool
    by_depth: dict[str, float]
    turn_scores: tuple[float, ...]

    @property
    def way(self) -> Way:
        return Way(self.mode, self.format, self.reading, self.budget, self.scorer, self.gates)


def summarize(results: Results) -> list[Row]:
    """Rows in the order of the plan: ways, lengths, tasks, with a row `average` behind each length's tasks."""
    plan, rows = results.plan, []
    records_of: dict[tuple[Way, int, str], list[Record]] = {}
    for record in results.records:
        records_of.setdefault((record.way, record.length, record.task), []).append(record)
    for way in plan.ways:
        for length in plan.lengths:
            found = {task.name: records_of.get((way, length, task.name), []) for task in plan.tasks}
            dense = {
                (r.task, r.index): r for task in plan.tasks for r in records_of.get((plan.dense, length, task.name), [])
            }
            tasks = [_row(records, dense, TASKS[task].averaged) for task, records in found.items() if records]
            rows += tasks
            averaged = [row.task for row in tasks if row.averaged]
            if averaged:
                rows.append(_average([row for row in tasks if row.averaged], [found[t] for t in averaged], dense))
    return rows


Dense = dict[tuple[str, int], Record]


def _pairs(records: Sequence[Record], dense: Dense) -> list[tuple[Record, Record]]:
    return [(r, dense[r.task, r.index]) for r in records if (r.task, r.index) in dense]


def _compare(groups: Sequence[Sequence[tuple[Record, Record]]]) -> Difference | None:
    scores = [([r.measured.score for r, _ in pairs], [d.measured.score for _, d in pairs]) for pairs in groups if pairs]
    return stratified_difference(scores) if scores else None


def _row(records: list[Record], dense: Dense, counts: bool) -> Row:
    pairs = _pairs(records, dense)
    difference = _compare([pairs])
    dense_score = fmean(d.measured.score for _, d in pairs) if pairs else None
    depths = sorted({r.depth for r in records if r.depth is not None})
    turns = [r.measured.turn_scores for r in records]
    way = records[0].way
    return Row(
        mode=way.mode,
        reading=way.reading,
        format=way.format,
        budget=way.budget,
        scorer=way.scorer,
        gates=way.gates,
        length=records[0].length,
        task=records[0].task,
        samples=len(records),
        score=fmean(r.measured.score for r in records),
        pages_read_share=fmean(r.measured.pages.answering for r in records),
        selected_pages_read_share=fmean(r.measured.pages.selected for r in records),
        prompt_pages_read_share=fmean(r.measured.pages.prompt for r in records),
        dense_score=dense_score,
        difference=difference.mean if difference else None,
        difference_lower=difference.lower if difference else None,
        equal_pairs=difference.equal if difference else 0,
        nll=fmean(r.measured.nll for r in records),
        nll_ratio=nll_ratio([r.measured.nll for r, _ in pairs], [d.measured.nll for _, d in pairs]),
        averaged=counts and dense_score is not None and dense_score >= LOWEST_DENSE,
        by_depth={f"{at:g}": fmean(r.measured.score for r in records if r.depth == at) for at in depths},
        turn_scores=tuple(map(fmean, zip(*turns))) if len(turns[0]) > 1 else (),
    )


def _average(rows: list[Row], groups: list[list[Record]], dense: Dense) -> Row:
    """Each task counts the same."""
    difference = _compare([_pairs(records, dense) for records in groups])
    first = rows[0]
    ratios = [(row.nll, row.nll / row.nll_ratio) for row in rows if row.nll_ratio]
    dense_scores = [row.dense_score for row in rows if row.dense_score is not None]
    return Row(
        mode=first.mode,
        reading=first.reading,
        format=first.format,
        budget=first.budget,
        scorer=first.scorer,
        gates=first.gates,
        length=first.length,
        task=AVERAGE,
        samples=sum(row.samples for row in rows),
        score=fmean(row.score for row in rows),
        pages_read_share=fmean(row.pages_read_share for row in rows),
        selected_pages_read_share=fmean(row.selected_pages_read_share for row in rows),
        prompt_pages_read_share=fmean(row.prompt_pages_read_share for row in rows),
        dense_score=fmean(dense_scores) if dense_scores else None,
        difference=difference.mean if difference else None,
        difference_lower=difference.lower if difference else None,
        equal_pairs=difference.equal if difference else 0,
        nll=fmean(row.nll for row in rows),
        nll_ratio=nll_ratio([a for a, _ in ratios], [b for _, b in ratios]),
        averaged=False,
        by_depth={},
        turn_scores=(),
    )


def words(results: Results, rows: Sequence[Row]) -> list[str]:
    """What the numbers alone do not say."""
    said = [f"{way} was refused: {reason}." for way, reason in results.refused]
    said += results.notes
    for way in results.plan.ways:
        mine = [row for row in rows if row.way == way and row.task != AVERAGE]
        said += _not_sparse(way, mine, "answering", [row.pages_read_share for row in mine], way.mode)
        said += _not_sparse(way, mine, "reading", [row.prompt_pages_read_share for row in mine], way.reading)
    low = sorted({row.task for row in rows if row.dense_score is not None and row.dense_score < LOWEST_DENSE})
    low = [task for task in low if task != AVERAGE and TASKS[task].averaged]
    if low:
        said.append(f"Not averaged where dense attention itself scores under {LOWEST_DENSE:g}: {', '.join(low)}.")
    if results.partial:
        said.append("Not complete: these numbers are partial, over what was measured before the run ended.")
    return said


def _not_sparse(way: Way, rows: Sequence[Row], doing: str, shares: Sequence[float], mode: str) -> list[str]:
    """A sparse path that did not run must not pass as lossless."""
    dense = [row.length for row, share in zip(rows, shares) if share >= _ALL_PAGES]
    if mode == DENSE_MODE or not dense:
        return []
    lengths = ", ".join(str(length) for length in sorted(set(dense)))
    return [
        f"{way} read 100 % of the KV pages in {doing} at {lengths} tokens ({len(dense)} of {len(rows)} rows): nothing "
        f"was sparse there, so these rows say nothing about sparse {doing} (see --budget, --reading-budget and "
        "--crossover)."
    ]


def as_json(results: Results, rows: Sequence[Row], model: str) -> dict[str, Any]:
    plan = results.plan
    return {
        "model": model,
        "dense": {"mode": plan.dense.mode, "format": plan.dense.format},
        "sparsity": results.sparsity,
        "seed": plan.seed,
        "partial": results.partial,
        "bytes_per_token": results.bytes_per_token,
        "refused": [asdict(way) | {"reason": reason} for way, reason in results.refused],
        "notes": words(results, rows),
        "rows": [asdict(row) for row in rows],
    }


def as_table(rows: Sequence[Row]) -> list[list[str]]:
    """Cells, with a head line. Tasks that are not averaged stand in brackets."""
    head = ["MODE", "KV", "LENGTH", "TASK", "SAMPLES", "SCORE", "-DENSE", "95 % LOWER", "NLL", "/DENSE"]
    head += ["PAGES READ", "SELECTED", "PROMPT"]
    table = [head]
    for row in rows:
        name = row.task if row.averaged or row.task == AVERAGE else f"({row.task})"
        table.append(
            [
                row.way.policy,
                row.format,
                str(row.length),
                name,
                str(row.samples),
                f"{row.score:.1f}",
                _signed(row.difference),
                _signed(row.difference_lower),
                f"{row.nll:.3f}",
                "-" if row.nll_ratio is None else f"{row.nll_ratio:.3f}",
                f"{100 * row.pages_read_share:.1f} %",
                f"{100 * row.selected_pages_read_share:.1f} %",
                f"{100 * row.prompt_pages_read_share:.1f} %",
            ]
        )
    return table


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"
