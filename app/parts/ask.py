"""How one window is asked: whole pages for a model that is trusted with them, the best sentences for a small one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.citations import Citation, PageSource, attribute, verify
from app.ledger import TurnRecord
from app.parts.state import PartState
from app.passages import condense
from app.plan import SMALL_PASSAGES
from app.prompts import QUESTION_LEAD, DocumentText, PromptWriter, UserTurn, document_foot, document_head, page_text
from app.snapshots import PARTS, KnownKeys
from app.tasks import WINDOW, Task, says_nothing
from app.thinking import split_thinking
from app.turn import Passage
from app.words import sentences

if TYPE_CHECKING:
    from app.document_tokens import DocumentTokens
    from app.jobs import Job
    from app.parts.windows import Window
    from app.wiring import App
    from engine import Engine, GenerationStats, Sampling

Share = Callable[[float], None]
"""Told how much of one window is done, 0 to 1."""

PART_ANSWER = 400  # tokens that a window's answer may take
SMALL_ANSWER = 32
SMALL_PART_TOKENS = 160  # of a window's best sentences: with more a 135M model loses the thread
MOST_QUOTES = 6
OFFER_PAUSE_S = 0.01


def parts_name(conversation_id: str) -> str:
    """Under which name the engine keeps the KV of the window that is being read."""
    return conversation_id + PARTS


@dataclass(frozen=True, slots=True)
class Prompts:
    """Runs single prompts beside the conversation's own one, all in the engine's thread.

    read_by: the mode that prompts are read in.
    """

    app: App
    engine: Engine
    conversation_id: str
    read_by: str
    sampling: Sampling

    def run(
        self, job: Job, record: TurnRecord, most_tokens: int, share: Share, stop: tuple[str, ...] = ()
    ) -> tuple[str, GenerationStats] | None:
        """The answer's text without thinking, and what it cost; None when it was stopped. Keeps a snapshot of the
        documents in the prompt."""
        from engine import Done, Prefilled, Token

        name = parts_name(self.conversation_id)
        text, stats = "", None
        events = self.engine.generate(
            record.ids,
            replace(self.sampling, max_tokens=most_tokens, stop=(*self.sampling.stop, *stop)),
            conversation=name,
            cancel=job.cancelled,
            checkpoints=(record.checkpoint,) if record.checkpoint else (),
            snapshots=self.app.snapshots,
            mode=self.app.settings.mode,
            reading=self.read_by,
        )
        written = 0
        try:
            for event in events:
                if isinstance(event, Token):
                    text += event.text
                    written += 1
                    share(0.7 + 0.3 * written / most_tokens)
                elif isinstance(event, Prefilled):
                    share(0.7 * event.done / event.total)
                elif isinstance(event, Done):
                    stats = event.stats
        finally:
            events.close()  # pyright: ignore[reportAttributeAccessIssue]  # a generator
        if record.checkpoint:
            self._keep(job, name, record.checkpoint)
        if stats is None or stats.finish_reason == "cancelled":
            return None
        return split_thinking(text, already_open=record.open_thinking, complete=True)[1].strip(), stats

    def _keep(self, job: Job, name: str, checkpoint: int) -> None:
        """Hands the window's KV to the snapshot writer at once: the next window takes its place in memory."""
        writer, engine = self.app.snapshot_writer, self.engine
        known = KnownKeys(writer, self.conversation_id)
        for row in engine.export(name, min(checkpoint, engine.live_tokens(name)), known):
            while not writer.offer(self.conversation_id, engine.fingerprint, row):
                if job.cancelled.is_set():
                    return
                time.sleep(OFFER_PAUSE_S)
            if job.cancelled.is_set():
                return
        writer.claim(self.conversation_id, known.stored)


def window_writer(writer: PromptWriter, tokens: DocumentTokens) -> PromptWriter:
    """The conversation's writer, for windows: their pages may be pieces of stored ones."""
    encode = writer.tokenizer.encode

    def document_ids(text: DocumentText) -> Sequence[int]:
        if all(getattr(page, "whole", True) for page in text.pages):
            return tokens.ids(text)
        pages = [id for page in text.pages for id in encode(page_text(page))]
        return [*encode(document_head(text)), *pages, *encode(document_foot(text))]

    return PromptWriter(writer.tokenizer, writer.skeleton, writer.system, document_ids, writer.small)


