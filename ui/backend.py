"""What the page needs from the app, as one protocol. `ui.app_backend` fills it with the real app, tests with a fake.

Everything here may be called from any thread. Ids come back from the browser and are untrusted: an unknown id gives
None or does nothing, never an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from app.export import Exported
from app.turn import TurnState
from app.viewer import PageView, Place

if TYPE_CHECKING:
    from app.scans import OcrEstimate, Scans
    from ui.chooser import Plans

ReadingChoice = Literal["passages", "whole", "parts"]
Progress = Callable[[int, int], None]


class ConversationLike(Protocol):
    """updated: seconds since 1970."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def updated(self) -> float: ...
    @property
    def pinned(self) -> bool: ...


class MessageLike(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def details(self) -> dict[str, Any]: ...


class JobLike(Protocol):
    @property
    def conversation_id(self) -> str: ...
    @property
    def state(self) -> TurnState: ...
    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DocumentView:
    """One document of a conversation as the tray shows it. tokens is None while nobody has counted them.

    scans: pages without a text that OCR may read.
    """

    id: str
    name: str
    kind: str
    pages: int
    tokens: int | None = None
    notes: tuple[str, ...] = ()
    scans: Scans | None = None


@dataclass(frozen=True, slots=True)
class OcrView:
    """languages: those that scanned pages can be read in here, none where the program is missing; install then says in
    a sentence what to install. chosen: those that are ticked at first."""

    languages: tuple[str, ...]
    chosen: tuple[str, ...]
    install: str


@dataclass(frozen=True, slots=True)
class ModelView:
    """The model that answers. reading: what it answers from unless the user chooses. demo: say what it is."""

    label: str
    profile: str
    context: int
    reading: ReadingChoice
    demo: bool = False


@dataclass(frozen=True, slots=True)
class FitView:
    """Tokens of documents and turns against what the context leaves for them."""

    used: int
    total: int

    @property
    def fits(self) -> bool:
        return self.used <= self.total


@dataclass(frozen=True, slots=True)
class Sample:
    path: Path
    questions: tuple[str, ...]


class Backend(Protocol):
    @property
    def temp_dir(self) -> Path: ...
    @property
    def plans(self) -> Plans | None:
        """What reading takes and what is chosen; None where nothing is said about it."""
        ...

    def model(self) -> ModelView | None: ...
    def sample(self) -> Sample | None: ...

    def conversations(self, search: str = "") -> Sequence[ConversationLike]: ...
    def conversation(self, conversation_id: str) -> ConversationLike | None: ...
    def new_conversation(self) -> str: ...
    def rename(self, conversation_id: str, title: str) -> None: ...
    def delete(self, conversation_id: str) -> None:
        """With its documents, but for those that another conversation uses."""
        ...

    def messages(self, conversation_id: str) -> Sequence[MessageLike]: ...

    def documents(self, conversation_id: str) -> Sequence[DocumentView]: ...
    def add_file(
        self,
        conversation_id: str,
        path: Path,
        password: str | None,
        progress: Progress,
        cancel: threading.Event,
        languages: str = "",
    ) -> None:
        """Reads one file and adds it. languages: for OCR. Raises AppError (PasswordNeeded, NeedsOcr, ...)."""
        ...

    def ocr(self) -> OcrView: ...

    def ocr_estimate(self, pages: int, languages: str) -> OcrEstimate: ...

    def read_scans(
        self,
        conversation_id: str,
        document_id: str,
        languages: str,
        password: str | None,
        progress: Progress,
        cancel: threading.Event,
    ) -> None:
        """Reads the scanned pages of a document by OCR and puts the result in its place. Raises AppError."""
        ...

    def remove_document(self, conversation_id: str, document_id: str) -> None:
        """Takes it out of the conversation, and deletes it for good when no other one uses it."""
        ...

    def fit(self, conversation_id: str) -> FitView | None:
        """None while the tokens are being counted, and when they cannot be. Never waits for the model."""
        ...

    def counting(self, conversation_id: str) -> bool:
        """Whether `fit` and the documents' tokens will be known soon."""
        ...

    def ask(self, conversation_id: str, question: str, reading: ReadingChoice, pages: str) -> JobLike: ...
    def retry(self, conversation_id: str, reading: ReadingChoice, pages: str) -> JobLike:
        """Answers the last question once more; the new answer takes the place of the old one."""
        ...

    def ask_table(self, conversation_id: str, listed: str, reading: ReadingChoice) -> JobLike:
        """Answers many questions, one a line, as a table. Raises AppError for a list that cannot be used."""
        ...

    def table_file(self, message_id: str, ending: str) -> tuple[str, str] | None:
        """(media type, text) of a stored table as csv, md or jsonl."""
        ...

    def suggestions(self, conversation_id: str) -> Sequence[str]:
        """A few questions worth asking of its documents."""
        ...

    def current(self, conversation_id: str) -> JobLike | None: ...

    def export(self, conversation_id: str, format: str) -> Exported:
        """A conversation as a file of this format: md, json or docx. Raises AppError."""
        ...

    def look(self, place: Place, zoom: int, as_text: bool) -> PageView:
        """One page of a document. Raises AppError when it is not there."""
        ...

    def picture(self, document_id: str, page: int, zoom: int) -> bytes:
        """The page as PNG. Raises AppError."""
        ...
