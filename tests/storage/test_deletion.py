"""What the user deletes is gone: from the tables, the index, the file's bytes and the backups."""

from pathlib import Path

from storage import Library
from storage.backup import make_backup
from storage.search_index import check_index
from tests.storage.helpers import add_text

PLANTED = "xylophoneplanted"


def files_with(folder: Path, text: str) -> list[str]:
    needle = text.encode()
    return [path.name for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes().lower()]


def test_a_deleted_document_leaves_no_trace(tmp_path: Path) -> None:
    filler = "The committee met on Tuesday and agreed on nothing in particular. " * 40
    with Library.open(tmp_path) as library:
        kept = add_text(library, "kept", filler, "Another page about lighthouses.")
        secret = add_text(library, f"{PLANTED}.pdf", filler, f"The code word is {PLANTED}. " * 30)
        conversations = [library.create_conversation().id for _ in range(2)]
        for conversation in conversations:
            library.attach(conversation, secret.id)
        backup = library.backup()
        assert backup.path.name in files_with(tmp_path, PLANTED)
        assert library.delete_document(secret.id) == conversations
        assert files_with(tmp_path, PLANTED) == []
        assert files_with(tmp_path, PLANTED[:6]) == []  # the index stores stems and shares beginnings
        assert library.search(PLANTED, None, 5) == []
        assert library.documents(conversations[0]) == []
        assert [hit.document_id for hit in library.search("lighthouses", None, 5)] == [kept.id]
        with library._writer.use() as db:
            check_index(db)
    assert files_with(tmp_path, PLANTED) == []


def test_a_deleted_conversation_leaves_no_trace(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        document = add_text(library, "doc", "text")
        doomed, other = library.create_conversation(PLANTED), library.create_conversation("other")
        for index in range(20):
            library.add_message(doomed.id, "user", f"{PLANTED} {index}" * 50)
            library.add_message(other.id, "user", f"harmless {index}" * 50)
        library.freeze(doomed.id, "system", PLANTED)
        library.attach(doomed.id, document.id)
        library.backup()
        library.delete_conversation(doomed.id)
        assert files_with(tmp_path, PLANTED) == []
        assert library.documents() == [document]
        assert len(library.messages(other.id)) == 20


def test_a_backup_that_cannot_be_cleaned_is_removed(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        doomed = library.create_conversation(PLANTED)
        good = library.backup()
        bad = make_backup(tmp_path)
        bad.path.write_bytes(b"not a database " + PLANTED.encode() + bytes(5000))
        library.delete_conversation(doomed.id)
        assert [backup.path for backup in library.backups()] == [good.path]
