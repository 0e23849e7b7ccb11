"""The work behind one turn's job: plan the prompt, read, answer, hand over to `app.turn_end` for what stays of it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date
from typing import TYPE_CHECKING

from app import turn_end
from app.before_reading.choice import left_out, stored_choice
from app.before_reading.estimate import remember_speed
from app.changes.versions import MAP, superseded
from app.documents import document_texts
from app.errors import WrongUse
from app.evidence import Looked
from app.history import past_turns
from app.keeping import LongRead, not_kept
from app.pages import PageChoice, choice_as_text
from app.passages import beginning, best_passages, rarity
from app.plan import Plan, Planner, Room
from app.progress import ReadingClock
from app.prompts import QUESTION_LEAD, PromptWriter, is_small, system_text
from app.skeleton import Skeleton, render_skeleton, template_variables
from app.snapshots import export_when_idle
from app.thinking import split_thinking
from app.turn import READ_BY, Passage, Reading, TurnState, TurnStats
from app.turn_choices import reading_for, sampling_of
from storage import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.citations import Citation
    from app.jobs import Job
    from app.model_face import ModelFace
    from app.wiring import App
    from engine import Engine, GenerationStats, Sampling
    from storage import Message

STORE_EVERY_S = 0.7
SPARSE_BEFORE = "Earlier answers here were made in a sparse mode and are part of the prompt, so this one is not exact."


class TurnWork:
    """The work behind one job. All of it but __init__ runs in the engine's thread, or in that of who presses Stop."""

    def __init__(
        self,
        app: App,
        question: Message,
        reading: str,
        pages: PageChoice | None,
        sampling: Sampling | None,
        thinking: bool,
        replaces: Message | None,
    ) -> None:
        self.app = app
        self.conversation_id = question.conversation_id
        self.question = question
        self.pages = pages
        self.sampling = sampling
        self.thinking = thinking
        self.replaces = replaces
        self.read_by = app.settings.mode  # until `_settle_modes` has asked the conversation
        documents = app.library.documents(self.conversation_id)
        self.document_ids = [document.id for document in documents]
        self.reading: Reading = reading_for(app, self.conversation_id, reading)
        if self.reading != "passages" and pages is None:
            self.pages = stored_choice(app, self.conversation_id)
        passages, warnings = self.first_passages()
        if self.reading != "passages":
            with suppress(WrongUse):  # a page that no document has: the run fails with it
                warnings += left_out(app, self.conversation_id, self.pages)
        self.passages = passages
        self.answer = app.library.add_message(
            self.conversation_id,
            "assistant",
            "",
            "streaming",
            question=question.id,
            reading=self.reading,
            passages=[asdict(passage) for passage in passages],
            pages=choice_as_text(self.pages) if self.reading != "passages" else None,
        )
        self.first_state = TurnState(
            "queued", passages=passages, message_id=self.answer.id, warnings=warnings, reading=self.reading
        )

    def first_passages(self) -> tuple[tuple[Passage, ...], tuple[str, ...]]:
        """What is shown before anything is read, and what a reader should know of it."""
        library = self.app.library
        documents = library.documents(self.conversation_id)
        searched = [document.id for document in documents if document.kind != MAP]  # a map repeats what the files say
        old = superseded(library, self.conversation_id)
        passages = best_passages(library, self.question.text, searched, without=old)
        if passages or not self.document_ids:
            return passages, ()
        warning = "No passage has the words of this question; the documents' beginning is shown instead."
        passages = beginning(library, documents)
        return passages, (warning,) if self.reading == "passages" else ()

    def prompt_question(self) -> str:
        """The question as the model reads it."""
        return self.question.text

    def unanswered(self) -> tuple[str, tuple[Citation, ...]]:
        """What stands in place of an answer that was stopped before its first word, and its citations."""
        return "", ()

    def cost(self, stats: GenerationStats) -> TurnStats:
        return turn_end.turn_stats(self.app, stats, self.reading, self.read_by)

    def run(self, job: Job) -> None:
        job.update(phase="loading", position=0)
        face = self.app.face()
        writer = self._writer(face)
        plan = self._plan(face, writer, self.app.context)
        engine = self.app.engine_service.loaded(lambda text, share: self._show_loading(job, text, share))
        if len(plan.ids) + self._answer_room() > engine.largest_prompt:  # less memory than the model could use
            plan = self._plan(face, writer, engine.largest_prompt)
        if not job.enter_engine():
            return
        warnings = (*job.state.warnings, *plan.warnings, *self._settle_modes(engine, len(plan.ids)))
        warnings += not_kept(self.app, engine.kv_bytes_per_token, len(plan.ids))
        job.update(phase="reading", read_done=0, read_total=len(plan.ids), warnings=warnings)
        self._generate(job, face, writer, plan)

    def _sampling(self) -> Sampling:
        sampling = self.sampling or sampling_of(self.app)
        if self.reading == "passages" and is_small(self.app.model.parameters):
            sampling = replace(sampling, stop=(*sampling.stop, f"\n\n{QUESTION_LEAD}"))
        return sampling

    def _settle_modes(self, engine: Engine, tokens: int) -> tuple[str, ...]:
        """Decides which mode reads: that of the conversation's first turn, whose KV is re-used. -> warnings.

        PatternError if the mode of the settings is unknown; nothing is stored of it then.
        """
        from engine import PatternError

        mode = self.app.settings.mode
        engine.policy(mode)
        self.read_by = self.app.library.freeze(self.conversation_id, READ_BY, mode)
        try:
            dense_until = engine.policy(self.read_by).dense_until
        except PatternError:
            gone, self.read_by = self.read_by, mode
            return (f"The attention pattern {gone} is gone; what it read is read again in mode {mode}.",)
        if mode != "exact" or tokens <= dense_until:
            return ()
        return (
            f"The documents were read in mode {self.read_by}, so this answer is not exact; "
            "ask in a new conversation to have them read again.",
        )

    def store(self, state: TurnState) -> None:
        """The answer's row as it stays. Runs exactly once a turn."""
        turn_end.store_answer(self.app.library, self.answer.id, state)
        if self.replaces is not None and state.answer and state.phase != "failed":
            self.app.library.update_message(self.replaces.id, replaced=self.answer.id)

    def _show_loading(self, job: Job, text: str, share: float) -> None:
        job.update(phase="loading", read_done=int(share * 1000), read_total=1000)

    def _answer_room(self) -> int:
        return self.sampling.max_tokens if self.sampling is not None else self.app.settings.max_answer_tokens

    def _writer(self, face: ModelFace) -> PromptWriter:
        """With the conversation's frozen parts: rendered at its first turn with this model, the same ever after."""
        library, id = self.app.library, self.conversation_id
        frozen = library.frozen(id)
        system = frozen.get("system") or library.freeze(id, "system", system_text(self.app.model.parameters))
        key = f"skeleton:{face.fingerprint}"
        small = is_small(self.app.model.parameters)
        stored = frozen.get(key)
        if stored is None:
            thinking = library.freeze(id, "thinking", "on" if self.thinking else "off") == "on"
            today = date.fromisoformat(library.freeze(id, "date", date.today().isoformat()))
            skeleton = render_skeleton(face.template, template_variables(today, thinking=thinking), today, face.name)
            stored = library.freeze(id, key, skeleton.to_json())
        return PromptWriter(face.tokenizer, Skeleton.from_json(stored), system, self.app.document_tokens().ids, small)

    def _planner(self, face: ModelFace, writer: PromptWriter, context: int) -> Planner:
        library, id = self.app.library, self.conversation_id
        resolve = self.app.document_tokens().resolve
        past = past_turns(library.messages(id), self.question, face.fingerprint, resolve, self.document_ids)
        return Planner(writer, face.fingerprint, Room(context, self._answer_room(), self.app.model.parameters), past)

    def _plan(self, face: ModelFace, writer: PromptWriter, context: int) -> Plan:
        library, id = self.app.library, self.conversation_id
        planner, text = self._planner(face, writer, context), self.prompt_question()
        if self.reading == "whole":
            documents = document_texts(self.app, id, self.pages)
            return planner.whole(text, documents, chosen=self.pages is not None) if documents else planner.plain(text)
        if self.reading == "passages":
            small = is_small(self.app.model.parameters)
            weights = rarity(text, (page.text for page in turn_end.pages(library, id, None))) if small else None
            return planner.passages(text, self.passages, self.document_ids, weights)
        return planner.plain(text)

    def _generate(self, job: Job, face: ModelFace, writer: PromptWriter, plan: Plan) -> None:
        from engine import Checkpoint, Done, Prefilled, Reused, Token

        engine = self.app.engine_service.loaded()
        long_read = LongRead(engine, self.app.snapshot_writer, self.conversation_id, plan.checkpoint)
        clock = ReadingClock()
        ids: list[int] = []
        looked: list[Looked] = []
        text = ""
        reused = 0
        stored_at = began = time.monotonic()
        events = engine.generate(
            plan.ids,
            self._sampling(),
            conversation=self.conversation_id,
            cancel=job.cancelled,
            checkpoints=(plan.checkpoint,) if plan.checkpoint else (),
            snapshots=self.app.snapshots,
            mode=self.app.settings.mode,
            reading=self.read_by,
        )
        try:
            for event in events:
                if isinstance(event, Token):
                    ids.append(event.id)
                    if event.looked is not None:
                        looked.append(Looked(len(text), event.looked))
                    text += event.text
                    thinking, shown = split_thinking(text, already_open=plan.record.open_thinking)
                    job.update(phase="answering", answer=shown, thinking=thinking, eta_s=None)
                    if time.monotonic() - stored_at > STORE_EVERY_S:
                        self._store_so_far(job, shown, thinking)
                        stored_at = time.monotonic()
                elif isinstance(event, Reused):
                    reused, began = event.tokens, time.monotonic()
                    clock.begin(event.tokens)
                    job.update(read_done=event.tokens, read_total=event.prompt_tokens)
                elif isinstance(event, Checkpoint):
                    long_read.checkpoint(event.tokens)
                elif isinstance(event, Prefilled):
                    long_read.step()
                    if event.done == event.total:
                        remember_speed(self.app, engine, reused, event.done, time.monotonic() - began)
                    job.update(
                        read_done=event.done, read_total=event.total, eta_s=clock.remaining(event.done, event.total)
                    )
                elif isinstance(event, Done):
                    if self.app.settings.mode == "exact" and event.stats.sparse_tokens:
                        job.update(warnings=(*job.state.warnings, SPARSE_BEFORE))
                    self._end(job, face, writer, plan, ids, text, event.stats, looked)
        finally:
            events.close()  # pyright: ignore[reportAttributeAccessIssue]  # a generator

    def _store_so_far(self, job: Job, shown: str, thinking: str) -> None:
        """What cannot be written now may be by the end of the answer: until then it is said, and the answer goes on."""
        try:
            self.app.library.update_message(self.answer.id, text=shown, thinking=thinking or None)
        except StorageError as error:
            warning = f"The answer is not stored yet: {error}"
            if warning not in job.state.warnings:
                job.update(warnings=(*job.state.warnings, warning))

    def _end(
        self,
        job: Job,
        face: ModelFace,
        writer: PromptWriter,
        plan: Plan,
        ids: Sequence[int],
        text: str,
        stats: GenerationStats,
        looked: Sequence[Looked] = (),
    ) -> None:
        thinking, shown = split_thinking(text, already_open=plan.record.open_thinking, complete=True)
        library = self.app.library
        if shown:
            turn_end.remember(library, self.answer.id, face, writer, plan, ids, text, shown)
        citations = turn_end.citations(library, self.question, shown, plan.shown, plan.passages)
        stopped = stats.finish_reason == "cancelled"
        if stopped and not shown:
            shown, citations = self.unanswered()
        job.finish(
            "stopped" if stopped else "done",
            answer=shown,
            thinking=thinking,
            evidence=turn_end.evidence(self.app, self.question, face.fingerprint, plan, looked, text, shown),
            stats=self.cost(stats),
            citations=citations,
        )
        app = self.app
        export_when_idle(app.engine_service, app.snapshot_writer, self.conversation_id, plan.checkpoint)
