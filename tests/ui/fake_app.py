"""A small app behind the page: the real one's shape, slow in a known way, so that browser tests are exact.

It keeps everything in memory and answers by rule: the question decides (see `FakeBackend._run`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.citations import Citation
from app.errors import AppError, BadInput, Cancelled, DoesNotFit, NeedsOcr, PasswordNeeded
from app.evidence import DocumentLook, Evidence, SentenceLook
from app.parts.state import PartsState, PartState
from app.parts.text import so_far
from app.questions_table import FORMATS, TableRow, TableState, read_questions, table_from
from app.scans import OcrEstimate, ScannedFile, Scans
from app.turn import Passage, TurnState, TurnStats
from app.words import sentences
from ui.backend import DocumentView, FitView, ModelView, OcrView, Sample


@dataclass(frozen=True)
class FakeConversation:
    id: str
    title: str
    updated: float
    pinned: bool = False


@dataclass(frozen=True)
class FakeMessage:
    id: str
    role: str
    text: str
    state: str = "complete"
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeCitation:
    document_id: str
    document: str
    page: int
    label: str
    quote: str
    status: str
    places: tuple[int, ...] = (3,)


def looked(answer: str, name: str) -> Evidence:
    """A document of 600 pages and one of 14, most attention on page 412; each sentence has a page of its own."""
    long = [0.0006 + 0.08 * (page == 412) + 0.03 * (page % 97 == 0) for page in range(1, 601)]
    short = [0.002 + 0.12 * (page == 3) for page in range(1, 15)]
    total = sum(long) + sum(short)
    documents = (
        DocumentLook("d1", name, tuple(range(1, 601)), tuple(share / total for share in long), {412: "xii"}),
        DocumentLook("d2", "short notes.txt", tuple(range(1, 15)), tuple(share / total for share in short), {}),
    )
    found = enumerate(sentences(answer))
    return Evidence(
        documents,
        tuple(SentenceLook(a, b, ((0, 30 * number + 5, 0.6), (1, 2, 0.2))) for number, (a, b) in found),
    )


class FakeJob:
    def __init__(self, conversation_id: str, state: TurnState) -> None:
        self.conversation_id = conversation_id
        self.state = state
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


ANSWER = (
    "The **warranty** lasts *24 months* from the date of delivery.\n\n"
    "1. Keep the invoice.\n2. Register the device within 30 days.\n\n"
    "| Part | Months |\n| --- | --- |\n| Motor | 24 |\n| Battery | 12 |\n\n"
    "```python\nmonths = 24\n```"
)
PASSAGE = (
    "The manufacturer grants a warranty of 24 months from the date of delivery. The warranty covers defects in "
    "material and workmanship. Wear parts such as filters and batteries are covered for 12 months."
)


class FakeBackend:
    """step: seconds between two states of a turn."""

    plans = None
    ocr_languages: tuple[str, ...] = ("deu", "eng")

    def __init__(self, temp_dir: Path, sample: Path | None = None, step: float = 0.05) -> None:
        self._temp = temp_dir
        self._sample = sample
        self.step = step
        self.answer = ANSWER
        self._ids = itertools.count(1)
        self._holds: dict[str, threading.Event] = {}
        self._conversations: dict[str, FakeConversation] = {}
        self._messages: dict[str, list[FakeMessage]] = {}
        self._documents: dict[str, list[DocumentView]] = {}
        self._jobs: dict[str, FakeJob] = {}

    @contextmanager
    def held(self, where: str) -> Iterator[None]:
        """While inside, work stops in the middle of "pages", "reading" or "answering"."""
        self._holds[where] = threading.Event()
        try:
            yield
        finally:
            self._holds.pop(where).set()

    def _pause(self, where: str, cancelled: threading.Event) -> None:
        hold = self._holds.get(where)
        while hold is not None and not hold.is_set() and not cancelled.is_set():
            hold.wait(0.02)

    @property
    def temp_dir(self) -> Path:
        return self._temp

    def model(self) -> ModelView:
        return ModelView("SmolLM2 135M", "cpu", 12288, "passages", demo=True)

    def sample(self) -> Sample | None:
        questions = ("How long is the warranty?", "How is the filter cleaned?", "What does error E4 mean?")
        return Sample(self._sample, questions) if self._sample else None

    def conversations(self, search: str = "") -> list[FakeConversation]:
        found = [c for c in self._conversations.values() if search.lower() in c.title.lower()]
        return sorted(found, key=lambda c: -c.updated)

    def conversation(self, conversation_id: str) -> FakeConversation | None:
        return self._conversations.get(conversation_id)

    def new_conversation(self, title: str = "", updated: float | None = None) -> str:
        made = FakeConversation(f"c{next(self._ids)}", title, updated or time.time())
        self._conversations[made.id] = made
        self._messages[made.id], self._documents[made.id] = [], []
        return made.id

    def rename(self, conversation_id: str, title: str) -> None:
        self._conversations[conversation_id] = replace(self._conversations[conversation_id], title=title)

    def delete(self, conversation_id: str) -> None:
        for table in (self._conversations, self._messages, self._documents):
            table.pop(conversation_id, None)

    def messages(self, conversation_id: str) -> list[FakeMessage]:
        return list(self._messages.get(conversation_id, ()))

    def documents(self, conversation_id: str) -> list[DocumentView]:
        return list(self._documents.get(conversation_id, ()))

    def ocr(self) -> OcrView:
        return OcrView(self.ocr_languages, self.ocr_languages[:1], "Install the program tesseract.")

    def ocr_estimate(self, pages: int, languages: str) -> OcrEstimate:
        return OcrEstimate(3.0 * pages * (languages.count("+") + 1), False)

    def read_scans(
        self, conversation_id: str, document_id: str, languages: str, password: str | None, progress: Any, cancel: Any
    ) -> None:
        place, found = next(
            (place, d) for place, d in enumerate(self._documents[conversation_id]) if d.id == document_id
        )
        assert found.scans is not None
        for page in range(1, found.scans.pages + 1):
            self._pause("ocr", cancel)
            if cancel.wait(self.step):
                raise Cancelled("Stopped.")
            progress(page, found.scans.pages)
        notes = (f"Recognised by OCR ({languages}): pages 3-4.",)
        fresh = replace(found, id=f"d{next(self._ids)}", scans=None, notes=notes)
        self._documents[conversation_id][place] = fresh

    def add_file(
        self, conversation_id: str, path: Path, password: str | None, progress: Any, cancel: Any, languages: str = ""
    ) -> None:
        name = path.name
        if "pictures" in name and not languages:
            raise NeedsOcr(f"{name} is scanned: pages 1-20 of 20 have pictures but no text.", pages=20)
        if "broken" in name:
            raise BadInput(f"{name} is damaged: it ends in the middle.", "Download or copy it again.")
        if "locked" in name and password != "secret":
            raise PasswordNeeded(f"{name} is encrypted.", "Type its password.")
        for page in range(1, 21):
            if cancel.wait(self.step):
                raise Cancelled("Stopped.")
            progress(page, 20)
            if page == 8:
                self._pause("pages", cancel)
        id = f"d{next(self._ids)}"
        scans = Scans(id, name, (ScannedFile("", (3, 4)),)) if "scan" in name else None
        kind = "pdf" if name.endswith("pdf") else "text"
        self._documents[conversation_id].append(DocumentView(id, name, kind, 20, 6150, (), scans))

    def remove_document(self, conversation_id: str, document_id: str) -> None:
        self._documents[conversation_id] = [d for d in self._documents[conversation_id] if d.id != document_id]

    def fit(self, conversation_id: str) -> FitView:
        used = sum(d.tokens or 0 for d in self._documents.get(conversation_id, ()))
        return FitView(used + 40 * len(self._messages.get(conversation_id, ())), 11776)

    def counting(self, conversation_id: str) -> bool:
        return False

    def suggestions(self, conversation_id: str) -> tuple[str, ...]:
        return ("Summarize this document.", "What does the document say about “Cleaning”?")

    def ask_table(self, conversation_id: str, listed: str, reading: str) -> FakeJob:
        questions = read_questions(listed)
        answer_id = f"m{next(self._ids)}"
        table = TableState(questions)
        self._messages[conversation_id] += [
            FakeMessage(f"m{next(self._ids)}", "user", "\n".join(questions), details={"questions": len(questions)}),
            FakeMessage(answer_id, "assistant", "", "streaming"),
        ]
        job = FakeJob(conversation_id, TurnState("queued", message_id=answer_id, table=table))
        self._jobs[conversation_id] = job
        threading.Thread(target=self._run_table, args=(job, table), daemon=True).start()
        return job

    def table_file(self, message_id: str, ending: str) -> tuple[str, str] | None:
        if ending not in FORMATS:
            return None
        every = [message for messages in self._messages.values() for message in messages]
        for message in every:
            table = table_from(message.details) if message.id == message_id else None
            if table is not None:
                media_type, write = FORMATS[ending]
                return media_type, write(table.rows)
        return None

    def _run_table(self, job: FakeJob, table: TableState) -> None:
        for number, question in enumerate(table.questions, 1):
            if job.cancelled.wait(self.step):
                break
            if number == 3:
                self._pause("rows", job.cancelled)
                if job.cancelled.is_set():
                    break
            quote = PASSAGE[:40]
            cited = (Citation("d1", "manual.pdf", number, "", quote, "verified" if number % 2 else "attributed"),)
            row = TableRow(question, f"Answer <b>{number}</b> | with a bar.", cited)
            table = replace(table, rows=(*table.rows, row))
            job.state = replace(job.state, phase="answering", table=table)
        complete = len(table.rows) == len(table.questions)
        self._end(job, "done" if complete else "stopped", table=table)

    def _read_parts(self, job: FakeJob, show: Any, name: str) -> bool:
        """Twelve windows of ten pages, with something in the third and the seventh; False when stopped."""
        parts = [PartState(n + 1, "d1", name, tuple(range(10 * n + 1, 10 * n + 11)), key=f"k{n}") for n in range(12)]
        for n in range(12):
            parts[n] = replace(parts[n], state="asking")
            if show(
                phase="reading", reading="parts", parts=PartsState(tuple(parts), 2), read_done=1000 * n,
                read_total=12000, eta_s=12.0 - n,
            ):  # fmt: skip
                return False
            if n == 4:
                self._pause("parts", job.cancelled)
            if job.cancelled.is_set():
                return False
            found = (Citation("d1", name, 10 * n + 4, "", PASSAGE[:75], "verified"),) if n in (2, 6) else ()
            parts[n] = replace(parts[n], state="done", quotes=found)
            show(parts=PartsState(tuple(parts), 2))
        show(parts=PartsState(tuple(parts), 2, level=1), read_done=0, read_total=100)
        return True

    def current(self, conversation_id: str) -> FakeJob | None:
        job = self._jobs.get(conversation_id)
        return job if job is not None and not job.state.finished else None

    def retry(self, conversation_id: str, reading: str, pages: str) -> FakeJob:
        asked = [m.text for m in self._messages[conversation_id] if m.role == "user"]
        self._messages[conversation_id] = self._messages[conversation_id][:-2]
        return self.ask(conversation_id, asked[-1], reading, pages)

    def ask(self, conversation_id: str, question: str, reading: str, pages: str) -> FakeJob:
        if question == "raise":
            raise AppError("The disk is full.", "Free some space and ask again.")
        if not self._conversations[conversation_id].title:
            self.rename(conversation_id, question[:60])
        answer_id = f"m{next(self._ids)}"
        self._messages[conversation_id] += [
            FakeMessage(f"m{next(self._ids)}", "user", question),
            FakeMessage(answer_id, "assistant", "", "streaming"),
        ]
        job = FakeJob(
            conversation_id,
            TurnState("queued", message_id=answer_id, reading="whole" if reading == "whole" else "passages"),
        )
        self._jobs[conversation_id] = job
        threading.Thread(target=self._run, args=(job, question, reading, pages), daemon=True).start()
        return job

    def _run(self, job: FakeJob, question: str, reading: str, pages: str) -> None:
        def show(**changes: Any) -> bool:
            job.state = replace(job.state, **changes)
            return job.cancelled.wait(self.step)

        documents = self._documents[job.conversation_id]
        name = documents[0].name if documents else "manual.pdf"
        if "too long" in question and reading == "whole" and not pages:
            error = DoesNotFit(
                "The documents take 48,210 tokens, and this model has room for 11,776.",
                "Choose pages, or answer from the best passages.",
                needed_tokens=48210,
                available_tokens=11776,
            )
            return self._end(job, "failed", error=error)
        if "crash" in question:
            return self._end(job, "failed", error=AppError("The model file is damaged.", "Download the model again."))
        found = tuple(Passage("d1", name, page, str(page), PASSAGE, 9.0 - page) for page in (4, 11, 12, 17, 18))
        if show(phase="reading", passages=found, read_total=6150):
            return self._end(job, "stopped")
        if reading == "parts" and not self._read_parts(job, show, name):
            assert job.state.parts is not None
            return self._end(job, "stopped", answer=so_far(job.state.parts))
        for done in range(0, 6151, 615) if reading != "parts" else ():
            if show(read_done=done, eta_s=(6150 - done) / 600):
                return self._end(job, "stopped")
            if done == 1845:
                self._pause("reading", job.cancelled)
        text = question.removeprefix("say ") if question.startswith("say ") else self.answer
        words = text.split(" ")
        for count in range(1, len(words) + 1):
            if show(phase="answering", answer=" ".join(words[:count])):
                return self._end(job, "stopped")
            if count == len(words) // 2:
                self._pause("answering", job.cancelled)
        citations = (
            FakeCitation("d1", name, 4, "4", PASSAGE[:75], "attributed"),
            FakeCitation("d1", name, 12, "xii", "Wear parts such as filters and batteries", "attributed"),
        )
        stats = TurnStats(
            6210, 6150, 0, 60, 1.8, 47.0, len(words), "stop", 1.0, 0, "cpu", "m", "bf16", "exact", "passages"
        )
        evidence = looked(text, name) if "looked" in question else None
        self._end(job, "done", citations=citations, stats=stats, evidence=evidence)
        return None

    def _end(self, job: FakeJob, phase: str, **changes: Any) -> None:
        state = replace(job.state, phase=phase, **changes)
        details: dict[str, Any] = {
            "passages": [
                {"document": p.document, "page": p.page, "label": p.label, "text": p.text} for p in state.passages
            ],
            "citations": [vars(c) for c in state.citations],
            "evidence": state.evidence.to_dict() if state.evidence else None,
            "stats": state.stats.as_dict() if state.stats else None,
            "reading": state.reading,
            "parts": state.parts.rows() if state.parts else None,
            "parts_without_text": state.parts.without_text if state.parts else 0,
            "table": state.table.as_dict() if state.table else None,
        }
        if state.error is not None:
            details["error"] = {
                "message": state.error.message,
                "hint": state.error.hint,
                "exit_code": state.error.exit_code,
            }
        states = {"done": "complete", "stopped": "stopped", "failed": "failed"}
        self._messages[job.conversation_id] = [
            replace(m, text=state.answer, state=states[phase], details=details) if m.id == state.message_id else m
            for m in self._messages[job.conversation_id]
        ]
        job.state = state
