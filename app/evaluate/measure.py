"""Asks one engine: what it answers, how likely it finds the right answer, and how many KV pages it read for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from app.evaluate.prompts import Prompts
from app.evaluate.sample import Kind, Sample
from app.evaluate.scoring import score_answer

if TYPE_CHECKING:
    from engine import Engine

DENSE_MODE = "exact"


class Score(Protocol):
    """What Engine.score gives: sums over the continuation's tokens, each foreseen from all before it."""

    @property
    def nll_sum(self) -> float: ...
    @property
    def tokens(self) -> int: ...
    @property
    def greedy_matches(self) -> int: ...
    @property
    def kv_pages_read_share(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Way:
    """How documents are read and answered: one row of the table. `budget`: attended tokens, None as the mode has it."""

    mode: str
    format: str
    budget: int | None = None

    @property
    def policy(self) -> str:
        """The mode as a table shows it."""
        return f"{self.mode} {self.budget}" if self.budget else self.mode

    def __str__(self) -> str:
        return f"{self.policy} {self.format}"


@dataclass(frozen=True, slots=True)
class Measured:
    """`score`: 0 to 100, of the last question; `turn_scores`: of each. `nll`: of the right answer, nats per token, the
    last question's. `pages_read_share`: of the KV pages that answering could have read, the mean over questions."""

    score: float
    turn_scores: tuple[float, ...]
    nll: float | None
    pages_read_share: float
    answers: tuple[str, ...]


class Asker:
    """One engine, asked in one way at a time. Nothing of one measurement's KV is left for the next one, except that
    with `decode_only` all modes answer over a document and questions that were read once, densely."""

    def __init__(self, engine: Engine, prompts: Prompts, decode_only: bool) -> None:
        self.engine = engine
        self._prompts = prompts
        self._decode_only = decode_only
        self._read_densely: list[list[int]] = []

    @property
    def can_score(self) -> bool:
        return hasattr(self.engine, "score")

    def refusal(self, way: Way) -> str | None:
        """Why the engine does not offer this mode, None if it does. Computes nothing."""
        try:
            self._events([0], 1, way, "probe", 0).close()
        except ValueError as error:
            return str(error)
        finally:
            self.engine.unload("probe")
        return None

    def forget(self) -> None:
        """Frees the KV of a sample that all its ways have been asked about."""
        self.engine.unload("dense")
        self._read_densely = []

    def questions(self, sample: Sample, way: Way, answer_tokens: int) -> Measured:
        """Answers the sample's questions in turn. The right answers are what later questions see as answered."""
        prompts, scores, answers, shares = self._prompts, [], [], []
        ids, document_end = prompts.first(sample.document, sample.questions[0])
        nll = None
        try:
            for number, question in enumerate(sample.questions):
                if number:
                    ids = prompts.later(ids, prompts.answer(sample.questions[number - 1]), question)
                self._read(ids, document_end)
                _, text, share = self._answer(ids, way, answer_tokens, document_end)
                scores.append(score_answer(question, text))
                answers.append(text)
                shares.append(share)
                if self.can_score:
                    nll = self._nll(ids, prompts.answer(question), way)
        finally:
            self.engine.unload("row")
        return Measured(scores[-1], tuple(scores), nll, fmean(shares), tuple(answers))

    def perplexity(self, sample: Sample, way: Way) -> Measured:
        """Score: the share of the held text's tokens that greedy decoding would have chosen."""
        ids, document_end = self._prompts.first(sample.document, sample.questions[0])
        held = self._prompts.answer(sample.questions[0])
        return self._foreseen(ids, document_end, held, way, "")

    def agreement(self, sample: Sample, way: Way, dense: Sequence[int]) -> Measured:
        """Score: the share of the tokens that dense attention chose, `dense`, that this way would have chosen too.

        Each one is foreseen after dense's own tokens: one early difference does not make all later ones differ.
        """
        ids, document_end = self._prompts.first(sample.document, sample.questions[0])
        return self._foreseen(ids, document_end, dense, way, "")

    def greedy(self, sample: Sample, way: Way, tokens: int) -> list[int]:
        """What this way answers, without the token that ends an answer, if it comes."""
        ids, document_end = self._prompts.first(sample.document, sample.questions[0])
        self._read(ids, document_end)
        try:
            found, _, _ = self._answer(ids, way, tokens, document_end)
        finally:
            self.engine.unload("row")
        ends = self.engine.tokenizer.eos_ids
        return [id for id in found if id not in ends]

    def _foreseen(self, ids: list[int], document_end: int, held: Sequence[int], way: Way, text: str) -> Measured:
        self._read(ids, document_end)
        try:
            score = self._score(ids, held, way)
        finally:
            self.engine.unload("row")
        share = 100.0 * score.greedy_matches / score.tokens
        return Measured(share, (share,), score.nll_sum / score.tokens, score.kv_pages_read_share, (text,))

    def _read(self, ids: list[int], document_end: int) -> None:
        """With `decode_only`: the dense prefill that every way's first step starts from."""
        if self._decode_only and ids not in self._read_densely:
            self._run(self._events(ids, 1, Way(DENSE_MODE, self.engine.kv_format), "dense", document_end))
            self._read_densely.append(ids)

    def _answer(self, ids: list[int], way: Way, tokens: int, document_end: int) -> tuple[list[int], str, float]:
        return self._run(self._events(ids, tokens, way, "row", document_end))

    def _nll(self, ids: list[int], answer: Sequence[int], way: Way) -> float:
        score = self._score(ids, answer, way)
        return score.nll_sum / score.tokens

    def _score(self, ids: list[int], continuation: Sequence[int], way: Way) -> Score:
        engine: Any = self.engine
        return engine.score(ids, continuation, conversation="row", mode=way.mode)

    def _events(self, ids: Sequence[int], tokens: int, way: Way, conversation: str, document_end: int) -> Any:
        from engine import Sampling

        checkpoints = (document_end,) if document_end else ()
        return self.engine.generate(
            ids, Sampling(max_tokens=tokens), conversation=conversation, checkpoints=checkpoints, mode=way.mode
        )

    @staticmethod
    def _run(events: Any) -> tuple[list[int], str, float]:
        """(ids, text, share of KV pages read) of an answer."""
        from engine import Done, Token

        ids, text, share = [], "", 1.0
        try:
            for event in events:
                if isinstance(event, Token):
                    ids.append(event.id)
                    text += event.text
                elif isinstance(event, Done):
                    share = event.stats.kv_pages_read_share
        finally:
            events.close()
        return ids, text, share


def needs_scores(kind: Kind) -> bool:
    return kind != "answer"