@dataclass(frozen=True, slots=True)
class WholeWindows:
    """Each window is read in full; its prefix, up to the end of its pages, is the same for every question."""

    prompts: Prompts
    writer: PromptWriter
    model: str
    task: Task
    question: str

    def record(self, window: Window) -> TurnRecord:
        turn = UserTurn(f"{self.question}\n\n{WINDOW[self.task]}", (window.document,))
        return TurnRecord(self.model, True, self.writer.start(turn), self.writer.open_thinking)

    def ask(
        self, job: Job, window: Window, part: PartState, share: Share
    ) -> tuple[PartState, GenerationStats | None] | None:
        """The part as it was answered; None when it was stopped."""
        done = self.prompts.run(job, self.record(window), PART_ANSWER, share)
        if done is None:
            return None
        text, stats = done
        if says_nothing(text):
            return replace(part, state="done"), stats
        cited = attribute(text, sources(window), self.question)
        quotes = _once([_quote(c) for c in cited if c.status != "not_found"], len(cited))
        dropped = sum(c.status == "not_found" for c in cited)
        kept = "" if self.task == "question" else text
        return replace(part, state="done", quotes=quotes, text=kept, dropped=dropped), stats


@dataclass(frozen=True, slots=True)
class BestSentences:
    """For small models: they are asked over the sentences of a window that share most with the question.

    hits: the best passages of the windows, by window number; a window without any has no word of the question and is
    not asked about. weights: of the question's words (`rarity`). Measured on 40 questions about eight PDFs: the
    sentences given hold the answer for 38, those of the eight windows with the best ones for 37.
    """

    prompts: Prompts
    writer: PromptWriter
    model: str
    question: str
    weights: Mapping[str, float]
    hits: Mapping[int, Sequence[Passage]]

    def ask(
        self, job: Job, window: Window, part: PartState, share: Share
    ) -> tuple[PartState, GenerationStats | None] | None:
        given = self.given(window.number)
        if not given:
            return replace(part, state="done"), None
        turn = UserTurn(self.question, passages=given)
        record = TurnRecord(self.model, True, self.writer.start(turn), self.writer.open_thinking)
        done = self.prompts.run(job, record, SMALL_ANSWER, share, (f"\n\n{QUESTION_LEAD}",))
        if done is None:
            return None
        text, stats = done
        own = sources(window)
        cited = attribute(text, own, self.question, [passage.text for passage in given])
        quotes = [_quote(citation) for citation in cited if citation.status != "not_found"]
        quotes += [found for passage in given for found in _sentences_of(passage, own)]
        return replace(part, state="done", quotes=_once(quotes, MOST_QUOTES)), stats

    def given(self, number: int) -> tuple[Passage, ...]:
        """What the model reads of a window: its best sentences, as shortened passages with their scores."""
        hits = self.hits.get(number, ())
        encode = self.writer.tokenizer.encode
        return condense(hits, self.weights, SMALL_PART_TOKENS, lambda text: len(encode(text))) if hits else ()

    def best(self) -> tuple[Passage, ...]:
        """The same of all windows, the best first."""
        every = [passage for number in self.hits for passage in self.given(number)]
        return tuple(sorted(every, key=lambda passage: -passage.score))


def hits_by_window(
    passages: Sequence[Passage], windows: Sequence[Window], most: int = SMALL_PASSAGES
) -> dict[int, list[Passage]]:
    """The first passages of each window, by its number."""
    by_page = {(window.document.id, page): window.number for window in windows for page in window.pages}
    found: dict[int, list[Passage]] = {}
    for passage in passages:
        number = by_page.get((passage.document_id, passage.page))
        if number is not None and len(found.setdefault(number, [])) < most:
            found[number].append(passage)
    return found


def _sentences_of(passage: Passage, pages: Sequence[PageSource]) -> Iterator[Citation]:
    """The sentences of a shortened passage as the page has them."""
    for start, end in sentences(passage.text):
        found = verify(passage.text[start:end], passage.page, pages)
        if found.status != "not_found":
            yield replace(found, status="attributed")


def _quote(citation: Citation) -> Citation:
    """A citation without what ties it to the text that a window's answer had."""
    return replace(citation, places=(), named=False, said="")


def _once(quotes: Sequence[Citation], most: int) -> tuple[Citation, ...]:
    """The first quotes, none of them inside an earlier one."""
    kept: list[Citation] = []
    for quote in quotes:
        if len(kept) < most and not any(quote.quote in other.quote for other in kept):
            kept.append(quote)
    return tuple(kept)


def sources(window: Window) -> list[PageSource]:
    document = window.document
    return [PageSource(document.id, document.name, page.index, page.label, page.text) for page in document.pages]
