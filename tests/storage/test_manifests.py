"""Files of folders, token counts, reading speeds, versions of documents and choices, in a real library."""

import hashlib
from pathlib import Path

import pytest

from storage import FileRow, Library, NotFound, PageRow, ReadingSpeed, Version
from storage.indexing import INDEXED_AT_ONCE
from storage.search_index import check_index


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def add(library: Library, name: str, *texts: str, source: str = ""):
    rows = [PageRow(number, f"{name}:L{number}", text) for number, text in enumerate(texts, 1)]
    return library.add_document(sha(name + "".join(texts)), name, "folder", "folder 9", rows, 10, source)


def test_files_come_back_in_their_order_and_go_with_the_document(library: Library) -> None:
    document = add(library, "src", "alpha", "beta", "gamma")
    files = [
        FileRow("b.py", 5, 12_345_678_901_234_567, sha("b"), "text 1", 1, 2),
        FileRow("a.py", 6, 0, sha("a"), "text 1", 3, 1),
        FileRow("logo.png", 7, 1, sha("logo"), skipped="a binary file"),
        FileRow(".env", 0, 0, "", skipped="may hold secrets"),
    ]
    library.set_files(document.id, files)
    assert library.files(document.id) == files
    assert library.files(document.id)[0].page_range == range(1, 3)
    path, pages = library.file_pages(sha("b"), "text 1") or ("", [])
    assert (path, [page.text for page in pages]) == ("b.py", ["alpha", "beta"])
    assert library.file_pages(sha("b"), "text 2") is None
    assert library.file_pages(sha("logo"), "") is None
    library.delete_document(document.id)
    assert library.files(document.id) == []
    assert library.file_pages(sha("b"), "text 1") is None
    with pytest.raises(NotFound):
        library.set_files(document.id, files)


def test_the_newest_document_of_a_source(library: Library) -> None:
    add(library, "src", "one", source="/somewhere/src")
    newest = add(library, "src", "two", source="/somewhere/src")
    assert library.last_of_source("/somewhere/src", "folder") == newest.id
    assert library.last_of_source("/somewhere/src", "pdf") is None


def test_page_batches_give_every_page_once(library: Library) -> None:
    document = add(library, "long", *(f"{number:03d} " * 50 for number in range(40)))
    batches = list(library.page_batches(document.id, 1000))
    assert [row.index for batch in batches for row in batch] == list(range(1, 41))
    assert len(batches) == 8, "40 pages of 200 characters"


def test_token_counts_are_kept_for_one_tokenizer(library: Library) -> None:
    document = add(library, "src", "one", "two")
    assert library.token_counts(document.id, "t1") is None
    library.set_token_counts(document.id, "t1", [70_000, 3])
    assert library.token_counts(document.id, "t1") == (70_000, 3)
    assert library.token_counts(document.id, "t2") is None
    library.set_token_counts("gone", "t1", [1])
    assert library.token_counts("gone", "t1") is None


def test_the_newest_speeds_are_kept(library: Library) -> None:
    for number in range(30):
        library.add_reading_speed("m", "cpu", ReadingSpeed(0, 100 + number, 1.0))
    library.add_reading_speed("m", "hopper", ReadingSpeed(0, 9, 1.0))
    kept = library.reading_speeds("m", "cpu")
    assert [speed.last for speed in kept] == list(range(129, 105, -1))
    assert library.reading_speeds("m", "hopper") == [ReadingSpeed(0, 9, 1.0)]


def test_a_newer_document_takes_the_place_of_an_older_one_and_of_its_updates(library: Library) -> None:
    conversation = library.create_conversation().id
    first, old, after = add(library, "first", "1"), add(library, "old", "2"), add(library, "after", "3")
    update, new = add(library, "update", "4"), add(library, "new", "5")
    for document in (first, old, after, update):
        library.attach(conversation, document.id)
    library.set_version(conversation, Version(old.id, update.id, "updated"))
    library.set_version(conversation, Version(old.id, new.id, "offered"))
    assert library.conversations_using(new.id) == [conversation]
    library.replace_attached(conversation, old.id, new.id)
    assert [document.id for document in library.documents(conversation)] == [first.id, new.id, after.id]
    assert set(library.versions(conversation)) == {
        Version(old.id, new.id, "replaced"),
        Version(update.id, new.id, "replaced"),
    }
    assert {document.id for document in library.earlier_documents(conversation)} == {old.id, update.id}
    library.replace_attached(conversation, new.id, old.id)  # the files were changed back
    assert [document.id for document in library.documents(conversation)] == [first.id, old.id, after.id]
    assert {document.id for document in library.earlier_documents(conversation)} == {new.id, update.id}
    with pytest.raises(NotFound, match="not in the conversation"):
        library.replace_attached(conversation, new.id, old.id)
    library.delete_conversation(conversation)
    assert library.versions(conversation) == []
    assert library.conversations_using(new.id) == []


def test_offers_are_forgotten(library: Library) -> None:
    conversation = library.create_conversation().id
    old, new = add(library, "old", "1"), add(library, "new", "2")
    library.attach(conversation, old.id)
    library.set_version(conversation, Version(old.id, new.id, "offered"))
    library.forget_offers(conversation, old.id)
    assert library.versions(conversation) == []


def test_a_choice_is_kept_and_taken_back(library: Library, tmp_path: Path) -> None:
    conversation = library.create_conversation().id
    assert library.choice(conversation) == ""
    library.set_choice(conversation, "a")
    library.set_choice(conversation, "b")
    assert library.choice(conversation) == "b"
    library.set_choice(conversation, "")
    assert library.choice(conversation) == ""


def test_search_passes_over_pages(library: Library) -> None:
    document = add(library, "src", "The heron stands in the reeds.", "Another heron flies away.")
    both = {hit.page for hit in library.search("heron", [document.id], 5)}
    assert both == {1, 2}
    left = library.search("heron", [document.id], 5, without={document.id: {1}})
    assert [hit.page for hit in left] == [2]
    assert library.search("eron", [document.id], 5, without={document.id: {1, 2}}) == []


def test_a_long_document_is_indexed_in_the_background_and_search_waits_for_it(tmp_path: Path) -> None:
    texts = [f"Page {number}. " + "The tide rises and falls along the coast. " * 400 for number in range(150)]
    texts[140] = "A heron stands in the reeds."
    with Library.open(tmp_path) as library:
        assert sum(map(len, texts)) > INDEXED_AT_ONCE
        document = add(library, "coast", *texts)
        small = add(library, "small", "A heron was seen here as well.")  # waits its turn: ids stay neighbours
        assert {hit.page for hit in library.search("heron", [document.id], 3)} == {141}
        assert not library.indexing(document.id)
        with library._writer.use() as db:
            ids = db.execute("SELECT min(id), max(id), count(*) FROM passages WHERE document_id = ?", (document.id,))
            low, high, count = ids.fetchone()
            assert high - low + 1 == count
            check_index(db)
        assert library.search("heron", [small.id], 3)


def test_indexing_that_was_interrupted_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "index_in_background", lambda self, document_id: None)
    texts = ["The tide rises. " * 5000 for _ in range(30)]
    with Library.open(tmp_path) as library:
        document = add(library, "coast", *texts, "A heron stands in the reeds.")
        assert library._index_part(document.id)
        assert library.indexing(document.id)
    with Library.open(tmp_path) as library:
        assert [hit.page for hit in library.search("heron", None, 3)] == [31]
        library.delete_document(document.id)
        assert not library.indexing(document.id)
