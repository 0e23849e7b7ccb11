"""Conversations as a screen handles them: new, listed, renamed, deleted; messages; another try at the last answer."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import TYPE_CHECKING

from app import history, table_place
from app.assistant import answer
from app.documents import remove_unused
from app.errors import WrongUse
from app.evidence import read_evidence
from app.hidden import is_hidden
from app.pages import choice_as_text, choice_from
from app.parts.ask import parts_name
from app.turn_choices import reading_for, sampling_of

if TYPE_CHECKING:
    from app.jobs import Job
    from app.pages import PageChoice
    from app.wiring import App
    from engine import Engine, Sampling
    from storage import Conversation, Message

STOP_WAIT_S = 5.0
UNLOAD_WAIT_S = 1.0


def new(app: App, title: str = "") -> Conversation:
    """An empty conversation; without a title the first question gives it one."""
    return app.library.create_conversation(title)


def list(app: App, search: str = "") -> Sequence[Conversation]:
    """Newest first, without hidden ones; `search` keeps those with all its words in title or messages."""
    return [found for found in app.library.conversations(search) if not is_hidden(app, found.id)]


def rename(app: App, conversation_id: str, title: str) -> None:
    title = " ".join(title.split())
    if not title:
        raise WrongUse("A conversation needs a name.", "Write one, or leave the old one.")
    app.library.rename_conversation(conversation_id, title)


def delete(app: App, conversation_id: str, *, with_documents: bool = False) -> None:
    """Stops its jobs and deletes messages, snapshots and KV pages in memory.

    with_documents: deletes its documents too, but for those that another conversation uses; else they stay.
    """
    for job in app.engine_service.unfinished(conversation_id):
        job.cancel()
        job.wait(STOP_WAIT_S)
    forget_kv(app, conversation_id)
    table_place.drop(app, conversation_id)
    documents = [document.id for document in app.library.documents(conversation_id)]
    documents += [id for v in app.library.versions(conversation_id) for id in (v.document_id, v.newer_id)]
    app.library.delete_conversation(conversation_id)
    if with_documents:
        remove_unused(app, documents)


def messages(app: App, conversation_id: str) -> Sequence[Message]:
    """What is shown, in order; answers that another try has replaced are left out."""
    return history.visible(app.library.messages(conversation_id))


def regenerate(
    app: App,
    conversation_id: str,
    *,
    reading: str = "auto",
    pages: PageChoice | None = None,
    sampling: Sampling | None = None,
) -> Job:
    """Answers the last question once more. The earlier answer is replaced as soon as the new one is there.

    Without `pages`, a whole document is read in the pages that the earlier answer read of it. A failed answer is tried
    again as it was; a complete one would come out the same where the reading is the same, so it is then sampled with a
    fresh seed unless `sampling` is given. Errors: WrongUse without a question or while it is being answered.
    """
    shown = messages(app, conversation_id)
    question = next((message for message in reversed(shown) if message.role == "user"), None)
    if question is None:
        raise WrongUse("There is no question yet.", "Ask one first.")
    if question.details.get("questions"):
        raise WrongUse("A table of questions is not answered again.", "Send the list once more.")
    if app.engine_service.unfinished(conversation_id):
        raise WrongUse("The question is being answered.", "Wait for the answer, or stop it.")
    earlier = next((m for m in reversed(shown) if m.details.get("question") == question.id), None)
    if earlier is not None and reading_for(app, conversation_id, reading) == earlier.details.get("reading"):
        read_then = choice_from(earlier.details)
        pages = pages or read_then
        if sampling is None and earlier.state == "complete" and choice_as_text(pages) == choice_as_text(read_then):
            sampling = _fresh_sampling(app)
    task = str(earlier.details.get("task") or "auto") if earlier is not None else "auto"
    return answer(app, question, reading=reading, pages=pages, sampling=sampling, replaces=earlier, task=task)


def forget_kv(app: App, conversation_id: str) -> None:
    """Forgets the conversation's KV: what waits to be written, what is stored, what is in memory.

    Stored rows are gone when this returns. Memory is freed by the engine's thread: at once, or after the answer that it
    is working on for another conversation.
    """
    app.engine_service.forget_idle(conversation_id)
    app.snapshot_writer.forget(conversation_id)

    def unload(engine: Engine | None) -> None:
        if engine is not None:
            engine.unload(conversation_id)
            engine.unload(parts_name(conversation_id))
        app.snapshot_writer.forget(conversation_id)  # what an export has offered since

    with contextlib.suppress(TimeoutError, CancelledError):
        app.engine_service.call(unload).result(UNLOAD_WAIT_S)


def forget_document(app: App, conversation_id: str, document_id: str) -> bool:
    """Removes a document's token ids, passages, evidence and parts from messages; True when the conversation had read
    of it."""
    found = any(document.id == document_id for document in app.library.documents(conversation_id))
    for message in app.library.messages(conversation_id):
        passages = message.details.get("passages") or []
        kept = [passage for passage in passages if passage["document_id"] != document_id]
        if len(kept) != len(passages):
            found = True
            app.library.update_message(message.id, passages=kept)
        parts = message.details.get("parts") or []
        others = [part for part in parts if part["document_id"] != document_id]
        if len(others) != len(parts):
            found = True
            app.library.update_message(message.id, parts=others or None)
        looked = read_evidence(message.details.get("evidence"))
        if looked is not None and looked.without(document_id) is None:
            app.library.update_message(message.id, evidence=None)
        placed = (message.details.get("prompt") or {}).get("parts", ())
        found = found or any(part.get("document") == document_id for part in placed)
    if found:
        for message in app.library.messages(conversation_id):
            if "prompt" in message.details:
                app.library.update_message(message.id, prompt=None)
    return found


def _fresh_sampling(app: App) -> Sampling:
    usual = sampling_of(app)
    return replace(usual, temperature=usual.temperature or 0.7, top_p=min(usual.top_p, 0.95), seed=secrets.randbits(62))
