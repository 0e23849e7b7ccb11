"""The real app behind the page: `ui.backend.Backend` in terms of app.wiring.App and the functions that act on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from app import assistant, conversations, documents, questions_table
from app.before_reading.choice import stored_choice
from app.errors import AppError
from app.export import Exported, export
from app.ingest import ocr as tesseract
from app.ingest import ocr_of, page_ranges
from app.ingest.files import tells_of_scans
from app.pages import PageChoice
from app.paths import Paths
from app.plan import choose_reading
from app.ready_questions import ready_questions
from app.sample import QUESTIONS, SAMPLE_PDF
from app.scans import OcrEstimate, Scans, ocr_estimate, read_scans, scans_of
from app.viewer import PageView, Place, Viewer
from ui.app_plans import AppPlans
from ui.backend import (
    ConversationLike,
    DocumentView,
    FitView,
    MessageLike,
    ModelView,
    OcrView,
    Progress,
    ReadingChoice,
    Sample,
)
from ui.strings import text

if TYPE_CHECKING:
    from app.jobs import Job
    from app.wiring import App

log = logging.getLogger(__name__)


class AppBackend:
    """Holds an open App; closing it stays with who opened it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.viewer = Viewer(app)
        self._notes: dict[str, tuple[str, ...]] = {}
        self._scanned: dict[str, Scans | None] = {}
        self._by_ocr: dict[str, tuple[str, ...]] = {}
        self._suggestions: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._counter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="count-tokens")
        self._counts: dict[tuple[str, ...], Future[None]] = {}
        self.plans = AppPlans(app, self._count)

    @property
    def temp_dir(self) -> Path:
        return Paths(self.app.data_dir).temp

    def model(self) -> ModelView:
        model = self.app.model
        reading = choose_reading("auto", self.app.settings.reading, model.parameters, True)
        return ModelView(
            label=text("status.demo_name") if model.is_demo else model.label,
            profile=self.app.profile,
            context=self.app.context,
            reading="passages" if reading == "none" else reading,
            demo=model.is_demo,
        )

    def sample(self) -> Sample:
        return Sample(SAMPLE_PDF, QUESTIONS)

    def conversations(self, search: str = "") -> Sequence[ConversationLike]:
        return conversations.list(self.app, search)

    def conversation(self, conversation_id: str) -> ConversationLike | None:
        # Looked up in the list, so that an id from the browser that no longer exists is no error.
        known = self.app.library.conversations() if conversation_id else ()
        return next((c for c in known if c.id == conversation_id), None)

    def new_conversation(self) -> str:
        return conversations.new(self.app).id

    def rename(self, conversation_id: str, title: str) -> None:
        conversations.rename(self.app, conversation_id, title)

    def delete(self, conversation_id: str) -> None:
        conversations.delete(self.app, conversation_id, with_documents=True)
        self.viewer.forget()

    def messages(self, conversation_id: str) -> Sequence[MessageLike]:
        return conversations.messages(self.app, conversation_id)

    def documents(self, conversation_id: str) -> list[DocumentView]:
        tokens = self._tokens_by_document(conversation_id)
        return [
            DocumentView(d.id, d.name, d.kind, d.pages, tokens.get(d.id), self._notes_of(d.id), self._scans(d.id))
            for d in self.app.library.documents(conversation_id)
        ]

    def add_file(
        self,
        conversation_id: str,
        path: Path,
        password: str | None,
        progress: Progress,
        cancel: threading.Event,
        languages: str = "",
    ) -> None:
        self.app.engine_service.warm_up()  # a question will follow: the model loads while the file is read
        passwords = {str(path): password} if password else None
        (added,) = documents.add_files(
            self.app,
            conversation_id,
            [path],
            passwords=passwords,
            progress=lambda _, done, total: progress(done, total),
            cancel=cancel,
            ocr=languages or None,
        )
        if added.error is not None:
            raise added.error
        if added.offered:
            self.plans.look_anew(conversation_id)
        if added.document is not None:
            self._notes[added.document.id] = tuple(w for w in added.warnings if not tells_of_scans(w))

    def ocr(self) -> OcrView:
        languages = tesseract.readable()
        wanted = tuple(name for name in (self.app.settings.ocr or "eng").split("+") if name in languages)
        return OcrView(languages, wanted or languages[:1], tesseract.INSTALL)

    def ocr_estimate(self, pages: int, languages: str) -> OcrEstimate:
        return ocr_estimate(self.app.library, pages, languages)

    def read_scans(
        self,
        conversation_id: str,
        document_id: str,
        languages: str,
        password: str | None,
        progress: Progress,
        cancel: threading.Event,
    ) -> None:
        if self.app.engine_service.current(conversation_id) is not None:
            raise AppError(text("doc.in_use"), text("ocr.in_use_hint"))
        read_scans(
            self.app, conversation_id, document_id, languages, password=password, progress=progress, cancel=cancel
        )

    def remove_document(self, conversation_id: str, document_id: str) -> None:
        if self.app.engine_service.current(conversation_id) is not None:
            raise AppError(text("doc.in_use"), text("doc.in_use_hint"))
        documents.detach(self.app, conversation_id, document_id)
        self.viewer.forget()

    def fit(self, conversation_id: str) -> FitView | None:
        """Documents read whole plus all turns, against the context less the room for an answer."""
        fit = self._fit(conversation_id, stored_choice(self.app, conversation_id))
        if fit is None:
            return None
        count = self.app.face().tokenizer.count
        turns = sum(count(message.text) for message in self.messages(conversation_id))
        return FitView(fit.prompt_tokens + turns, fit.context - fit.answer_room)

    def ask(self, conversation_id: str, question: str, reading: ReadingChoice, pages: str) -> Job:
        return assistant.ask(self.app, conversation_id, question, reading=reading, pages=_choice(pages))

    def retry(self, conversation_id: str, reading: ReadingChoice, pages: str) -> Job:
        return conversations.regenerate(
            self.app, conversation_id, reading=reading, pages=_choice(pages) or self._chosen(conversation_id, reading)
        )

    def _chosen(self, conversation_id: str, reading: ReadingChoice) -> PageChoice | None:
        return None if reading == "passages" else stored_choice(self.app, conversation_id)

    def ask_table(self, conversation_id: str, listed: str, reading: ReadingChoice) -> Job:
        questions = questions_table.read_questions(listed)
        return questions_table.answer_table(self.app, conversation_id, questions, reading=reading)

    def table_file(self, message_id: str, ending: str) -> tuple[str, str] | None:
        return questions_table.table_file(self.app, message_id, ending)

    def suggestions(self, conversation_id: str) -> Sequence[str]:
        key = tuple(document.id for document in self.app.library.documents(conversation_id))
        if key not in self._suggestions:
            self._suggestions[key] = ready_questions(self.app, conversation_id)
        return self._suggestions[key]

    def current(self, conversation_id: str) -> Job | None:
        return self.app.engine_service.current(conversation_id)

    def export(self, conversation_id: str, format: str) -> Exported:
        return export(self.app, conversation_id, format)

    def look(self, place: Place, zoom: int, as_text: bool) -> PageView:
        return self.viewer.look(place, zoom=zoom, as_text=as_text)

    def picture(self, document_id: str, page: int, zoom: int) -> bytes:
        return self.viewer.picture(document_id, page, zoom)

    def _tokens_by_document(self, conversation_id: str) -> dict[str, int]:
        fit = self._fit(conversation_id)
        return dict(fit.tokens_by_document) if fit is not None else {}

    def _fit(self, conversation_id: str, choice: PageChoice | None = None) -> documents.Fit | None:
        """Counting needs the model's tokenizer, which takes seconds to read: the first time it is done elsewhere."""
        count = self._count(conversation_id)
        if not count.done() or count.exception() is not None:
            return None
        return documents.fit(self.app, conversation_id, choice)

    def counting(self, conversation_id: str) -> bool:
        return bool(conversation_id) and not self._count(conversation_id).done()

    def _count(self, conversation_id: str) -> Future[None]:
        key = tuple(document.id for document in self.app.library.documents(conversation_id))
        if key not in self._counts:
            self._counts[key] = self._counter.submit(self._count_now, conversation_id)
        return self._counts[key]

    def _count_now(self, conversation_id: str) -> None:
        """A model that cannot be read gives no counts: a question says why, the rest of the page goes on."""
        try:
            documents.fit(self.app, conversation_id)
        except AppError as error:
            log.warning("Tokens cannot be counted: %s", error.message)
            raise

    def _notes_of(self, document_id: str) -> tuple[str, ...]:
        """What was said when the file was read in this run, and which pages are there by OCR."""
        if document_id not in self._by_ocr:
            document = self.app.library.document(document_id)
            pages = self.app.library.recognised_pages(document_id)
            languages = ocr_of(document.extractor)
            note = text("ocr.done", pages=page_ranges(pages, 4), languages=languages) if pages else ""
            self._by_ocr[document_id] = (note,) if pages else ()
        return self._by_ocr[document_id] + self._notes.get(document_id, ())

    def _scans(self, document_id: str) -> Scans | None:
        """Looked up once: a document never changes."""
        if document_id not in self._scanned:
            document = self.app.library.document(document_id)
            self._scanned[document_id] = scans_of(self.app.library, document)
        return self._scanned[document_id]


def _choice(pages: str) -> PageChoice | None:
    return PageChoice.parse(pages) if pages.strip() else None
