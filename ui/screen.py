"""What each part of the page shows for a conversation, as updates for its components.

Keys of the updates are the names in `ui.page.PARTS`; a part that is left out stays as it is. Reads the app, changes
nothing. The browser holds nothing but the conversation's id.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from app.turn import TurnState
from ui.backend import Backend, FitView, Sample
from ui.chooser import show_plan
from ui.render.documents import render_tray
from ui.render.html import escape, one_line
from ui.render.messages import render_empty, render_history, render_live
from ui.render.sidebar import Editing, render_sidebar, title_of
from ui.render.status import last_stats, render_status, render_top
from ui.scans import ScanOffers
from ui.strings import text
from ui.uploads import Uploads

Updates = dict[str, Any]


class Screen:
    def __init__(self, backend: Backend, uploads: Uploads) -> None:
        self.backend = backend
        self.uploads = uploads
        self.scans = ScanOffers(backend, uploads)

    def everything(self, conversation_id: str, search: str = "", notice: str = "") -> Updates:
        """All parts, for a conversation that has just been opened; "" is one that does not exist yet."""
        return {
            **self.sidebar(conversation_id, search),
            **self.top(conversation_id),
            **self.messages(conversation_id),
            **self.documents(conversation_id),
            "notice": self.notice(notice),
        }

    def sidebar(self, conversation_id: str, search: str = "", editing: Editing | None = None) -> Updates:
        found = self.backend.conversations(search.strip())
        return {"side": render_sidebar(found, conversation_id, search, editing or Editing())}

    def top(self, conversation_id: str) -> Updates:
        conversation = self.backend.conversation(conversation_id) if conversation_id else None
        title = title_of(conversation) if conversation else text("side.untitled")
        return {"top": render_top(title, conversation_id, self.backend.model())}

    def messages(self, conversation_id: str) -> Updates:
        """History, the running answer, the status line and which of Send and Stop is there."""
        messages = self.backend.messages(conversation_id) if conversation_id else ()
        job = self.backend.current(conversation_id) if conversation_id else None
        if messages or job is not None:
            history = render_history(messages, job.state.message_id if job else "")
        else:
            history = self._empty(conversation_id)
        return {
            "history": history,
            **self.live(job.state if job else None),
            "status": self.status(conversation_id),
        }

    def status(self, conversation_id: str) -> str:
        messages = self.backend.messages(conversation_id) if conversation_id else ()
        return render_status(self.backend.model(), self._fit(conversation_id), last_stats(messages))

    def live(self, state: TurnState | None) -> Updates:
        busy = state is not None
        return {"live": render_live(state), "send": gr.update(visible=not busy), "stop": gr.update(visible=busy)}

    def documents(self, conversation_id: str) -> Updates:
        if not conversation_id:
            return {"tray": render_tray((), ()), "scans": one_line(""), "plan": show_plan(None, "")}
        scans, offered = self.scans.render(conversation_id)
        return {
            "tray": render_tray(self.backend.documents(conversation_id), self.uploads.of(conversation_id), offered),
            "scans": scans,
            "plan": show_plan(self.backend.plans, conversation_id),
        }

    def notice(self, sentence: str) -> str:
        return one_line(f'<p class="ub-notice" role="status">{escape(sentence)}</p>' if sentence else "")

    def _empty(self, conversation_id: str) -> str:
        documents = self.backend.documents(conversation_id) if conversation_id else ()
        busy = any(upload.busy for upload in self.uploads.of(conversation_id))
        sample = self.backend.sample()
        if busy:
            return render_empty(sample, "reading")
        if not documents:
            return render_empty(sample, "new")
        is_sample = sample is not None and all(document.name == sample.path.name for document in documents)
        if is_sample:
            return render_empty(sample, "ready")
        return render_empty(Sample(Path(), tuple(self.backend.suggestions(conversation_id))), "ready")

    def _fit(self, conversation_id: str) -> FitView | None:
        return self.backend.fit(conversation_id) if conversation_id else None
