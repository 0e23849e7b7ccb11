"""Reading in parts: every window of the documents is asked in turn, then one last pass answers from what was found.

Also the tasks that are about a whole text (`app.tasks`): they read it at once where it fits, else in parts. What a
window gave is stored at once, so that neither Stop nor the end of the app loses it: the same question, asked again in
this conversation, goes on behind the last window that was read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from app.documents import document_texts
from app.errors import DoesNotFit
from app.extract_summary import central_sentences
from app.parts.ask import PART_ANSWER, BestSentences, Prompts, WholeWindows, hits_by_window, sources, window_writer
from app.parts.cost import no_cost, total_cost
from app.parts.join import Finding, Joiner
from app.parts.kept import question_key, read_before
from app.parts.small import citation_of, held_sentences, inside, within
from app.parts.state import PartsState, PartState
from app.parts.text import finding_head, merge_items, nothing_found, quoted, so_far
from app.parts.windows import Window, make_windows
from app.passages import best_passages, rarity
from app.plan import SMALL_PASSAGES
from app.progress import ReadingClock
from app.prompts import QUESTION_LEAD, bare_passages_text, is_small
from app.tasks import SMALL_JOIN, WHOLE, Task
from app.turn import Passage, TurnStats
from app.turn_work import TurnWork
from app.words import term_set

if TYPE_CHECKING:
    from app.citations import Citation
    from app.jobs import Job
    from app.model_face import ModelFace
    from app.pages import PageChoice
    from app.plan import Plan
    from app.prompts import DocumentText, PromptWriter
    from app.wiring import App
    from engine import Engine, GenerationStats, Sampling
    from storage import Message

MOST_WINDOW_TOKENS = 12_288
"""Prompt and answer of one window: up to here attention is dense by default, and a model finds things dependably."""
SMALL_WINDOW_TOKENS = 2048
LEAST_WINDOW_TOKENS = 256
HEAD_ROOM = 160  # tokens of system text, role headers, the document's head and foot
KEY_SENTENCES = 8
SMALL_TASK_TOKENS = 250  # as `plan.SMALL_PASSAGE_TOKENS`: with more a 135M model loses the thread
LIST_SHARE = 0.6  # of the weight of the question's words, from which a sentence counts as an item of a list
SMALL_NOTE = (
    "The demo model was given only some of the key sentences above, which the app copied from the text; trust those "
    "more than what it wrote."
)
MERGED_NOTE = "The items come from the model, part by part; the app joined them to one list."


class PartsWork(TurnWork):
    """As TurnWork, for reading 'parts' and for tasks."""

    def __init__(
        self,
        app: App,
        question: Message,
        reading: str,
        pages: PageChoice | None,
        sampling: Sampling | None,
        thinking: bool,
        replaces: Message | None,
        task: Task,
    ) -> None:
        self.task: Task = task
        self.parts = PartsState(())
        self.spent: list[GenerationStats] = []
        self.began, self.before_s = time.monotonic(), 0.0
        self.only_whole = task != "question" and reading == "whole"
        if task != "question" and reading != "whole":
            small = is_small(app.model.parameters)
            reading = "parts" if reading == "parts" or small else "whole"
        super().__init__(app, question, reading, pages, sampling, thinking, replaces)
        self.first_state = replace(self.first_state, task=task)
        if task != "question":
            app.library.update_message(self.answer.id, task=task)

    def first_passages(self) -> tuple[tuple[Passage, ...], tuple[str, ...]]:
        return ((), ()) if self.task != "question" else super().first_passages()

    def prompt_question(self) -> str:
        return f"{self.question.text}\n\n{WHOLE[self.task]}" if self.task in WHOLE else self.question.text

    def unanswered(self) -> tuple[str, tuple[Citation, ...]]:
        return (so_far(self.parts), self._quotes()) if self.parts.parts else ("", ())

    def cost(self, stats: GenerationStats) -> TurnStats:
        last = super().cost(stats)
        return total_cost(last, self.spent, self.before_s) if self.parts.parts else last

    def run(self, job: Job) -> None:
        self.began = time.monotonic()
        job.update(phase="loading", position=0)
        face = self.app.face()
        writer = self._writer(face)
        engine = self.app.engine_service.loaded(lambda text, share: self._show_loading(job, text, share))
        documents = self._readable()
        if self.task in ("summarize", "compare"):
            self._show_passages(job, self._key_sentences(job, documents))
        if self.reading == "whole":
            plan = self._whole_plan(face, writer, engine)
            if plan is not None:
                self._answer_whole(job, face, writer, engine, plan)
                return
            self.reading = "parts"
            self.app.library.update_message(self.answer.id, reading="parts")
        self._read_in_parts(job, face, writer, engine, documents)

    def _readable(self) -> list[DocumentText]:
        """The chosen pages that have text."""
        chosen = document_texts(self.app, self.conversation_id, self.pages)
        readable = [replace(d, pages=tuple(page for page in d.pages if page.text.strip())) for d in chosen]
        without_text = sum(len(d.pages) for d in chosen) - sum(len(d.pages) for d in readable)
        self.parts = PartsState((), without_text)
        return [document for document in readable if document.pages]

    def _whole_plan(self, face: ModelFace, writer: PromptWriter, engine: Engine) -> Plan | None:
        """None where the whole text does not fit and may be read in parts instead."""
        try:
            return self._plan(face, writer, engine.largest_prompt)
        except DoesNotFit:
            if self.only_whole:
                raise
            return None

    def _answer_whole(self, job: Job, face: ModelFace, writer: PromptWriter, engine: Engine, plan: Plan) -> None:
        if not job.enter_engine():
            return
        warnings = (*job.state.warnings, *plan.warnings, *self._settle_modes(engine, len(plan.ids)))
        job.update(phase="reading", read_done=0, read_total=len(plan.ids), warnings=warnings)
        self._generate(job, face, writer, plan)

    # Key sentences

    def _key_sentences(self, job: Job, documents: Sequence[DocumentText]) -> tuple[Passage, ...]:
        pages = [source for document in documents for source in sources(Window(0, document))]
        return central_sentences(pages, KEY_SENTENCES, stopped=job.cancelled.is_set)

    def _show_passages(self, job: Job, passages: tuple[Passage, ...]) -> None:
        self.passages = passages
        self.app.library.update_message(self.answer.id, passages=[asdict(passage) for passage in passages])
        job.update(passages=passages)

    # Windows

    def _read_in_parts(
        self, job: Job, face: ModelFace, writer: PromptWriter, engine: Engine, documents: Sequence[DocumentText]
    ) -> None:
        small = is_small(self.app.model.parameters)
        weights = rarity(self.question.text, (page.text for document in documents for page in document.pages))
        budget = SMALL_WINDOW_TOKENS if small else self._window_budget(writer, engine)
        windows = self._windows(writer, documents, budget)
        self._begin_parts(face, windows)
        if not job.enter_engine():
            return
        warnings = (*job.state.warnings, *self._settle_modes(engine, budget))
        job.update(phase="reading", reading="parts", warnings=warnings, parts=self.parts)
        prompts = Prompts(self.app, engine, self.conversation_id, self.read_by, self._sampling())
        if small and self.task != "question":
            self._take_sentences(job, windows, weights)
            asker = None
        elif small:
            hits = best_passages(self.app.library, self.question.text, self.document_ids, SMALL_PASSAGES * len(windows))
            found = hits_by_window(hits, windows)
            asker = BestSentences(prompts, writer, face.fingerprint, self.question.text, weights, found)
        else:
            own_writer = window_writer(writer, self.app.document_tokens())
            asker = WholeWindows(prompts, own_writer, face.fingerprint, self.task, self.question.text)
        if asker is not None and not self._ask_all(job, windows, asker):
            self._finish_without_model(job, "stopped", *self.unanswered())
            return
        self._last_pass(job, face, writer, prompts, asker)

    def _window_budget(self, writer: PromptWriter, engine: Engine) -> int:
        """Tokens of pages in a window. DoesNotFit where the context has no room for any."""
        asked = len(writer.tokenizer.encode(self.question.text)) + 2 * HEAD_ROOM
        asked += len(writer.tokenizer.encode(writer.system))
        room = min(engine.largest_prompt, MOST_WINDOW_TOKENS) - PART_ANSWER - asked
        if room < LEAST_WINDOW_TOKENS:
            choices = ("a model with a larger context", "a shorter question")
            raise DoesNotFit(
                f"The model's context of {engine.largest_prompt:,} tokens leaves no room to read in parts.",
                f"Possible: {', '.join(choices)}.",
                needed_tokens=engine.largest_prompt - room + LEAST_WINDOW_TOKENS,
                available_tokens=engine.largest_prompt,
                choices=choices,
            )
        return room

    def _windows(self, writer: PromptWriter, documents: Sequence[DocumentText], budget: int) -> list[Window]:
        counts = {document.id: self.app.document_tokens().counts(document.id).pages for document in documents}
        encode = writer.tokenizer.encode
        return make_windows(
            documents, lambda document, page: counts[document.id][page.index - 1], lambda t: len(encode(t)), budget
        )

    def _begin_parts(self, face: ModelFace, windows: Sequence[Window]) -> None:
        """The state before the first window, with those that earlier tries at this question have read."""
        key = question_key(self.question.text, self.task, face.fingerprint)
        before = read_before(self.app.library.messages(self.conversation_id), key)
        parts = []
        for window in windows:
            document = window.document
            part = PartState(window.number, document.id, document.name, window.pages, key=window.key)
            known = before.get(window.key)
            parts.append(part if known is None else replace(known, number=window.number, state="kept"))
        self.parts = replace(self.parts, parts=tuple(parts))
        self.app.library.update_message(
            self.answer.id, parts_key=key, parts=self.parts.rows(), parts_without_text=self.parts.without_text
        )

    def _take_sentences(self, job: Job, windows: Sequence[Window], weights: Mapping[str, float]) -> None:
        """Tasks with a small model: what each window adds are sentences of it, chosen without the model."""
        if self.task == "list":
            held = frozenset().union(*(term_set(window.text) for window in windows))
            weights = {term: weight for term, weight in weights.items() if term in held}  # without "list" and the like
            least = LIST_SHARE * sum(weights.values())
            found = [
                Passage(page.document_id, page.document, page.page, page.label, text, score)
                for window in windows
                for page in sources(window)
                for score, text in held_sentences(page, weights, least)
            ]
            self._show_passages(job, tuple(dict.fromkeys(found)))
        parts = [
            replace(part, state="done", quotes=tuple(citation_of(p) for p in self.passages if inside(p, part)))
            for part in self.parts.parts
        ]
        self._show_parts(job, tuple(parts))
        self.app.library.update_message(self.answer.id, parts=self.parts.rows())

    def _ask_all(self, job: Job, windows: Sequence[Window], asker: WholeWindows | BestSentences) -> bool:
        """False when it was stopped."""
        parts = list(self.parts.parts)
        waiting = [place for place, part in enumerate(parts) if not part.read]
        total = 1000 * len(parts)
        clock = ReadingClock()
        clock.begin(1000 * (len(parts) - len(waiting)))
        for number, place in enumerate(waiting):
            if job.cancelled.is_set():
                return False
            parts[place] = replace(parts[place], state="asking")
            self._show_parts(job, tuple(parts))
            base = 1000 * (len(parts) - len(waiting) + number)

            def share(done: float, base: int = base) -> None:
                at = base + int(1000 * done)
                job.update(read_done=at, read_total=total, eta_s=clock.remaining(at, total))

            share(0.0)
            asked = asker.ask(job, windows[place], parts[place], share)
            if asked is None:
                parts[place] = replace(parts[place], state="waiting")
                self._show_parts(job, tuple(parts))
                return False
            parts[place], stats = asked
            if stats is not None:
                self.spent.append(stats)
            self._show_parts(job, tuple(parts))
            self.app.library.update_message(self.answer.id, parts=self.parts.rows())
        return not job.cancelled.is_set()

    def _show_parts(self, job: Job, parts: tuple[PartState, ...], level: int = 0) -> None:
        self.parts = replace(self.parts, parts=parts, level=level)
        job.update(parts=self.parts)

    # The last pass

    def _last_pass(
        self,
        job: Job,
        face: ModelFace,
        writer: PromptWriter,
        prompts: Prompts,
        asker: WholeWindows | BestSentences | None,
    ) -> None:
        quotes = self._quotes()
        small = is_small(self.app.model.parameters)
        planner = self._planner(face, writer, prompts.engine.largest_prompt)
        if not any(part.found for part in self.parts.parts):
            self._finish_without_model(job, "done", nothing_found(self.parts, not small), ())
            return
        if isinstance(asker, BestSentences):
            plan = planner.passages(self.question.text, asker.best(), self.document_ids, asker.weights)
        elif small:
            given = within(self.passages, SMALL_TASK_TOKENS, lambda text: len(writer.tokenizer.encode(text)))
            asked = SMALL_JOIN[self.task] or self.question.text
            plan = planner.plain(f"{bare_passages_text(given)}{QUESTION_LEAD} {asked}")
            plan = replace(plan, passages=given, warnings=(*plan.warnings, SMALL_NOTE))
        elif self.task == "list":
            several = len(self.document_ids) > 1
            items = merge_items(self.parts.parts, several)
            if items:
                job.update(warnings=(*job.state.warnings, MERGED_NOTE))
                self._finish_without_model(job, "done", "\n".join(items), quotes)
                return
            plan = self._joined(job, face, writer, prompts)
        else:
            plan = self._joined(job, face, writer, prompts)
        if plan is None or job.cancelled.is_set():
            self._finish_without_model(job, "stopped", *self.unanswered())
            return
        job.update(read_done=0, read_total=len(plan.ids), eta_s=None, warnings=(*job.state.warnings, *plan.warnings))
        self._show_parts(job, self.parts.parts, self.parts.level + 1)
        self.before_s = time.monotonic() - self.began
        self._generate(job, face, writer, plan)

    def _joined(self, job: Job, face: ModelFace, writer: PromptWriter, prompts: Prompts) -> Plan | None:
        """The prompt of the last pass, after levels in between where the findings are many. None when stopped."""
        several = len({part.document_id for part in self.parts.parts}) > 1
        room = prompts.engine.largest_prompt - self._answer_room()
        fixed = len(writer.tokenizer.encode(writer.system + self.question.text)) + 2 * HEAD_ROOM
        budget = max(LEAST_WINDOW_TOKENS, min(room - fixed, MOST_WINDOW_TOKENS))
        joiner = Joiner(prompts, writer, face.fingerprint, self.task, self.question.text, budget)
        findings = [
            Finding(part.document_id, head, head, text)
            for part in self.parts.parts
            if part.found
            for head in [finding_head(part, several)]
            for text in (quoted(part, several) if self.task == "question" else [f"[{head}]\n{part.text}\n\n"])
        ]

        def level(number: int, share: float) -> None:
            self._show_parts(job, self.parts.parts, number)
            job.update(read_done=int(1000 * share), read_total=1000, eta_s=None)

        shorter = joiner.condense(job, findings, level, self.spent)
        if shorter is None:
            return None
        plan = self._planner(face, writer, prompts.engine.largest_prompt).plain(joiner.prompt(shorter))
        pages: dict[str, list[int]] = {}
        for part in self.parts.parts:
            if part.found:
                pages.setdefault(part.document_id, []).extend(part.pages)
        given = tuple(Passage(q.document_id, q.document, q.page, q.label, q.quote, 0.0) for q in self._quotes())
        shown = () if self.task == "question" else tuple((id, tuple(dict.fromkeys(own))) for id, own in pages.items())
        return replace(plan, passages=given, shown=shown)

    def _quotes(self) -> tuple[Citation, ...]:
        return tuple(dict.fromkeys(quote for part in self.parts.parts for quote in part.quotes))

    def _finish_without_model(self, job: Job, phase: str, text: str, citations: tuple[Citation, ...]) -> None:
        """Ends with a text that the app wrote."""
        cost = total_cost(no_cost(self.app, "parts", self.read_by), self.spent, time.monotonic() - self.began)
        job.finish("stopped" if phase == "stopped" else "done", answer=text, citations=citations, stats=cost)
