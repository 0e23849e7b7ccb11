"""Files on their way into a conversation. The work runs in threads of its own, so a closed tab does not stop it.

Each Upload is replaced as a whole, so a screen may read the list at any time. A file stays listed until it is added,
or until the user dismisses the problem that it has. One file is read at a time; the others wait. A document whose
scanned pages are read by OCR is listed in the same way.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from app.errors import Cancelled, NeedsOcr, PasswordNeeded, as_app_error
from ui.backend import Backend

log = logging.getLogger(__name__)
UploadState = Literal["waiting", "reading", "locked", "scanned", "failed"]


@dataclass(frozen=True, slots=True)
class Upload:
    """One file. done and total count its pages while they are read; message and hint say what is wrong with it.

    scanned: it holds nothing but so many pictures of pages, and waits for a decision. languages: those in which its
    scanned pages are being recognised, "" for none; seconds_left is then known. document_id: the document of the
    conversation that is read anew, "" for a file on its way in.
    """

    id: str
    conversation_id: str
    path: Path
    name: str
    state: UploadState = "waiting"
    done: int = 0
    total: int = 0
    message: str = ""
    hint: str = ""
    scanned: int = 0
    languages: str = ""
    seconds_left: float | None = None
    document_id: str = ""

    @property
    def busy(self) -> bool:
        return self.state in ("waiting", "reading")

    @property
    def extension(self) -> str:
        return self.path.suffix.lstrip(".").upper()[:4] or "FILE"


class Uploads:
    """All uploads of a running page. Thread safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._uploads: dict[str, Upload] = {}
        self._cancels: dict[str, threading.Event] = {}
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="add-files")

    def of(self, conversation_id: str) -> tuple[Upload, ...]:
        with self._lock:
            return tuple(u for u in self._uploads.values() if u.conversation_id == conversation_id)

    def add(self, conversation_id: str, paths: list[Path]) -> None:
        for path in paths:
            upload = Upload(uuid.uuid4().hex, conversation_id, path, path.name)
            with self._lock:
                self._uploads[upload.id] = upload
            self._start(upload.id, None)

    def recognise(self, upload_id: str, languages: str) -> bool:
        """Tries a scanned file again, with OCR. False for one that does not wait for that."""
        changes = {"state": "waiting", "languages": languages, "message": "", "hint": "", "done": 0, "total": 0}
        if not self._change(upload_id, only_if="scanned", **changes):
            return False
        self._start(upload_id, None)
        return True

    def recognise_document(self, conversation_id: str, document_id: str, name: str, languages: str, pages: int) -> None:
        """Reads the scanned pages of a document by OCR; nothing is done where that is under way."""
        upload = Upload(
            uuid.uuid4().hex, conversation_id, Path(name), name, scanned=pages, languages=languages,
            document_id=document_id,
        )  # fmt: skip
        with self._lock:
            own = [u for u in self._uploads.values() if u.document_id == document_id]
            own = [u for u in own if u.conversation_id == conversation_id]
            if any(u.state != "failed" for u in own):
                return
            for failed in own:
                del self._uploads[failed.id]
            self._uploads[upload.id] = upload
        self._start(upload.id, None)

    def unlock(self, upload_id: str, password: str) -> None:
        """Tries a locked file again. The password is handed on and kept nowhere."""
        if self._change(upload_id, only_if="locked", state="waiting", message="", hint=""):
            self._start(upload_id, password)

    def close_one(self, upload_id: str) -> None:
        """Stops a file that is being read, forgets one that has a problem."""
        with self._lock:
            upload = self._uploads.get(upload_id)
            cancel = self._cancels.get(upload_id)
        if cancel is not None:
            cancel.set()
        if upload is not None and upload.state != "reading":
            self._forget(upload_id)

    def forget_conversation(self, conversation_id: str) -> None:
        for upload in self.of(conversation_id):
            self.close_one(upload.id)

    def close(self) -> None:
        with self._lock:
            cancels = list(self._cancels.values())
        for cancel in cancels:
            cancel.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, upload_id: str, password: str | None) -> None:
        cancel = threading.Event()
        with self._lock:
            self._cancels[upload_id] = cancel
        self._pool.submit(self._run, upload_id, password, cancel)

    def _run(self, upload_id: str, password: str | None, cancel: threading.Event) -> None:
        if not self._change(upload_id, only_if="waiting", state="reading"):
            return
        upload = self._uploads[upload_id]
        expected: float | None = None
        begin = time.monotonic()

        def progress(done: int, total: int) -> None:
            left = None
            if expected is not None:
                left = (time.monotonic() - begin) / done * (total - done) if done else expected
            self._change(upload_id, done=done, total=total, seconds_left=left)

        try:
            if upload.languages:
                expected = self._backend.ocr_estimate(upload.scanned, upload.languages).seconds
                self._change(upload_id, total=upload.scanned, seconds_left=expected)
            if upload.document_id:
                self._backend.read_scans(
                    upload.conversation_id, upload.document_id, upload.languages, password, progress, cancel
                )
            else:
                self._backend.add_file(
                    upload.conversation_id, upload.path, password, progress, cancel, upload.languages
                )
        except NeedsOcr as error:
            self._change(upload_id, state="scanned", message=error.message, hint="", scanned=error.pages)
        except PasswordNeeded as error:
            self._change(upload_id, state="locked", message=error.message, hint=error.hint)
        except Cancelled:
            self._forget(upload_id)
        except Exception as error:
            shown = as_app_error(error)
            if shown is not error:
                log.exception("A file could not be added")
            self._change(upload_id, state="failed", message=shown.message, hint=shown.hint)
        else:
            self._forget(upload_id)

    def _change(self, upload_id: str, only_if: str = "", **changes: object) -> bool:
        with self._lock:
            upload = self._uploads.get(upload_id)
            if upload is None or (only_if and upload.state != only_if):
                return False
            self._uploads[upload_id] = replace(upload, **changes)  # type: ignore[arg-type]
            return True

    def _forget(self, upload_id: str) -> None:
        """Ends an upload and deletes what it took in, unless another one still needs that.

        Gradio names folders by content, so uploads of equal files share one.
        """
        with self._lock:
            upload = self._uploads.pop(upload_id, None)
            self._cancels.pop(upload_id, None)
            if upload is None or upload.document_id:
                return
            temp, path = self._backend.temp_dir.resolve(), upload.path.resolve()
            if temp not in path.parents:
                return
            others = [other.path.resolve() for other in self._uploads.values()]
            if path.parent != temp and not any(path.parent in other.parents for other in others):
                shutil.rmtree(path.parent, ignore_errors=True)
            elif path not in others:
                path.unlink(missing_ok=True)
