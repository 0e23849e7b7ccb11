"""What stays of a turn: its row, the ids for the next prompt, its checked citations, what it cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from app.changes.versions import EARLIER, superseded
from app.citations import PageSource, attribute, recheck
from app.errors import DoesNotFit
from app.evidence import Evidence, Looked, gather_evidence
from app.history import past_turns, visible
from app.ledger import Pages, document_parts, pack_ids, read_ledger
from app.turn import Passage, Reading, TurnState, TurnStats
from app.turn_choices import passages_from

if TYPE_CHECKING:
    from app.citations import Citation
    from app.model_face import ModelFace
    from app.plan import Plan
    from app.prompts import PromptWriter
    from app.wiring import App
    from engine import GenerationStats
    from storage import Library, Message

STATES = {"done": "complete", "stopped": "stopped", "failed": "failed"}
"""A finished turn's phase, and the state of its message."""


def store_answer(library: Library, message_id: str, state: TurnState) -> None:
    """The answer's row as it stays."""
    error = state.error
    library.update_message(
        message_id,
        text=state.answer,
        state=STATES[state.phase],
        thinking=state.thinking or None,
        citations=[asdict(citation) for citation in state.citations],
        evidence=state.evidence.to_dict() if state.evidence is not None else None,
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


def remember(
    library: Library,
    message_id: str,
    face: ModelFace,
    writer: PromptWriter,
    plan: Plan,
    ids: Sequence[int],
    text: str,
    shown: str,
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
    library.update_message(message_id, prompt=plan.record.to_dict(), answer_ids=stored)


def citations(
    library: Library, question: Message, shown: str, pages_read: Pages, passages: Sequence[Passage]
) -> tuple[Citation, ...]:
    """Checked against the pages that the model was shown, after the fact; nothing goes back into the prompt.

    Those of earlier turns' passages count, as answers go on from them. What stands on none of them is looked for on all
    pages before it is called not found.
    """
    conversation_id = question.conversation_id
    wanted: dict[str, set[int]] = {document: set(indices) for document, indices in pages_read}
    earlier = visible(library.messages(conversation_id))
    past = [p for m in earlier if m.index < question.index for p in passages_from(m.details)]
    for passage in (*passages, *past):
        wanted.setdefault(passage.document_id, set()).add(passage.page)
    sources = pages(library, conversation_id, wanted)
    if not shown or not sources:
        return ()
    read = [passage.text for passage in passages]
    order = [document.id for document in library.documents(conversation_id)]
    found = attribute(shown, sources, question.text, read, order)
    if any(citation.status == "not_found" for citation in found):
        everywhere = pages(library, conversation_id, None)
        found = [recheck(citation, everywhere) for citation in found]
    return tuple(dict.fromkeys(found))


def evidence(
    app: App, question: Message, model: str, plan: Plan, steps: Sequence[Looked], text: str, shown: str
) -> Evidence | None:
    """Where the model looked among the pages that the prompt holds in full; None where nobody has kept that.

    model: the fingerprint that the prompt's ids belong to. text: all that was generated, of which `shown` is the end.
    """
    if not steps or not shown:
        return None
    library, tokens = app.library, app.document_tokens()
    attached = {document.id: document for document in library.documents(question.conversation_id)}
    placed = list(document_parts(plan.record.parts, len(plan.ids) - len(plan.record.ids)))
    if not plan.record.start:
        past = past_turns(library.messages(question.conversation_id), question, model, tokens.resolve, attached)
        before = read_ledger(past, model)
        placed = [*(before.placed if before is not None else ()), *placed]
    spans = [
        span
        for start, part in placed
        if part.document in attached
        for span in tokens.spans(start, part.document, part.pages)
    ]
    names = {id: document.name for id, document in attached.items()}
    labels = {(id, row.index): row.label for id in {span.document for span in spans} for row in library.pages(id)}
    return gather_evidence(steps, spans, len(plan.ids), text, shown, names, labels)


def pages(library: Library, conversation_id: str, wanted: Mapping[str, Collection[int]] | None) -> list[PageSource]:
    """Pages of the conversation's documents: those wanted by document, or all. One that a newer version replaces says
    so in its document's name."""
    old = superseded(library, conversation_id)
    return [
        PageSource(
            document.id,
            document.name + EARLIER * (row.index in old.get(document.id, ())),
            row.index,
            row.label,
            row.text,
        )
        for document in library.documents(conversation_id)
        if wanted is None or document.id in wanted
        for row in library.pages(document.id)
        if wanted is None or row.index in wanted[document.id]
    ]


def turn_stats(app: App, stats: GenerationStats, reading: Reading, read_by: str) -> TurnStats:
    """reading: what the answer was given; read_by: the mode that its prompt was read in."""
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
        reading=reading,
        read_by=read_by,
        demoted_pages=stats.demoted_pages,
    )
