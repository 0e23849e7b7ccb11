"""One turn of a conversation: store the question, search, plan the prompt, read, answer, check, remember.

`ask` returns at once with a Job; everything that takes time happens in the engine's thread. The question is on disk
before anything else happens, and the answer's row is never more than a second older than what the job shows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from app.citations import PageSource, attribute, verify
from app.documents import document_texts
from app.errors import DoesNotFit, WrongUse, as_app_error
from app.history import past_turns, title_of, visible
from app.jobs import Job
from app.ledger import pack_ids
from app.model_face import ModelFace
from app.pages import PageChoice, choice_as_text
from app.passages import beginning, best_passages, rarity
from app.plan import Plan, Planner, Room, choose_reading
from app.progress import ReadingClock
from app.prompts import QUESTION_LEAD, PromptWriter, is_small, system_text
from app.skeleton import Skeleton, render_skeleton, template_variables
from app.snapshots import export_when_idle
from app.thinking import split_thinking
from app.turn import READ_BY, Passage, Reading, TurnState, TurnStats

if TYPE_CHECKING:
    from app.citations import Citation
    from app.wiring import App
    from engine import Engine, GenerationStats, Sampling
    from storage import Message

STORE_EVERY_S = 0.7
DEMO_REPETITION_PENALTY = 1.1
SPARSE_BEFORE = "Earlier answers here were made in a sparse mode and are part of the prompt, so this one is not exact."
"""Measured with the 135M model on ten real questions: six answers ended in a loop without it, none with it."""
READINGS = ("auto", "passages", "whole")


def ask(
    app: App,
    conversation_id: str,
    question: str,
    *,
    reading: str = "auto",
    pages: PageChoice | None = None,
    sampling: Sampling | None = None,
    thinking: bool = False,
) -> Job:
    """Stores the question and puts its turn into the queue; passages of the documents are in the state already.

    reading: 'passages', 'whole' or 'auto' (by the settings, else by the model's size). pages: a choice for 'whole'.
    thinking: counts for a conversation's first turn, later ones follow it. Errors: WrongUse, storage's own; everything
    later is the job's state 'failed' with the error in it.
    """
    if not question.strip():
        raise WrongUse("The question is empty.", "Write a question first.")
    if reading not in READINGS:
        raise WrongUse(f"There is no way of reading called {reading!r}.", f"Use {', '.join(READINGS)}.")
    conversation = app.library.conversation(conversation_id)
    message = app.library.add_message(conversation_id, "user", question.strip())
    if not conversation.title:
        app.library.rename_conversation(conversation_id, title_of(question))
    return answer(app, message, reading=reading, pages=pages, sampling=sampling, thinking=thinking)


def answer(
    app: App,
    question: Message,
    *,
    reading: str = "auto",
    pages: PageChoice | None = None,
    sampling: Sampling | None = None,
    thinking: bool = False,
    replaces: Message | None = None,
) -> Job:
    """Puts an answer to a stored question into the queue. replaces: an earlier answer that this one takes over from."""
    turn = _Turn(app, question, reading, pages, sampling, thinking, replaces)
    job = Job(question.conversation_id, turn.run, turn.store, turn.first_state)
    try:
        return app.engine_service.submit(job)
    except Exception as error:
        job.finish("failed", error=as_app_error(error))
        return job


class _Turn:
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
        warnings: tuple[str, ...] = ()
        passages = best_passages(app.library, question.text, self.document_ids)
        if documents and not passages:
            passages = beginning(app.library, documents)
            if self.reading == "passages":
                warnings = ("No passage has the words of this question; the documents' beginning is shown instead.",)
        self.passages = passages
        self.answer = app.library.add_message(
            self.conversation_id,
            "assistant",
            "",
            "streaming",
            question=question.id,
            reading=self.reading,
            passages=[asdict(passage) for passage in passages],
            pages=choice_as_text(pages) if self.reading == "whole" else None,
        )
        self.first_state = TurnState(
            "queued", passages=passages, message_id=self.answer.id, warnings=warnings, reading=self.reading
        )

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
        states = {"done": "complete", "stopped": "stopped", "failed": "failed"}
        error = state.error
        self.app.library.update_message(
            self.answer.id,
            text=state.answer,
            state=states[state.phase],
            thinking=state.thinking or None,
            citations=[asdict(citation) for citation in state.citations],
            stats=state.stats.as_dict() if state.stats else None,
            warnings=list(state.warnings),
            error=None
            if error is None
            else {
                "message": error.message,
                "hint": error.hint,
                "exit_code": error.exit_code,
                "choices": list(error.choices) if isinstance(error, DoesNotFit) else [],
            },
        )
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

    def _plan(self, face: ModelFace, writer: PromptWriter, context: int) -> Plan:
        library, id = self.app.library, self.conversation_id
        resolve = self.app.document_tokens().resolve
        past = past_turns(library.messages(id), self.question, face.fingerprint, resolve, self.document_ids)
        room = Room(context, self._answer_room(), self.app.model.parameters)
        planner = Planner(writer, face.fingerprint, room, past)
        text = self.question.text
        if self.reading == "whole":
            documents = document_texts(self.app, id, self.pages)
            return planner.whole(text, documents, chosen=self.pages is not None) if documents else planner.plain(text)
        if self.reading == "passages":
            small = is_small(room.parameters)
            weights = rarity(text, (page.text for page in self._pages(None))) if small else None
            return planner.passages(text, self.passages, self.document_ids, weights)
        return planner.plain(text)

    def _generate(self, job: Job, face: ModelFace, writer: PromptWriter, plan: Plan) -> None:
        from engine import Done, Prefilled, Reused, Token

        engine = self.app.engine_service.loaded()
        clock = ReadingClock()
        ids: list[int] = []
        text = ""
        stored_at = time.monotonic()
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
                    text += event.text
                    thinking, shown = split_thinking(text, already_open=plan.record.open_thinking)
                    job.update(phase="answering", answer=shown, thinking=thinking, eta_s=None)
                    if time.monotonic() - stored_at > STORE_EVERY_S:
                        self.app.library.update_message(self.answer.id, text=shown, thinking=thinking or None)
                        stored_at = time.monotonic()
                elif isinstance(event, Reused):
                    clock.begin(event.tokens)
                    job.update(read_done=event.tokens, read_total=event.prompt_tokens)
                elif isinstance(event, Prefilled):
                    job.update(
                        read_done=event.done, read_total=event.total, eta_s=clock.remaining(event.done, event.total)
                    )
                elif isinstance(event, Done):
                    if self.app.settings.mode == "exact" and event.stats.sparse_tokens:
                        job.update(warnings=(*job.state.warnings, SPARSE_BEFORE))
                    self._end(job, face, writer, plan, ids, text, event.stats)
        finally:
            events.close()  # pyright: ignore[reportAttributeAccessIssue]  # a generator

    def _end(
        self,
        job: Job,
        face: ModelFace,
        writer: PromptWriter,
        plan: Plan,
        ids: Sequence[int],
        text: str,
        stats: GenerationStats,
    ) -> None:
        thinking, shown = split_thinking(text, already_open=plan.record.open_thinking, complete=True)
        if shown:
            self._remember(face, writer, plan, ids, text, shown)
        job.finish(
            "stopped" if stats.finish_reason == "cancelled" else "done",
            answer=shown,
            thinking=thinking,
            stats=self._stats(stats),
            citations=self._citations(shown, plan),
        )
        app = self.app
        export_when_idle(app.engine_service, app.snapshot_writer, self.conversation_id, plan.checkpoint)

    def _remember(
        self, face: ModelFace, writer: PromptWriter, plan: Plan, ids: Sequence[int], text: str, shown: str
    ) -> None:
        """Stores the turn's ids for the next prompt, those of the prompt beside those of the answer that it led to.

        The answer's are as generated, or encoded anew where thinking is dropped.
        """
        if shown == text and not plan.record.open_thinking:
            kept = list(ids)
            while kept and kept[-1] in face.tokenizer.eos_ids:
                kept.pop()
        else:
            kept = list(writer.answer(shown))
        stored = {"model": face.fingerprint, "ids": pack_ids(kept)}
        self.app.library.update_message(self.answer.id, prompt=plan.record.to_dict(), answer_ids=stored)

    def _citations(self, shown: str, plan: Plan) -> tuple[Citation, ...]:
        """Checked against the pages that the model was shown, after the fact; nothing goes back into the prompt.

        Those of earlier turns' passages count, as answers go on from them. What stands on none of them is looked for
        on all pages before it is called not found.
        """
        wanted: dict[str, set[int]] = {document: set(indices) for document, indices in plan.shown}
        earlier = visible(self.app.library.messages(self.conversation_id))
        past = [p for m in earlier if m.index < self.question.index for p in passages_from(m.details)]
        for passage in (*plan.passages, *past):
            wanted.setdefault(passage.document_id, set()).add(passage.page)
        pages = self._pages(wanted)
        if not shown or not pages:
            return ()
        read = [passage.text for passage in plan.passages]
        found = attribute(shown, pages, self.question.text, read)
        if any(citation.status == "not_found" for citation in found):
            everywhere = self._pages(None)
            for number, citation in enumerate(found):
                if citation.status == "not_found":
                    again = verify(citation.quote, citation.page or None, everywhere)
                    found[number] = citation if again.status == "not_found" else again
        return tuple(dict.fromkeys(found))

    def _pages(self, wanted: Mapping[str, Collection[int]] | None) -> list[PageSource]:
        """Pages of the conversation's documents: those wanted by document, or all."""
        return [
            PageSource(document.id, document.name, row.index, row.label, row.text)
            for document in self.app.library.documents(self.conversation_id)
            if wanted is None or document.id in wanted
            for row in self.app.library.pages(document.id)
            if wanted is None or row.index in wanted[document.id]
        ]

    def _stats(self, stats: GenerationStats) -> TurnStats:
        app = self.app
        engine = app.engine_service.loaded()
        return TurnStats(
            prompt_tokens=stats.prompt_tokens,
            reused_tokens=stats.reused_tokens,
            restored_tokens=stats.restored_tokens,
            computed_tokens=stats.computed_tokens,
            ttft_s=stats.ttft_s or 0.0,
            tpot_ms=stats.tpot_ms or 0.0,
            output_tokens=stats.output_tokens,
            finish_reason=stats.finish_reason,
            kv_pages_read_share=stats.kv_pages_read_share,
            peak_memory_bytes=stats.peak_memory_bytes,
            profile=engine.profile.name,
            model=app.model.name,
            kv_format=engine.kv_format,
            mode=app.settings.mode,
            reading=self.reading,
            read_by=self.read_by,
            demoted_pages=stats.demoted_pages,
        )


def sampling_of(app: App) -> Sampling:
    """As the settings say; the demo model gets its own repetition penalty unless the settings name one."""
    from engine import Sampling

    settings = app.settings
    penalty = settings.repetition_penalty
    if app.model.is_demo and settings.origin("repetition_penalty") == "default":
        penalty = DEMO_REPETITION_PENALTY
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        repetition_penalty=penalty,
        seed=settings.seed,
        max_tokens=settings.max_answer_tokens,
    )


def reading_for(app: App, conversation_id: str, wanted: str) -> Reading:
    """How a question is read that is asked now."""
    has_documents = bool(app.library.documents(conversation_id))
    return choose_reading(wanted, app.settings.reading, app.model.parameters, has_documents)


def passages_from(details: dict[str, Any]) -> tuple[Passage, ...]:
    """The passages that an answer's message has stored."""
    return tuple(Passage(**row) for row in details.get("passages", ()))
