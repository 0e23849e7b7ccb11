"""The page's buttons on the real app, without its engine: what is removed there is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import documents
from app.sample import SAMPLE_PDF
from app.settings import Settings
from app.viewer import Place
from app.wiring import App
from ui.app_backend import AppBackend


@pytest.fixture
def app(starter_model: Path, tmp_path: Path) -> Iterator[App]:
    with App.open(Settings(data_dir=tmp_path / "data", model=str(starter_model))) as opened:
        yield opened


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("The zebrafish protocol number is 5512.\n")
    return path


def attached(app: App, backend: AppBackend, note: Path) -> tuple[str, str]:
    """(conversation, document), with a turn that has read of the document."""
    conversation = backend.new_conversation()
    (added,) = documents.add_files(app, conversation, [note])
    assert added.document is not None
    part = {"document": added.document.id, "pages": [1], "digest": ""}
    passage = {"document_id": added.document.id, "document": "note.txt", "page": 1, "label": "1", "text": "zebrafish"}
    app.library.add_message(conversation, "assistant", "5512.", prompt={"parts": [part]}, passages=[passage])
    return conversation, added.document.id


def is_gone(app: App, document_id: str) -> bool:
    copies = list((app.data_dir / "documents").rglob("*.txt"))
    listed = document_id in [document.id for document in app.library.documents()]
    assert listed == bool(copies)
    return not listed


def test_the_remove_button_deletes_a_document_that_no_other_conversation_uses(
    app: App, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = AppBackend(app)
    first, document = attached(app, backend, note)
    second, _ = attached(app, backend, note)
    forgotten: list[str] = []
    monkeypatch.setattr(app.snapshot_writer, "forget", forgotten.append)
    backend.remove_document(first, document)
    assert backend.documents(first) == []
    assert set(forgotten) == {first}
    (message,) = app.library.messages(first)
    assert "prompt" not in message.details
    assert message.details["passages"] == []
    assert not is_gone(app, document)
    backend.remove_document(first, document)  # not its own any more
    assert not is_gone(app, document)
    backend.remove_document(second, document)
    assert is_gone(app, document)


def test_deleting_conversations_deletes_the_documents_of_the_last_one(app: App, note: Path) -> None:
    backend = AppBackend(app)
    first, document = attached(app, backend, note)
    second, _ = attached(app, backend, note)
    backend.delete(first)
    assert not is_gone(app, document)
    backend.delete(second)
    assert is_gone(app, document)


@pytest.mark.parametrize("button", ["remove", "delete"])
def test_no_picture_of_a_deleted_document_stays_in_memory(app: App, button: str) -> None:
    backend = AppBackend(app)
    conversation, document = attached(app, backend, SAMPLE_PDF)
    viewer = backend.viewer
    assert viewer.look(Place(document, 1)).picture
    assert viewer._pictures
    child = viewer.renderer._child
    assert child is not None
    if button == "remove":
        backend.remove_document(conversation, document)
    else:
        backend.delete(conversation)
    assert not viewer._pictures
    assert child._process.wait(20) is not None, "the process that had the file open is ended"
    viewer.close()


def test_a_file_read_for_a_conversation_that_is_gone_leaves_nothing(app: App, note: Path) -> None:
    (added,) = documents.add_files(app, "gone", [note])
    assert added.error is not None
    assert app.library.documents() == []
    assert not list((app.data_dir / "documents").rglob("*.txt"))
