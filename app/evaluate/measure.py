"""Asks one engine: what it answers, how likely it finds the right answer, and how many KV pages it read for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from app.evaluate.prompts import Prompts
from app.evaluate.sample import Sample
from app.evaluate.scoring import score_answer

if TYPE_CHECKING:
    from engine import Engine
    from engine.events import Score

DENSE_MODE = "exact"
_DENSE, _ROW = "evaluated densely", "evaluated row"  # names of conversations


@dataclass(frozen=True, slots=True)
class Way:
    """How documents are read and answered: one row of the table.

    `mode` answers, `reading` reads the prompt; `budget`: tokens attended, `scorer`: how KV pages are chosen, None as
    the engine has them. `gates`: whether heads stream by the model's gates, if it has any.
    """

    mode: str
    format: str
    reading: str = DENSE_MODE
    budget: int | None = None
    scorer: str | None = None
    gates: bool = True

    @property
    def policy(self) -> str:
        """Mode, budget and scorer as a table shows them."""
        name = self.mode if self.mode == self.reading else f"{self.mode} (decode only)"
        if self.mode == DENSE_MODE != self.reading:
            name = f"{self.reading} (prefill only)"
        parts = (name, self.budget, self.scorer, "" if self.gates else "without gates")
        return " ".join(str(part) for part in parts if part)

    @property
    def sparse(self) -> bool:
        return self.mode != DENSE_MODE or self.reading != DENSE_MODE

    def __str__(self) -> str:
        return f"{self.policy} {self.format}"


@dataclass(frozen=True, slots=True)
class PagesRead:
    """Shares of the KV pages that could have been read. `answering`: in all layers; `selected`: without the first two,
    which read densely; `prompt`: by the query blocks of the prompt."""

    answering: float
    selected: float
    prompt: float


@dataclass(frozen=True, slots=True)
class Measured:
    """`score`: 0 to 100, of the last question; `turn_scores`: of each. `nll`: of the right answer, nats per token, the
    last question's. `pages`: the mean over questions, the prompt's share that of the first one."""

    score: float
    turn_scores: tuple[float, ...]
    nll: float
    pages: PagesRead
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    ids: list[int]
    text: str
    pages: PagesRead


class Asker:
    """One engine, asked in one way at a time.

    Each way begins without any KV, so that it is measured alike whatever was measured before it; but ways that read
    densely share the dense prefill of a sample's first prompt, which is what each would compute. Later turns of a way
    go on from its own history: what it read as it reads, and the right answers decoded as it decodes.
    """

    def __init__(self, engine: Engine, prompts: Prompts) -> None:
        self.engine = engine
        self._prompts = prompts
        self._read_densely: list[int] | None = None

    def refusal(self, way: Way) -> str | None:
        """Why the engine does not offer this way, None if it does. Computes nothing."""
        from engine import EngineError

        try:
            self._events([0], 1, way, _ROW, 0).close()
        except (ValueError, EngineError) as error:
            return str(error)
        finally:
            self.engine.unload(_ROW)
        return None

    def forget(self) -> None:
        """Frees the KV of a sample."""
        self.engine.unload(_DENSE)
        self._read_densely = None

    def questions(self, sample: Sample, way: Way, answer_tokens: int) -> Measured:
        """Answers the sample's questions in turn. The right answers are what later questions see as answered."""
        prompts, scores, nll = self._prompts, [], 0.0
        answers: list[Answer] = []
        ids, document_end = prompts.first(sample.document, sample.questions[0])
        try:
            self._begin(ids, way, document_end)
            for number, question in enumerate(sample.questions):
                if number:
                    ids = prompts.later(ids, prompts.answer(sample.questions[number - 1]), question)
                answers.append(self._answer(ids, way, answer_tokens, document_end))
                scores.append(score_answer(question, answers[-1].text))
                score = self._score(ids, prompts.answer(question), way)
                nll = score.nll_sum / score.tokens
        finally:
            self.engine.unload(_ROW)
        pages = PagesRead(
            fmean(answer.pages.answering for answer in answers),
            fmean(answer.pages.selected for answer in answers),
            answers[0].pages.prompt,
        )
        return Measured(scores[-1], tuple(scores), nll, pages, tuple(answer.text for answer in answers))

    def perplexity(self, sample: Sample, way: Way) -> Measured:
        """Score: the share of the held text's tokens that greedy decoding would have chosen."""
        return self._foreseen(sample, self._prompts.answer(sample.questions[0]), way)

    def agreement(self, sample: Sample, way: Way, dense: Sequence[int]) -> Measured:
        """Score: the share of the tokens that dense attention chose, `dense`, that this way would have chosen too.

        Each one is foreseen after dense's own tokens: one early difference does not make all later ones differ.
        """
        return self._foreseen(sample, dense, way)

    def greedy(self, sample: Sample, way: Way, tokens: int) -> list[int]:
        """What this way answers, without the token that ends an answer, if it comes."""
        ids, document_end = self._prompts.first(sample.document, sample.questions[0])
        try:
            self._begin(ids, way, document_end)
            found = self._answer(ids, way, tokens, document_end).ids
        finally:
            self.engine.unload(_ROW)
        ends = self.engine.tokenizer.eos_ids
        return [id for id in found if id not in ends]

    def _foreseen(self, sample: Sample, held: Sequence[int], way: Way) -> Measured:
        ids, document_end = self._prompts.first(sample.document, sample.questions[0])
        try:
            self._begin(ids, way, document_end)
            first = self._answer(ids, way, 1, document_end)
            score = self._score(ids, held, way)
        finally:
            self.engine.unload(_ROW)
        share = 100.0 * score.greedy_matches / score.tokens
        pages = PagesRead(score.kv_pages_read_share, score.selected_pages_read_share, first.pages.prompt)
        return Measured(share, (share,), score.nll_sum / score.tokens, pages, ())

    def _begin(self, ids: list[int], way: Way, document_end: int) -> None:
        """Nothing is in memory but, if the way reads densely, the dense read of its first prompt.

        A way that reads sparsely would take that for what it reads densely itself, the first tokens of the prompt, and
        then count the pages of the rest alone.
        """
        if way.reading == DENSE_MODE and ids == self._read_densely:
            return
        self.forget()
        if way.reading == DENSE_MODE:
            self._run(self._events(ids, 1, Way(DENSE_MODE, way.format), _DENSE, document_end))
            self._read_densely = ids

    def _answer(self, ids: list[int], way: Way, tokens: int, document_end: int) -> Answer:
        return self._run(self._events(ids, tokens, way, _ROW, document_end))

    def _score(self, ids: list[int], continuation: Sequence[int], way: Way) -> Score:
        return self.engine.score(ids, continuation, conversation=_ROW, mode=way.mode, reading=way.reading)

    def _events(self, ids: Sequence[int], tokens: int, way: Way, conversation: str, document_end: int) -> Any:
        from engine import Sampling

        return self.engine.generate(
            ids,
            Sampling(max_tokens=tokens),
            conversation=conversation,
            checkpoints=(document_end,) if document_end else (),
            mode=way.mode,
            reading=way.reading,
        )

    @staticmethod
    def _run(events: Any) -> Answer:
        from engine import Done, Token

        ids, text, pages = [], "", PagesRead(1.0, 1.0, 1.0)
        try:
            for event in events:
                if isinstance(event, Token):
                    ids.append(event.id)
                    text += event.text
                elif isinstance(event, Done):
                    stats = event.stats
                    pages = PagesRead(
                        stats.kv_pages_read_share, stats.selected_pages_read_share, stats.prompt_pages_read_share
                    )
        finally:
            events.close()
        return Answer(ids, text, pages)
