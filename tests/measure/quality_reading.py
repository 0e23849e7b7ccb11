"""Reading the same number of tokens again and again: on a card the document's whole prefill is recorded once, as one
CUDA graph, and played for every sample. The launches are those of `engine.prefill`, made by the engine's own code.

Documents end at the same token and pages lie at the same places each time, so nothing but token ids changes.
"""

from __future__ import annotations

import copy
import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from app.evaluate.measure import _ROW, Answer, Asker, Measured, PagesRead, Way
from app.evaluate.sample import Question, Sample
from app.evaluate.scoring import score_answer
from engine import Engine
from engine.attention import AttentionPlan, block_edges
from engine.attention import PagesRead as Counted
from engine.cache import PAGE, PREFILL, KvCache, Sequence
from engine.events import Score
from engine.pages import PagePool
from engine.prefill import chunk_ends, prefill_chunk
from engine.split_attention import attend_prefill

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Launches -> what plays them again, with whatever their tensors then hold."""


def on_stream(stream: torch.cuda.Stream) -> Capture:
    """As a CUDA graph, to be played on `stream` alone."""

    def capture(launch: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings(), torch.cuda.graph(graph, stream=stream):
            warnings.simplefilter("ignore")  # KvMemory makes tensors of lists, and here gets tensors
            launch()
        return graph.replay

    return capture


def _nothing() -> None:
    pass


@dataclass(slots=True)
class _State:
    """What the cache knew when the document had been read."""

    exact: PagePool
    packed: PagePool
    table: list[int]
    done: int


class DocumentReader:
    """Reads the first `end` tokens of prompts under the policy `reading` of `engine`, into an empty cache.

    `counts`: pages of the last document, a list to be added up. `recorded`: whether it is played from a graph.
    """

    def __init__(self, engine: Engine, reading: str, end: int) -> None:
        self._engine, self._policy, self.end = engine, engine.policy(reading), end
        self._stops = chunk_ends(0, end, engine.prefill_chunk)
        self._play: Callable[[], None] | None = None
        self._state: _State | None = None
        self._launches: Callable[[], None] | None = None
        self.counts: list[Counted] = []

    @property
    def recorded(self) -> bool:
        return self._play is not None

    @torch.inference_mode()
    def read(self, ids: list[int]) -> Sequence:
        """-> a sequence of `end` tokens; the cache holds nothing else, whatever it held."""
        if self._play is None or self._state is None:
            return self._compute(ids)
        cache, state = self._engine.cache, self._state
        cache.exact, cache.packed = copy.deepcopy(state.exact), copy.deepcopy(state.packed)
        self._host.copy_(torch.tensor(ids[: self.end]))
        self._ids.copy_(self._host, non_blocking=True)
        self._play()
        return self._sequence(ids)

    @torch.inference_mode()
    def record(self, capture: Capture) -> None:
        """Record the reading; kernels must have been compiled, and the cache be empty, as it is again if this fails."""
        cache = self._engine.cache
        exact, packed = copy.deepcopy(cache.exact), copy.deepcopy(cache.packed)
        try:
            self._record(capture)
        except BaseException:
            cache.exact, cache.packed = exact, packed
            self.forget_recording()
            raise

    def _record(self, capture: Capture) -> None:
        engine, cache, sequence = self._engine, self._engine.cache, Sequence()
        decoder, on_card = engine.decoder, cache.device.type == "cuda"
        dtype = decoder.embed.dtype if on_card else torch.float32
        self._ids = torch.zeros(self.end, dtype=torch.int64, device=cache.device)
        self._host = torch.zeros(self.end, dtype=torch.int64, pin_memory=on_card)
        chunks, counts = [], []
        for stop in self._stops:
            first, plan = sequence.length, self._plan()
            cache.prepare(sequence, stop, self.end)
            attention = attend_prefill(cache, sequence, stop - first, dtype, _nothing, plan)
            getattr(attention, "_slot", None)  # made now: while it is recorded nothing may be copied from the host
            with _put_off(cache) as calls:
                cache.commit(sequence, [0] * (stop - first), PREFILL)
            chunks.append((first, stop, attention, calls))
            counts.append(plan.counts.reading)
        cache.trim(sequence)

        def launch() -> None:
            for first, stop, attention, calls in chunks:
                decoder.hidden(self._ids[first:stop], first, decoder.layers, attention, _nothing, True)
                for method, arguments in calls:
                    method(*arguments)

        self._play, self.counts = capture(launch), counts
        self._launches = launch  # keeps what the recording points to
        self._state = _State(cache.exact, cache.packed, sequence.table, sequence.packed)
        cache.exact, cache.packed = copy.deepcopy(cache.exact), copy.deepcopy(cache.packed)
        cache.free(self._sequence([0] * self.end))

    def forget_recording(self) -> None:
        self._play = self._state = self._launches = None

    def share(self, tail_share: float, prompt: int) -> float:
        """Of the pages that the prompt's query blocks could have read; `tail_share`: of those behind the document."""
        engine = self._engine
        layers = engine.model.layers - 1  # of the last one keys and values are all that is wanted
        edges = block_edges(self.end, max(prompt - 1, self.end + 1), 128)
        tail = layers * engine.model.kv_heads * sum(-(-end // PAGE) for _, end in edges)
        held, read = sum(count.held for count in self.counts), sum(count.read for count in self.counts)
        return (read + tail_share * tail) / (held + tail)

    def _compute(self, ids: list[int]) -> Sequence:
        engine, cache, sequence = self._engine, self._engine.cache, Sequence()
        self.counts = []
        for stop in self._stops:
            plan = self._plan()
            cache.prepare(sequence, stop, self.end)
            prefill_chunk(engine.decoder, cache, sequence, ids[sequence.length : stop], _nothing, plan)
            self.counts.append(plan.counts.reading)
        cache.trim(sequence)
        return self._named(sequence)

    def _sequence(self, ids: list[int]) -> Sequence:
        """`ids` at the places of the recording."""
        if self._state is None:
            raise RuntimeError("there is no recording")
        made_by = bytearray([PREFILL]) * self.end
        state = self._state
        return self._named(Sequence(array("i", ids[: self.end]), made_by, list(state.table), state.done))

    def _named(self, sequence: Sequence) -> Sequence:
        sequence.reading, sequence.dense_until = self._policy.key, self._policy.dense_until
        return sequence

    def _plan(self) -> AttentionPlan:
        return AttentionPlan(self._policy, self._policy, self.end)


@contextmanager
def _put_off(cache: KvCache) -> Iterator[list]:
    """What `commit` would have the memory do, as (method, arguments on the device), and not done."""
    calls, memory = [], cache.memory

    def later(name: str):  # type: ignore[no-untyped-def]
        method = getattr(memory, name)
        return lambda *lists: calls.append((method, [torch.tensor(x, device=cache.device) for x in lists]))

    names = ("summarize", "pack")
    for name in names:
        setattr(memory, name, later(name))
    try:
        yield calls
    finally:
        for name in names:
            delattr(memory, name)


class FastAsker(Asker):
    """Asks as `Asker` does, with documents read by `reader`, and no answer generated where it is known: if each token
    of the right answer is the likeliest one, greedy decoding would have written it."""

    def __init__(self, engine: Engine, prompts, reader: DocumentReader) -> None:  # type: ignore[no-untyped-def]
        super().__init__(engine, prompts)
        self._reader, self._fresh, self.skipped = reader, False, 0
        self.seconds: dict[str, float] = {"reading": 0.0, "scoring": 0.0, "answering": 0.0}

    def questions(self, sample: Sample, way: Way, answer_tokens: int) -> Measured:
        question, *more = sample.questions
        if more:
            return super().questions(sample, way, answer_tokens)
        ids, end = self._prompts.first(sample.document, question)
        gold = self._prompts.answer(question)
        try:
            self._begin(ids, way, end)
            score = self._score(ids, gold, way)
            text, right = self.engine.tokenizer.decode(gold), score.greedy_matches == score.tokens
            if right and _decided(question, text):
                self.skipped += 1
            else:
                text = self._answer(ids, way, answer_tokens, end).text
        finally:
            self.engine.unload(_ROW)
        points = score_answer(question, text)
        prompt = self._reader.share(score.prompt_pages_read_share, len(ids))
        pages = PagesRead(score.kv_pages_read_share, score.selected_pages_read_share, prompt)
        return Measured(points, (points,), score.nll_sum / score.tokens, pages, (text,))

    def _begin(self, ids: list[int], way: Way, document_end: int) -> None:
        with self._timed("reading"):
            self.engine.unload(_ROW)
            self.engine.conversations.use(_ROW).live = self._reader.read(ids)
        self._fresh = True

    def _score(self, ids: list[int], continuation: SequenceOf[int], way: Way) -> Score:
        with self._timed("scoring"):  # waits for the card, and so for the reading
            return super()._score(ids, continuation, way)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self.seconds[step] += time.perf_counter() - before

    def _answer(self, ids: list[int], way: Way, tokens: int, document_end: int) -> Answer:
        with self._timed("answering"):
            answer = super()._answer(ids, way, tokens, document_end)
        if self._fresh:
            self._fresh, pages = False, answer.pages
            prompt = self._reader.share(pages.prompt, len(ids))
            answer = Answer(answer.ids, answer.text, PagesRead(pages.answering, pages.selected, prompt))
        return answer


def _decided(question: Question, text: str) -> bool:
    """Whether `text` has full score, whatever follows it."""
    return question.scoring != "line" and score_answer(question, f"{text}x") == 100.0
