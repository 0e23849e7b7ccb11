"""What stays of a document that is deleted: nothing in parts, in what was made of it, and in the table's own place."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from app import changes, conversations, documents, table_place
from app.before_reading.choice import store_choice, stored_choice
from app.before_reading.repository_map import use_map
from app.changes import Way, apply_changes, find_changes
from app.changes.versions import superseded
from app.errors import Cancelled
from app.pages import PageChoice
from app.wiring import App
from storage import Document

QUOTE = {"document_id": "", "document": "x", "page": 1, "label": "1", "quote": "the secret word", "status": "verified"}


def folder_in(app: App, root: Path) -> tuple[str, str]:
    """(conversation, document) of a folder of two files."""
    write(root, "a.py", "def first():\n    return 'one'\n")
    write(root, "b.py", f"def second():\n    return '{root.name}'\n")
    conversation = conversations.new(app).id
    (added,) = documents.add_files(app, conversation, [root])
    assert added.document is not None
    return conversation, added.document.id


def write(root: Path, name: str, text: str, age: float = 9000) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    when = time.time() - age
    os.utime(root / name, (when, when))


def test_findings_in_parts_go_with_their_document(app: App, facts_pdf: Path, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("The secret word is heron.")
    conversation = conversations.new(app).id
    gone, kept = (added.document for added in documents.add_files(app, conversation, [note, facts_pdf]))
    assert gone is not None
    assert kept is not None
    parts = [
        {"number": number, "document_id": id, "document": "x", "pages": [1], "state": "done",
         "quotes": [QUOTE | {"document_id": id}], "text": "the secret word", "dropped": 0, "key": str(number)}
        for number, id in enumerate((gone.id, kept.id), 1)
    ]  # fmt: skip
    prompt = {"model": "m", "start": True, "parts": [{"ids": "x"}]}
    message = app.library.add_message(
        conversation, "assistant", "Heron.", "complete", parts=parts, prompt=prompt, passages=[]
    )
    documents.detach(app, conversation, gone.id)
    details = app.library.message(message.id).details
    assert [part["document_id"] for part in details["parts"]] == [kept.id]
    assert not details.get("prompt"), "the prompt holds what was found in the parts"


def test_versions_and_map_of_a_removed_folder_go_with_it(app: App, tmp_path: Path) -> None:
    root = tmp_path / "repo"
    conversation, first = folder_in(app, root)
    use_map(app, conversation, app.library.document(first))
    write(root, "a.py", "def first():\n    return 'newer secret'\n", 600)
    again = apply_changes(app, conversation, first, "again")
    write(root, "b.py", "def second():\n    return 'newest secret'\n", 300)
    apply_changes(app, conversation, again.id, "append")
    documents.remove_document(app, again.id)
    assert app.library.documents(conversation) == []
    assert [document.name for document in app.library.documents() if document.name.startswith("repo")] == []


def test_a_table_reads_newer_versions_and_what_was_chosen(app: App, tmp_path: Path) -> None:
    root = tmp_path / "tabled"
    conversation, folder = folder_in(app, root)
    write(root, "a.py", "def first():\n    return 'newer'\n", 600)
    apply_changes(app, conversation, folder, "append")
    hidden = table_place.place(app, conversation)
    assert superseded(app.library, hidden) == superseded(app.library, conversation) != {}
    store_choice(app, conversation, PageChoice.parse("2", folder))
    assert table_place.place(app, conversation) == hidden
    assert stored_choice(app, hidden) == stored_choice(app, conversation)
    store_choice(app, conversation, None)
    table_place.place(app, conversation)
    assert stored_choice(app, hidden) is None


def test_files_that_go_back_and_forth_make_a_new_version_each_time(app: App, tmp_path: Path) -> None:
    root = tmp_path / "swinging"
    conversation, folder = folder_in(app, root)
    updates = []
    for number, word in enumerate(("three", "one", "three")):
        write(root, "a.py", f"def first():\n    return '{word}'\n", 600 - 60 * number)
        updates.append(apply_changes(app, conversation, folder, "append").id)
    assert [document.id for document in app.library.documents(conversation)] == [folder, *updates]
    last = documents.document_texts(app, conversation, None)[-1]
    assert last.id == updates[-1]
    assert "three" in last.pages[-1].text


def test_two_folders_of_the_same_content_change_each_for_itself(app: App, tmp_path: Path) -> None:
    conversation, first = folder_in(app, tmp_path / "one" / "same")
    second_conversation, second = folder_in(app, tmp_path / "two" / "same")
    assert first != second
    write(tmp_path / "two" / "same", "a.py", "def first():\n    return 'other'\n", 600)
    assert find_changes(app, conversation) == []
    (found,) = find_changes(app, second_conversation)
    assert found.changed == ("a.py",)
    apply_changes(app, second_conversation, second, "again")
    assert find_changes(app, second_conversation) == []


@pytest.mark.parametrize("way", ["append", "again"])
def test_a_folder_that_is_removed_while_it_is_read_again_stays_removed(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    root = tmp_path / f"left_{way}"
    conversation, folder = folder_in(app, root)
    write(root, "a.py", "def first():\n    return 'newer'\n", 600)
    read = changes._fresh

    def read_meanwhile(*arguments: Any) -> Document:
        fresh = read(*arguments)
        documents.detach(app, conversation, folder)
        return fresh

    monkeypatch.setattr(changes, "_fresh", read_meanwhile)
    with pytest.raises(Cancelled, match="taken out"):
        apply_changes(app, conversation, folder, way)
    assert app.library.documents(conversation) == []
    assert [document.name for document in app.library.documents() if document.name == root.name] == []
