"""What a process of tests/measure/quality.py does: its rows, for every sample, in several threads."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from quality_reading import DocumentReader, FastAsker, on_stream
from quality_samples import StoredPrompts, StoredSample

from app.evaluate.measure import Asker, Measured, Way
from app.evaluate.run import Record
from app.evaluate.tasks import TASKS
from engine import Engine, EngineConfig, Sparsity
from engine.cache import KvCache
from engine.gates import read_gates
from engine.load import LoadedModel, kept_scorers, load_model, make_graphs
from engine.profiles import kv_sizes

GATES = Path(__file__).resolve().parents[2] / "app/gates/starter.json"
PREFILL_BUDGET = 2048  # read by a query block in the row of sparse prefill alone
ROOM = 512  # tokens for questions and answers
_DONE = 1 << 40


@dataclass(frozen=True, slots=True)
class Job:
    """`ways`: the rows of process `number`. `end`: where documents end. `deadline`: of `time.time()`."""

    number: int
    ways: tuple[Way, ...]
    dense: Way
    model: Path
    records: Path
    folder: Path
    device: str
    chunk: int
    end: int
    threads: int
    deadline: float
    ahead: int
    record: bool
    known: frozenset[tuple[str, str, int]]


def config_for(way: Way, job: Job) -> EngineConfig:
    sparsity = Sparsity()
    if way.sparse:
        sparsity = Sparsity(
            budget=way.budget,
            crossover=0,
            ratio=0.0,
            score=way.scorer or "coarse_keys",
            reading_budget=PREFILL_BUDGET if way.mode == "exact" else None,
        )
    calibrated = read_gates(GATES)
    gates = calibrated.gates if way.gates and way.sparse else None
    room = job.end + ROOM
    return EngineConfig(
        model=job.model,
        context=room,
        kv_format=way.format,  # pyright: ignore[reportArgumentType]
        device=job.device,
        gates=gates,
        wide_key_layers=calibrated.wide_key_layers,  # only formats with keys below 8 bits heed them
        sparsity=sparsity,
        kv_capacity_tokens=room + 2048,
        prefill_chunk=job.chunk,
        decode_weights="auto" if job.device == "cpu" else "bf16",
    )


@dataclass(slots=True)
class Row:
    """One way in one thread."""

    way: Way
    engine: Engine
    prompts: StoredPrompts
    asker: FastAsker
    reader: DocumentReader
    seconds: dict[str, float] = field(default_factory=dict)
    samples: int = 0

    def timed(self, step: str, before: float) -> None:
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - before


def make_engine(way: Way, job: Job, first: LoadedModel, fresh: bool) -> Engine:
    """With the weights of `first`, which all rows share, and a cache of its own. `fresh`: nothing of this way has been
    compiled yet."""
    config, model = config_for(way, job), first.decoder.config
    scorers, device = kept_scorers(config), first.profile.device
    sizes = kv_sizes(config, model, first.context, device, scorers)
    pools = (model, config.kv_format, sizes.pages, sizes.exact, device, scorers, sizes.cold)
    cache = KvCache(*pools, wide=config.wide_key_layers)
    graphs = None
    if device != "cpu":
        with _only("dense" if way.mode == "exact" else "select", fresh):
            graphs = make_graphs(first.decoder, cache, config, first.context, lambda share: None)
    return Engine(config, replace(first, cache=cache, capacity=sizes.tokens, scorers=scorers, graphs=graphs))


@contextmanager
def _only(reads: str, warm_up: bool) -> Iterator[None]:
    """Of the decode graphs only the one that is of use here; `reads`: what the layers behind the first two do, "" for
    no graph at all."""
    from engine.cuda import graph_decode

    variants, read_something = graph_decode.VARIANTS, graph_decode.read_something
    graph_decode.VARIANTS = (("dense", reads),) if reads else ()  # type: ignore[assignment]
    if not warm_up:
        graph_decode.read_something = lambda *args: None
    try:
        yield
    finally:
        graph_decode.VARIANTS, graph_decode.read_something = variants, read_something


def make_row(
    way: Way, job: Job, first: LoadedModel, sample: StoredSample | None, stream: torch.cuda.Stream | None
) -> Row:
    """`sample`: by which the recording is compared with what the engine does without; None: it has been."""
    engine, prompts = make_engine(way, job, first, sample is not None), StoredPrompts(job.end)
    reader = DocumentReader(engine, way.reading, job.end)
    row = Row(way, engine, prompts, FastAsker(engine, prompts, reader), reader)
    if stream is None or not job.record:
        return row
    before = time.perf_counter()
    plain = _plainly(row, sample) if sample else None
    row.timed("plain", before)
    before = time.perf_counter()
    try:
        reader.record(on_stream(stream))
    except Exception as error:  # a slow measurement is better than none, as long as it is told
        print(f"{way}: its reading cannot be recorded, which makes it slow: {error}", file=sys.stderr, flush=True)
        torch.cuda.synchronize()
        return row
    row.timed("record", before)
    if sample is not None and plain is not None:
        _compare(row, sample, plain, stream)
    return row


def _plainly(row: Row, sample: StoredSample) -> float:
    """NLL of the right answer as the engine alone computes it, with nothing recorded but decode steps."""
    row.prompts.current, asker = sample, Asker(row.engine, row.prompts)  # type: ignore[arg-type]
    engine, way, end = row.engine, row.way, row.reader.end
    try:
        asker._answer(list(sample.ids), way, 1, end)
        score = asker._score(list(sample.ids), sample.answers[0], way)
    finally:
        engine.unload("evaluated row")
    return score.nll_sum / score.tokens


def _compare(row: Row, sample: StoredSample, plain: float, stream: torch.cuda.Stream) -> None:
    row.prompts.current = sample
    with torch.cuda.stream(stream):
        times, launched = [], 0.0
        for _ in range(2):
            begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before = time.perf_counter()
            begin.record()
            row.reader.read(list(sample.ids))
            done.record()
            launched = time.perf_counter() - before
            done.synchronize()
            times.append(begin.elapsed_time(done))
        found = row.asker.questions(sample.sample, row.way, 1).nll
    print(
        f"{row.way}: NLL {plain:.5f} by the engine, {found:.5f} by the recording; document {times[-1]:.1f} ms, "
        f"launched in {1000 * launched:.1f} ms; recorded in {row.seconds['record']:.1f} s",
        flush=True,
    )
    if abs(found - plain) > 1e-3 * max(1.0, plain):
        print(f"{row.way}: the recording computes something else and is not used", file=sys.stderr, flush=True)
        row.reader.forget_recording()


class Queue:
    """Hands out (row number, sample): all rows of the process for a sample, then the next sample."""

    def __init__(self, job: Job, samples: list[StoredSample], places) -> None:  # type: ignore[no-untyped-def]
        self._job, self._samples, self._places = job, samples, places
        self._lock, self._next = threading.Lock(), 0

    def next(self) -> tuple[int, StoredSample] | None:
        """None when all is done or time is up; waits for processes that are far behind."""
        job = self._job
        while time.time() < job.deadline:
            with self._lock:
                place, row = divmod(self._next, len(job.ways))
                if place >= len(self._samples):
                    return None
                if place <= min(self._places[:]) + job.ahead:
                    self._places[job.number] = place
                    self._next += 1
                    sample = self._samples[place]
                    if (str(job.ways[row]), sample.task, sample.index) in job.known:
                        continue
                    return row, sample
            time.sleep(0.01)
        return None


def measure_one(row: Row, sample: StoredSample, job: Job) -> Measured | None:
    """None where dense attention answered nothing to agree with, or not in time."""
    task, asker, way = TASKS[sample.task], row.asker, row.way
    row.prompts.current = sample
    if task.kind == "answer":
        return asker.questions(sample.sample, way, task.answer_tokens)
    if task.kind == "perplexity":
        return asker.perplexity(sample.sample, way)
    path = job.folder / f"dense-{sample.index}.json"
    if way == job.dense:
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asker.greedy(sample.sample, way, task.answer_tokens)))
        part.rename(path)
    while not path.exists():
        if time.time() > job.deadline:
            return None
        time.sleep(0.01)
    dense = json.loads(path.read_text())
    return asker.agreement(sample.sample, way, dense) if dense else None


def work(job: Job, samples: list[StoredSample], places) -> None:  # type: ignore[no-untyped-def]
    """The body of a process. `places`: which sample each process has come to."""
    try:
        _work(job, samples, places)
    finally:
        places[job.number] = _DONE


def _work(job: Job, samples: list[StoredSample], places) -> None:  # type: ignore[no-untyped-def]
    started = time.time()
    sys.setswitchinterval(0.0005)
    on_card = job.device != "cpu"
    with _only("", False) if on_card else ExitStack():
        first = load_model(replace(config_for(job.dense, job), kv_capacity_tokens=4096), lambda step, share: None)
    torch.set_num_threads(1)
    gc.freeze()
    loaded, rows = time.time(), []
    for thread in range(job.threads):
        stream = torch.cuda.Stream() if on_card else None
        if stream is not None:
            torch.cuda.graph.default_capture_stream = stream
        check = samples[0] if thread == 0 else None
        rows.append((stream, [make_row(way, job, first, check, stream) for way in job.ways]))
    gc.freeze()
    ready, queue, lock = time.time(), Queue(job, samples, places), threading.Lock()
    with job.records.open("w") as file:

        def run(stream: torch.cuda.Stream | None, mine: list[Row]) -> None:
            with torch.cuda.stream(stream) if stream is not None else ExitStack():
                while (found := queue.next()) is not None:
                    row, sample = mine[found[0]], found[1]
                    before = time.perf_counter()
                    measured = measure_one(row, sample, job)
                    row.timed(sample.task, before)
                    row.samples += 1
                    if measured is None:
                        continue
                    record = Record(row.way, job.end, sample.task, sample.index, sample.sample.depth, measured)
                    with lock:
                        file.write(json.dumps(asdict(record)) + "\n")

        with ThreadPoolExecutor(job.threads) as pool:
            for future in [pool.submit(run, *each) for each in rows]:
                future.result()
    _tell(job, [row for _, mine in rows for row in mine], loaded - started, ready - loaded, time.time() - ready)


def _tell(job: Job, rows: list[Row], loading: float, preparing: float, running: float) -> None:
    """Where time went: of threads, so that it adds up to their number times that of the process."""
    lines = [f"process {job.number}: loaded {loading:.0f} s, prepared {preparing:.0f} s, measured {running:.0f} s"]
    for way in job.ways:
        mine = [row for row in rows if row.way == way]
        steps: dict[str, float] = {}
        for row in mine:
            for step, seconds in (*row.seconds.items(), *row.asker.seconds.items()):
                steps[step] = steps.get(step, 0.0) + seconds
        samples, skipped = sum(row.samples for row in mine), sum(row.asker.skipped for row in mine)
        recorded = sum(row.reader.recorded for row in mine)
        lines.append(
            f"  {way}: {samples} samples, {samples / max(running, 1e-9):.1f} a second, {skipped} answers known, "
            f"{recorded} of {len(mine)} recorded; thread seconds: "
            + ", ".join(f"{step} {seconds:.1f}" for step, seconds in steps.items())
        )
    print("\n".join(lines), flush=True)
