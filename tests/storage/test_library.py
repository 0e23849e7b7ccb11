"""Conversations, messages and documents come back as they were stored."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import Library, NotFound, PageRow, StorageError
from storage.connection import pragma
from storage.search_index import check_index
from tests.storage.helpers import add_text, key

anything = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
json_values = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_every_connection_has_the_promised_settings(library: Library) -> None:
    with library._writer.use() as db:
        assert pragma(db, "journal_mode") == "wal"
        assert pragma(db, "synchronous") == 2  # FULL
        assert pragma(db, "foreign_keys") == 1
        assert pragma(db, "trusted_schema") == 0
        assert pragma(db, "secure_delete") == 1
        assert int(pragma(db, "busy_timeout")) >= 5000


@anything
@given(
    text=st.text(), title=st.text(), details=st.dictionaries(st.text().filter(lambda k: k.isidentifier()), json_values)
)
def test_messages_round_trip(library: Library, text: str, title: str, details: dict) -> None:
    reserved = {"conversation_id", "role", "text", "state", "self", "details"}
    details = {name: value for name, value in details.items() if name not in reserved}
    conversation = library.create_conversation(title)
    stored = library.add_message(conversation.id, "user", text, **details)
    assert library.messages(conversation.id) == [stored]
    assert (stored.text, stored.details, stored.index) == (text, details, 0)
    assert library.conversation(conversation.id).title == title


@anything
@given(texts=st.lists(st.text(), min_size=1, max_size=4))
def test_documents_round_trip(library: Library, texts: list[str]) -> None:
    pages = [PageRow(index + 1, f"p{index}", text, "" if text else "empty") for index, text in enumerate(texts)]
    document = library.add_document(key(texts), "name", "text", "x", pages, 5, "src")
    assert library.pages(document.id) == pages
    assert (document.pages, document.characters) == (len(texts), sum(map(len, texts)))
    assert library.find_document(key(texts), "x") == document == library.document(document.id)


def test_half_characters_are_replaced_instead_of_failing(library: Library) -> None:
    conversation = library.create_conversation("a\ud800b")
    message = library.add_message(conversation.id, "user", "x\udfffy", note="\ud83d")
    assert library.messages(conversation.id)[0].text == message.text == "x\ufffdy"
    assert message.details == {"note": "\ufffd"}


def test_order_and_search_of_conversations(library: Library) -> None:
    first, second, third = (library.create_conversation(title) for title in ("Straße", "two", "three"))
    library.add_message(first.id, "user", "Where is the LEASE kept?")
    library.pin_conversation(second.id)
    assert [found.id for found in library.conversations()] == [second.id, first.id, third.id]
    assert [found.id for found in library.conversations("STRASSE lease")] == [first.id]
    assert library.conversations("lease 100%") == []
    library.rename_conversation(third.id, "100% new")
    assert [found.id for found in library.conversations("100%")] == [third.id]


def test_an_answer_grows_and_is_marked_when_the_app_dies(library: Library) -> None:
    conversation = library.create_conversation()
    answer = library.add_message(conversation.id, "assistant", "", state="streaming", model="m")
    library.update_message(answer.id, text="half an ans", tokens=3)
    library.close()
    with Library.open(library.folder) as again:
        found = again.messages(conversation.id)[0]
        assert (found.text, found.state, found.details) == ("half an ans", "interrupted", {"model": "m", "tokens": 3})
        assert again.update_message(answer.id, state="complete", model=None).details == {"tokens": 3}


def test_frozen_values_never_change(library: Library) -> None:
    id = library.create_conversation().id
    assert library.freeze(id, "date", "Monday") == "Monday"
    assert library.freeze(id, "date", "Tuesday") == "Monday"
    assert library.frozen(id) == {"date": "Monday"}


def test_documents_of_a_conversation_keep_their_order(library: Library) -> None:
    id = library.create_conversation().id
    one, two = add_text(library, "one", "a"), add_text(library, "two", "b")
    library.attach(id, two.id)
    library.add_message(id, "user", "hello")
    library.attach(id, one.id)
    library.attach(id, two.id)
    assert [document.id for document in library.documents(id)] == [two.id, one.id]
    assert [entry.after_message for entry in library.attachments(id)] == [0, 1]
    assert library.conversations_using(one.id) == [id]
    library.detach(id, two.id)
    assert [document.id for document in library.documents(id)] == [one.id]
    assert {document.id for document in library.documents()} == {one.id, two.id}


def test_the_same_document_is_stored_once(library: Library) -> None:
    one, again = add_text(library, "same", "text"), add_text(library, "same", "text")
    assert one == again
    assert library.documents() == [one]


def test_wrong_values_are_refused(library: Library) -> None:
    conversation = library.create_conversation()
    with pytest.raises(ValueError, match="state"):
        library.add_message(conversation.id, "user", "x", state="odd")
    with pytest.raises(ValueError, match="sha256"):
        library.add_document("../x", "n", "k", "e", [], 0)
    with pytest.raises(ValueError, match="pages"):
        library.add_document(key(1), "n", "k", "e", [PageRow(1, "", ""), PageRow(1, "", "")], 0)
    with pytest.raises(ValueError, match="index"):
        PageRow(0, "", "")
    for missing in (
        lambda: library.conversation("none"),
        lambda: library.messages("none"),
        lambda: library.add_message("none", "user", ""),
        lambda: library.update_message("none", text=""),
        lambda: library.document("none"),
        lambda: library.pages("none"),
        lambda: library.attach(conversation.id, "none"),
        lambda: library.delete_document("none"),
        lambda: library.delete_conversation("none"),
        lambda: library.freeze("none", "k", "v"),
    ):
        with pytest.raises(NotFound):
            missing()


def test_threads_share_one_library(library: Library) -> None:
    conversation = library.create_conversation()
    document = add_text(library, "doc", "wolves and lambs")

    def write(name: str) -> None:
        for count in range(40):
            library.add_message(conversation.id, "user", f"{name} {count}")
            assert library.search("wolf wolves", [document.id], 1)

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = library.messages(conversation.id)
    assert [message.index for message in messages] == list(range(80))
    assert [m.text for m in messages if m.text[0] == "a"] == [f"a {count}" for count in range(40)]


def test_a_failed_write_leaves_nothing_half_done(library: Library) -> None:
    conversation = library.create_conversation()
    with pytest.raises(TypeError):
        library.add_message(conversation.id, "user", "text", bad=object())
    assert library.messages(conversation.id) == []
    with library._writer.use() as db:
        check_index(db)


def test_a_closed_library_says_so(library: Library) -> None:
    library.close()
    with pytest.raises(StorageError, match="closed"):
        library.conversations()
