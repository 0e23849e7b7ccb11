"""The real app behind the chooser: `ui.chooser.Plans` in terms of app.before_reading and app.changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from app import changes as folder_changes
from app.before_reading import ReadingPlan, reading_plan
from app.before_reading.choice import store_choice
from app.before_reading.repository_map import use_map
from app.changes import Changes
from app.errors import AppError, WrongUse
from app.pages import PageChoice
from ui.strings import text

if TYPE_CHECKING:
    from app.wiring import App

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 15.0
"""A folder is looked at again when its conversation is shown and the last look is older than this."""


class AppPlans:
    """count: counts the tokens of a conversation's documents, once; a plan is quick when it is done."""

    def __init__(self, app: App, count: Callable[[str], Future[None]]) -> None:
        self.app = app
        self._count = count
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="look-at-folders")
        self._looks: dict[str, tuple[float, Future[None]]] = {}
        self._found: dict[str, tuple[Changes, ...]] = {}
        self._left: dict[str, set[Changes]] = {}

    def plan(self, conversation_id: str, question: str = "", *, suggest: bool = False) -> ReadingPlan | None:
        if not self._known(conversation_id) or not self._counted(conversation_id):
            return None
        if not self.app.library.documents(conversation_id):
            return None
        propose = "always" if suggest else "never"
        return reading_plan(self.app, conversation_id, question=question, propose=propose)

    def changes(self, conversation_id: str) -> Sequence[Changes]:
        left = self._left.get(conversation_id, set())
        return tuple(found for found in self._found.get(conversation_id, ()) if found not in left)

    def look(self, conversation_id: str) -> None:
        if not self._known(conversation_id) or not self._counted(conversation_id):
            return
        known = self._looks.get(conversation_id)
        if known is None or (known[1].done() and time.monotonic() - known[0] > LOOK_AGAIN_S):
            self._looks[conversation_id] = (time.monotonic(), self._pool.submit(self._find, conversation_id))

    def look_anew(self, conversation_id: str) -> None:
        """At once, because something was added that may be a newer version."""
        self._looks.pop(conversation_id, None)
        self._left.pop(conversation_id, None)
        self.look(conversation_id)

    def looking(self, conversation_id: str) -> bool:
        known = self._looks.get(conversation_id)
        return known is not None and not known[1].done()

    def choose(self, conversation_id: str, ranges: dict[str, str]) -> None:
        documents = {document.id: document for document in self._documents(conversation_id)}
        choice = PageChoice()
        for document_id, pages in ranges.items():
            if document_id in documents:
                choice = choice.join(PageChoice.parse(pages, document_id))
                choice.pages(document_id, documents[document_id].pages)  # WrongUse for a page that is not there
        store_choice(self.app, conversation_id, choice if choice.documents else None)

    def choose_suggested(self, conversation_id: str, kind: str, question: str) -> None:
        plan = reading_plan(self.app, conversation_id, question=question, propose="always")
        found = next((suggestion for suggestion in plan.suggestions if suggestion.kind == kind), None)
        if found is None:
            raise WrongUse(text("choose.gone"), text("choose.gone_hint"))
        store_choice(self.app, conversation_id, found.choice)

    def choose_map(self, conversation_id: str, document_id: str) -> None:
        for document in self._documents(conversation_id):
            if document.id == document_id:
                use_map(self.app, conversation_id, document)
                self._count(conversation_id).exception()  # waits: a new document is counted too
                return
        raise WrongUse(text("choose.gone"), text("choose.gone_hint"))

    def take_changes(self, conversation_id: str, document_id: str, way: str) -> None:
        if self.app.engine_service.current(conversation_id) is not None:
            raise AppError(text("doc.in_use"), text("changes.in_use_hint"))
        self._looks.pop(conversation_id, None)
        self._found.pop(conversation_id, None)
        folder_changes.apply_changes(self.app, conversation_id, document_id, "append" if way == "append" else "again")
        self._count(conversation_id).exception()

    def leave_changes(self, conversation_id: str, document_id: str) -> None:
        """Not shown again until something else changes."""
        self._left.setdefault(conversation_id, set()).update(
            found for found in self.changes(conversation_id) if found.document_id == document_id
        )
        if self._known(conversation_id):
            folder_changes.dismiss(self.app, conversation_id, document_id)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _find(self, conversation_id: str) -> None:
        try:
            self._found[conversation_id] = tuple(folder_changes.find_changes(self.app, conversation_id))
        except AppError as error:
            log.warning("Folders could not be looked at: %s", error.message)

    def _documents(self, conversation_id: str):
        return self.app.library.documents(conversation_id) if self._known(conversation_id) else []

    def _counted(self, conversation_id: str) -> bool:
        count = self._count(conversation_id)
        return count.done() and count.exception() is None

    def _known(self, conversation_id: str) -> bool:
        return any(found.id == conversation_id for found in self.app.library.conversations())
