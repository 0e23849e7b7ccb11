"""Events without a browser: what each returns, and that watching ends with everything shown."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_app import FakeBackend

from ui.chat import Chat
from ui.screen import Updates
from ui.uploads import Uploads


@pytest.fixture
def backend(tmp_path: Path) -> FakeBackend:
    return FakeBackend(tmp_path / "temp", tmp_path / "sample.pdf", step=0.002)


@pytest.fixture
def chat(backend: FakeBackend):
    uploads = Uploads(backend)
    yield Chat(backend, uploads)
    uploads.close()


def act(chat: Chat, conversation: str, action: str, value: str = "", typed: str = "") -> Updates:
    message = json.dumps({"action": action, "value": value, "typed": typed, "n": 1})
    return chat.act(message, conversation, "passages", "")


def watch(chat: Chat, conversation: str, meanwhile: Callable[[int], None] = lambda _: None) -> Updates:
    """All updates of one watching, later ones over earlier ones."""
    shown: Updates = {}

    async def follow() -> None:
        number = 0
        async for updates in chat.watch(conversation, ""):
            shown.update(updates)
            meanwhile(number)
            number += 1

    asyncio.run(asyncio.wait_for(follow(), 20))
    return shown


def test_watching_ends_with_the_whole_answer(chat: Chat, backend: FakeBackend) -> None:
    opened = chat.ask("", "How long is the warranty?", "passages", "", "")
    assert opened["question"] == ""
    shown = watch(chat, opened["conversation"])
    assert "24 months" in shown["history"]
    assert "ub-message" not in shown["live"]
    assert shown["send"]["visible"] is True
    assert shown["stop"]["visible"] is False
    assert "How long is the warranty?" in shown["side"]


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.05, 0.1])
def test_an_answer_that_ends_around_the_first_showing_is_not_missed(
    chat: Chat, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    conversation = chat.ask("", "say hello", "passages", "", "")["conversation"]
    settled = chat._settled

    def slow(*values: str) -> Updates:
        updates = settled(*values)
        time.sleep(delay)
        return updates

    monkeypatch.setattr(chat, "_settled", slow)
    assert "hello" in watch(chat, conversation)["history"]


def test_a_file_that_fails_at_once_is_not_missed(chat: Chat, tmp_path: Path) -> None:
    for name in ("broken.pdf", "locked.pdf", "fine.pdf"):
        (tmp_path / name).write_bytes(b"x")
    opened = chat.add_files("", [str(tmp_path / n) for n in ("broken.pdf", "locked.pdf", "fine.pdf")], "")
    shown = watch(chat, opened["conversation"])
    for part in ("ends in the middle", "Password for locked.pdf", "20 pages"):
        assert part in shown["tray"]


def test_a_second_question_waits_and_keeps_its_text(chat: Chat, backend: FakeBackend) -> None:
    with backend.held("reading"):
        conversation = chat.ask("", "one", "passages", "", "")["conversation"]
        refused = chat.ask(conversation, "two", "passages", "", "")
        assert "still being written" in refused["notice"]
        assert "question" not in refused
    watch(chat, conversation)
    assert [m.text for m in backend.messages(conversation) if m.role == "user"] == ["one"]


def test_stop_and_two_watchers(chat: Chat, backend: FakeBackend) -> None:
    with backend.held("reading"):
        conversation = chat.ask("", "one", "passages", "", "")["conversation"]
        seen: list[Updates] = []
        second = threading.Thread(target=lambda: seen.append(watch(chat, conversation)))
        second.start()
        shown = watch(chat, conversation, lambda n: chat.stop(conversation) if n == 1 else None)
        second.join()
    assert "Stopped." in shown["history"]
    assert "Stopped." in seen[0]["history"]


def test_unknown_ids_and_broken_messages_change_nothing(chat: Chat, backend: FakeBackend) -> None:
    mine = backend.new_conversation("mine")
    for message in ("", "x", "[]", "null", "{}", '{"action": 5}', '{"action": {"a": 1}, "value": []}'):
        assert chat.act(message, mine, "passages", "")["action"] == ""
        chat.edit(message, mine, "")
    for action in ("open", "delete", "remove", "unlock", "upload-close", "rename", "retry-whole", "nonsense"):
        act(chat, mine, action, "no-such-id", "text")
        chat.edit(json.dumps({"action": action, "value": "no-such-id", "typed": "text"}), mine, "")
    assert [c.title for c in backend.conversations()] == ["mine"]
    assert act(chat, mine, "open", "../../etc/passwd")["conversation"] == ""
    chat.stop("no-such-id")
    chat.stop("")


def test_delete_forgets_uploads_and_opens_a_new_conversation(chat: Chat, backend: FakeBackend, tmp_path: Path) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"x")
    with backend.held("pages"):
        conversation = chat.add_files("", [str(file)], "")["conversation"]
        deleted = act(chat, conversation, "delete", conversation)
    assert deleted["conversation"] == ""
    assert backend.conversations() == []
    deadline = time.monotonic() + 5
    while chat.uploads.of(conversation) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert chat.uploads.of(conversation) == ()


def test_added_uploads_leave_no_file_behind(chat: Chat, backend: FakeBackend) -> None:
    folder = backend.temp_dir / "hash"
    folder.mkdir(parents=True)
    (folder / "a.pdf").write_bytes(b"x")
    conversation = chat.add_files("", [str(folder / "a.pdf")], "")["conversation"]
    watch(chat, conversation)
    assert list(backend.temp_dir.iterdir()) == []


def test_a_file_of_the_user_is_never_deleted(chat: Chat, backend: FakeBackend, tmp_path: Path) -> None:
    sample = tmp_path / "sample.pdf"
    sample.write_bytes(b"x")
    conversation = act(chat, "", "sample")["conversation"]
    watch(chat, conversation)
    assert sample.exists()
    assert [d.name for d in backend.documents(conversation)] == ["sample.pdf"]


def test_retry_takes_the_place_of_the_last_answer(chat: Chat, backend: FakeBackend) -> None:
    conversation = chat.ask("", "is it too long", "whole", "", "")["conversation"]
    assert "48,210" in watch(chat, conversation)["history"]
    act(chat, conversation, "retry-pages", typed="1-12")
    shown = watch(chat, conversation)
    assert "24 months" in shown["history"]
    assert len(backend.messages(conversation)) == 2
