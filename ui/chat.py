"""Events of the page. Each takes the conversation's id, asks the app, and returns what changed; none owns anything.

`watch` follows what happens in one conversation (an answer, files being read) and ends when nothing does. Work runs in
the app's own threads, so closing the tab stops only the watching, and opening the page again takes it up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import gradio as gr

from app.errors import as_app_error
from app.turn import TurnState
from ui import chooser
from ui.backend import Backend, JobLike, ReadingChoice
from ui.render.html import error_card, one_line
from ui.render.sidebar import Editing
from ui.screen import Screen, Updates
from ui.strings import text
from ui.uploads import Upload, Uploads

log = logging.getLogger(__name__)
POLL_SECONDS = 0.1
TITLE_LENGTH = 200


class Chat:
    def __init__(self, backend: Backend, uploads: Uploads) -> None:
        self.backend = backend
        self.uploads = uploads
        self.screen = Screen(backend, uploads)

    def load(self, request: gr.Request) -> Updates:
        """A page that was opened or reloaded: the conversation that its address names, else a new one."""
        model = self.backend.model()
        reading = model.reading if model else "passages"
        asked = str(request.query_params.get("c", ""))
        return {
            **self.open(asked),
            "reading": gr.update(value=reading),
            "pages": gr.update(visible=reading != "passages"),
        }

    def open(self, conversation_id: str, search: str = "", notice: str = "") -> Updates:
        known = conversation_id if self.backend.conversation(conversation_id) is not None else ""
        return {"conversation": known, **self.screen.everything(known, search, notice), **_follow()}

    def ask(self, conversation_id: str, question: str, reading: ReadingChoice, pages: str, search: str) -> Updates:
        """Sends a question. It stays in the box when it cannot be sent now."""
        question = question.strip()
        if not question:
            return {}
        if conversation_id and self.backend.current(conversation_id) is not None:
            return {"notice": self.screen.notice(text("ask.busy")), **_follow()}
        if any(upload.busy for upload in self.uploads.of(conversation_id)):
            return {"notice": self.screen.notice(text("ask.still_reading")), **_follow()}
        try:
            conversation_id = conversation_id or self.backend.new_conversation()
            self.backend.ask(conversation_id, question, reading, pages.strip() if reading != "passages" else "")
        except Exception as error:
            return {**self.open(conversation_id, search), "notice": _problem(error)}
        return {**self.open(conversation_id, search), "question": ""}

    def ask_many(self, conversation_id: str, listed: str, reading: ReadingChoice, search: str) -> Updates:
        """Sends a list of questions. It stays in its box when it cannot be sent now."""
        if conversation_id and self.backend.current(conversation_id) is not None:
            return {"notice": self.screen.notice(text("ask.busy")), **_follow()}
        if any(upload.busy for upload in self.uploads.of(conversation_id)):
            return {"notice": self.screen.notice(text("ask.still_reading")), **_follow()}
        try:
            if not self._existing(conversation_id):
                return {"notice": self.screen.notice(text("many.no_document"))}
            self.backend.ask_table(conversation_id, listed, reading)
        except Exception as error:
            return {"notice": _problem(error)}
        return {**self.open(conversation_id, search), "listed": "", "many": gr.update(visible=False)}

    def stop(self, conversation_id: str) -> None:
        job = self.backend.current(conversation_id) if conversation_id else None
        if job is not None:
            job.cancel()

    def add_files(self, conversation_id: str, paths: list[str] | None, search: str) -> Updates:
        """Files that Gradio has taken in; their paths lie in our own temporary folder."""
        if not paths:
            return {}
        conversation_id = self._existing(conversation_id) or self.backend.new_conversation()
        self.uploads.add(conversation_id, [Path(path) for path in paths])
        return self.open(conversation_id, search)

    def choose(self, message: str, conversation_id: str) -> tuple[str, str, str, str]:
        """A button or box of the chooser: (panel, plan, tray, status). Untrusted like everything from the browser."""
        panel, plan = chooser.act(self.backend.plans, self._existing(conversation_id), message)
        return panel, plan, self.screen.documents(conversation_id)["tray"], self.screen.status(conversation_id)

    def search(self, conversation_id: str, search: str) -> Updates:
        return self.screen.sidebar(conversation_id, search)

    def act(self, message: str, conversation_id: str, reading: ReadingChoice, search: str) -> Updates:
        """A button in the page's own markup, as app.js reports it: action, value, typed text. All are untrusted."""
        try:
            done = self._act(*_parse(message), conversation_id, reading, search)
        except Exception as error:
            done = {**self.open(conversation_id, search), "notice": _problem(error)}
        return {"action": "", **_follow(), **done}

    def edit(self, message: str, conversation_id: str, search: str) -> Updates:
        """The same for buttons that change only the list of conversations: a running answer goes on being shown."""
        action, value, typed = _parse(message)
        try:
            if action == "rename" and self._existing(value):
                title = " ".join(typed.split())[:TITLE_LENGTH]
                self.backend.rename(value, title)
                return {**self.screen.sidebar(conversation_id, search), **self.screen.top(conversation_id)}
        except Exception as error:
            return {**self.screen.sidebar(conversation_id, search), "notice": _problem(error)}
        editing: dict[str, Editing] = {
            "rename-ask": Editing(value, "rename"),
            "delete-ask": Editing(value, "delete"),
        }
        return self.screen.sidebar(conversation_id, search, editing.get(action))

    def _act(
        self, action: str, value: str, typed: str, conversation_id: str, reading: ReadingChoice, search: str
    ) -> Updates:
        match action:
            case "open":
                return self.open(value, search)
            case "delete":
                if self._existing(value):
                    self.uploads.forget_conversation(value)
                    self.backend.delete(value)
                if value == conversation_id:
                    return self.open("", search)
                return self.screen.sidebar(conversation_id, search)
            case "remove":
                self.backend.remove_document(conversation_id, value)
                return self.open(conversation_id, search)
            case "unlock":
                self.uploads.unlock(value, typed)
                return self.screen.documents(conversation_id)
            case "upload-close":
                self.uploads.close_one(value)
                return {**self.screen.documents(conversation_id), **self.screen.messages(conversation_id)}
            case "ocr" | "ocr-leave" | "ocr-open":
                self.screen.scans.act(conversation_id, action, value, typed)
                return self.screen.documents(conversation_id)
            case "sample":
                return self._add_sample(value, search)
            case "suggest":
                return self.ask(conversation_id, value, reading, "", search)
            case "retry-passages":
                return self._retry(conversation_id, "passages", "", search)
            case "retry-whole" | "retry-pages":
                return self._retry(conversation_id, "whole", typed, search)
            case "retry-parts":
                return self._retry(conversation_id, "parts", "", search)
            case "retry-same":
                same: ReadingChoice = "whole" if value == "whole" else "parts" if value == "parts" else "passages"
                return self._retry(conversation_id, same, "", search)
        return {}

    async def watch(self, conversation_id: str, search: str) -> AsyncIterator[Updates]:
        """Yields what changed, about ten times a second, until nothing runs in this conversation."""
        if not conversation_id:
            return
        self._look_at_folders(conversation_id)
        counting = self._counting(conversation_id)
        # Looked at before the first showing: what ends meanwhile is then seen as a change.
        job: JobLike | None = self.backend.current(conversation_id)
        seen_state: TurnState | None = None
        seen_uploads: tuple[Upload, ...] = self.uploads.of(conversation_id)
        yield await asyncio.to_thread(self._settled, conversation_id, search)
        while True:
            updates: Updates = {}
            job = job or self.backend.current(conversation_id)
            if job is not None and job.state is not seen_state:
                seen_state = job.state
                if seen_state.finished:
                    updates |= await asyncio.to_thread(self._settled, conversation_id, search)
                    job = None
                else:
                    updates |= self.screen.live(seen_state)
            uploads = self.uploads.of(conversation_id)
            if len(uploads) != len(seen_uploads):
                updates |= await asyncio.to_thread(self._settled, conversation_id, search)
            elif uploads != seen_uploads:
                updates |= await asyncio.to_thread(self.screen.documents, conversation_id)
            seen_uploads = uploads
            if counting and not self._counting(conversation_id):
                self._look_at_folders(conversation_id)  # tokens are known now, so that times can be told
                updates |= await asyncio.to_thread(self._settled, conversation_id, search)
            counting = self._counting(conversation_id)
            if updates:
                yield updates
            quiet = job is None and not counting and not any(upload.busy for upload in uploads)
            if quiet and self.backend.current(conversation_id) is None:
                return
            await asyncio.sleep(POLL_SECONDS)

    def _look_at_folders(self, conversation_id: str) -> None:
        if self.backend.plans is not None:
            self.backend.plans.look(conversation_id)

    def _counting(self, conversation_id: str) -> bool:
        """Whether tokens are being counted or folders looked at: what is known then is shown."""
        plans = self.backend.plans
        return self.backend.counting(conversation_id) or (plans is not None and plans.looking(conversation_id))

    def _settled(self, conversation_id: str, search: str) -> Updates:
        """After an answer or a document: everything that may have changed with it."""
        return {
            **self.screen.messages(conversation_id),
            **self.screen.documents(conversation_id),
            **self.screen.sidebar(conversation_id, search),
            **self.screen.top(conversation_id),
        }

    def _add_sample(self, question: str, search: str) -> Updates:
        sample = self.backend.sample()
        if sample is None:
            return {}
        conversation_id = self.backend.new_conversation()
        self.uploads.add(conversation_id, [sample.path])
        chosen = {"question": question} if question in sample.questions else {}
        return {**self.open(conversation_id, search), **chosen}

    def _existing(self, conversation_id: str) -> str:
        known = conversation_id and self.backend.conversation(conversation_id) is not None
        return conversation_id if known else ""

    def _retry(self, conversation_id: str, reading: ReadingChoice, pages: str, search: str) -> Updates:
        if not self._existing(conversation_id):
            return {}
        if self.backend.current(conversation_id) is not None:
            return {"notice": self.screen.notice(text("ask.busy")), **_follow()}
        self.backend.retry(conversation_id, reading, pages)
        return self.open(conversation_id, search)


def _parse(message: str) -> tuple[str, str, str]:
    """(action, value, typed text); three empty ones for anything that app.js would not send."""
    try:
        sent = json.loads(message)
    except ValueError:
        return "", "", ""
    if not isinstance(sent, dict):
        return "", "", ""
    return str(sent.get("action", "")), str(sent.get("value", "")), str(sent.get("typed", ""))


def _follow() -> Updates:
    """A new value starts `watch` anew."""
    return {"follow": time.monotonic_ns()}


def _problem(error: Exception) -> str:
    shown = as_app_error(error)
    if shown is not error:
        log.error("A request of the page failed", exc_info=error)
    return one_line(error_card(shown.message, shown.hint))
