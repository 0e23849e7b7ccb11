"""`unabridged cache`: what is stored and of whom, and pinned documents that no quota takes away."""

import json
from pathlib import Path

import pytest

from app import pins
from app.cli import main
from app.settings import Settings
from app.wiring import App
from storage import Library, SnapshotStore
from tests.storage.helpers import chain


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["cache", *words]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str):
    return json.loads(output(capsys, *words, "--json"))


@pytest.fixture
def read_one(capsys, data_dir: Path, tmp_path: Path, starter_model: Path) -> tuple[str, str]:
    """A document that a conversation has read, and another conversation without one -> their ids."""
    file = tmp_path / "notes.txt"
    file.write_text("The lamp was changed in 1912.")
    assert main(["library", "add", str(file)]) == 0
    capsys.readouterr()
    with Library.open(data_dir) as library, SnapshotStore.open(data_dir, 10**9) as store:
        (reader,) = library.conversations()
        other = library.create_conversation("Other talk")
        store.put(reader.id, "f", chain("doc", 3, size=1000))
        store.put(other.id, "f", chain("talk", 2, size=2000))
    return reader.id, other.id


def test_stats_name_the_conversations(capsys, read_one):
    reader, other = read_one
    found = as_json(capsys, "stats")
    by_id = {row["id"]: row for row in found["conversations"]}
    assert (by_id[reader]["tokens"], by_id[reader]["rows"]) == (3 * 64 + 2, 4)
    assert (by_id[other]["title"], by_id[other]["pinned"]) == ("Other talk", False)
    assert sum(row["bytes"] for row in by_id.values()) == found["bytes"]
    assert (found["quota_origin"], found["pinned_bytes"], found["pinned_documents"]) == ("default", 0, [])
    assert "Other talk" in output(capsys, "stats")


def test_a_pinned_document_stays(capsys, read_one):
    reader, other = read_one
    assert "No document is pinned" in output(capsys, "pin")
    (pinned,) = as_json(capsys, "pin", "notes.txt")
    assert pinned["pinned"]
    assert [row["name"] for row in as_json(capsys, "pin")] == ["notes.txt"]
    held = as_json(capsys, "stats")
    assert {row["id"]: row["pinned"] for row in held["conversations"]} == {reader: True, other: False}
    pruned = as_json(capsys, "prune", "--to", "0")
    assert pruned["removed_bytes"] == held["bytes"] - held["pinned_bytes"] > 0
    assert pruned["bytes"] == pruned["pinned_bytes"] == held["pinned_bytes"] > 0
    assert "are pinned" in output(capsys, "prune")
    assert not as_json(capsys, "pin", pinned["id"][:8], "--off")[0]["pinned"]
    assert as_json(capsys, "pin") == []
    assert as_json(capsys, "prune")["bytes"] == 0


def test_a_pin_needs_a_document(capsys, read_one):
    assert main(["cache", "pin", "--off"]) == 2
    assert main(["cache", "pin", "nothing.pdf"]) == 2
    assert "library list" in capsys.readouterr().err


def test_who_reads_a_pinned_document_later_is_pinned_too(capsys, read_one, data_dir, starter_model):
    _, other = read_one
    as_json(capsys, "pin", "notes.txt")
    with App.open(Settings(data_dir=data_dir, model=str(starter_model))) as app:
        (document,) = pins.pinned_documents(app)
        app.snapshot_writer.stored(other)
        assert other not in app.snapshots.pinned()
        app.library.attach(other, document.id)
        app.snapshot_writer.stored(other)
        assert other in app.snapshots.pinned()
        app.library.detach(other, document.id)
        app.snapshot_writer.stored(other)
        assert other not in app.snapshots.pinned()
