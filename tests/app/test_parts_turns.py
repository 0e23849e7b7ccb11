"""Reading in parts with the real starter model: small windows, Stop, going on, re-use, whole-text tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app import assistant, conversations, documents
from app.errors import DoesNotFit
from app.jobs import Job
from app.parts import ask as parts_ask
from app.parts import work as parts_work
from app.report import turn_object
from app.turn import TurnState
from app.wiring import App
from engine import Sampling
from tests.app.small_pdfs import FACTS, write_pdf

pytestmark = pytest.mark.slow
SHORT = Sampling(max_tokens=8)
STOP_WITHIN_S = 0.3
QUESTION = "What is the access code of the lamp room?"


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window for each page of the test's PDF, and short answers of windows."""
    monkeypatch.setattr(parts_work, "SMALL_WINDOW_TOKENS", 60)
    monkeypatch.setattr(parts_ask, "SMALL_ANSWER", 8)
    for module in (parts_ask, parts_work):
        monkeypatch.setattr(module, "PART_ANSWER", 8)


@pytest.fixture
def trusted(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The app with a model that counts as large, and a context that holds one page at a time."""
    small = app.model
    app.model = replace(small, parameters=2 * 10**9)
    monkeypatch.setattr(parts_work, "HEAD_ROOM", 24)
    monkeypatch.setattr(parts_work, "LEAST_WINDOW_TOKENS", 16)
    monkeypatch.setattr(parts_work, "MOST_WINDOW_TOKENS", 320)
    yield app
    app.model = small


def conversation_with(app: App, *paths: Path) -> str:
    conversation = conversations.new(app)
    for added in documents.add_files(app, conversation.id, paths):
        assert added.error is None, added.error
    return conversation.id


def done(job: Job) -> TurnState:
    state = job.wait(400)
    assert state.phase == "done", (state.phase, state.error)
    return state


def wait_until(job: Job, true) -> None:
    deadline = time.monotonic() + 400
    while not true(job.state):
        assert not job.state.finished, job.state
        assert time.monotonic() < deadline, job.state
        time.sleep(0.001)


def test_every_part_is_asked_and_the_page_is_cited(app: App, facts_pdf: Path) -> None:
    conversation = conversation_with(app, facts_pdf)
    state = done(assistant.ask(app, conversation, QUESTION, reading="parts"))
    assert state.parts is not None
    assert state.reading == "parts"
    assert [part.pages for part in state.parts.parts] == [(1,), (2,), (3,), (4,)]
    assert state.parts.coverage.complete
    (third,) = [part for part in state.parts.parts if part.pages == (3,)]
    assert "7391" in third.quotes[0].quote
    assert "7391" in state.answer
    assert 3 in [citation.page for citation in state.citations]
    row = conversations.messages(app, conversation)[1]
    assert row.details["reading"] == "parts"
    assert len(row.details["parts"]) == 4
    result = turn_object(state)
    assert result["coverage"] == {"pages_read": 4, "pages": 4, "share": 1.0, "without_text": 0}
    assert [part["pages"] for part in result["parts"]] == ["1", "2", "3", "4"]
    assert result["prompt_tokens"] == result["reused_tokens"] + result["computed_tokens"]


def test_stop_keeps_what_was_found_and_the_question_goes_on_from_there(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_ask, "SMALL_ANSWER", 64)
    path = write_pdf(tmp_path / "rooms.pdf", [f"Room {n} has {n} windows and a lamp. {FACTS[0]}" for n in range(1, 9)])
    conversation = conversation_with(app, path)
    question = "Which room has a lamp?"
    job = assistant.ask(app, conversation, question, reading="parts")
    wait_until(job, lambda state: state.parts is not None and state.parts.done >= 2)
    pressed = time.monotonic()
    job.cancel()
    state = job.wait(10)
    assert time.monotonic() - pressed < STOP_WITHIN_S
    assert state.phase == "stopped"
    assert state.parts is not None
    read = state.parts.done
    assert 2 <= read < 8
    assert state.parts.coverage.pages_read == read
    assert f"Stopped after {read} of 8 parts" in state.answer
    assert state.citations
    row = conversations.messages(app, conversation)[1]
    assert (row.state, row.text) == ("stopped", state.answer)
    monkeypatch.setattr(parts_ask, "SMALL_ANSWER", 8)
    again = done(conversations.regenerate(app, conversation, reading="parts"))
    assert again.parts is not None
    assert [part.state for part in again.parts.parts] == ["kept"] * read + ["done"] * (8 - read)
    assert again.parts.parts[:read] == tuple(replace(part, state="kept") for part in state.parts.parts[:read])


def test_a_question_whose_words_stand_nowhere_is_told_so(app: App, facts_pdf: Path) -> None:
    conversation = conversation_with(app, facts_pdf)
    state = done(assistant.ask(app, conversation, "Xylophone quartets?", reading="parts"))
    assert "none has the words of this question" in state.answer
    assert state.citations == ()
    assert state.stats is not None
    assert state.stats.output_tokens == 0


def test_whole_windows_are_read_once_for_all_questions(trusted: App, facts_pdf: Path) -> None:
    conversation = conversation_with(trusted, facts_pdf)
    first = done(assistant.ask(trusted, conversation, "Who built the tower?", reading="parts", sampling=SHORT))
    assert first.parts is not None
    assert len(first.parts.parts) > 1
    second = done(assistant.ask(trusted, conversation, "How deep is the well?", reading="parts", sampling=SHORT))
    assert first.stats is not None
    assert second.stats is not None
    assert second.stats.reused_tokens > first.stats.reused_tokens
    assert second.stats.reused_tokens >= sum(
        trusted.document_tokens().counts(document.id).pages[page - 1]
        for part in first.parts.parts
        for document in trusted.library.documents(conversation)
        for page in part.pages
    ), "every window's pages are re-used"


def test_a_summary_reads_all_parts_and_shows_key_sentences(app: App, facts_pdf: Path) -> None:
    conversation = conversation_with(app, facts_pdf)
    state = done(assistant.ask(app, conversation, "Summarize this document.", reading="passages", sampling=SHORT))
    assert state.task == "summarize"
    assert state.reading == "parts", "never from passages alone"
    assert state.parts is not None
    assert state.parts.coverage.complete
    assert {passage.page for passage in state.passages} == {1, 2, 3, 4}
    pages = {row.index: row.text for row in app.library.pages(state.passages[0].document_id)}
    assert all(passage.text in pages[passage.page] for passage in state.passages)
    assert any("key sentences" in warning for warning in state.warnings)


def test_a_list_has_every_sentence_that_names_it(app: App, facts_pdf: Path) -> None:
    conversation = conversation_with(app, facts_pdf)
    state = done(assistant.ask(app, conversation, "List all facts on the horn.", task="list", sampling=SHORT))
    assert state.task == "list"
    assert {passage.page for passage in state.passages} == {4}
    assert len(state.passages) == 2


def test_two_documents_are_compared_with_sentences_of_both(app: App, facts_pdf: Path, tmp_path: Path) -> None:
    other = write_pdf(
        tmp_path / "mill.pdf", ["The mill of Aabeck was built in 1902 by the miller Nils Holm in the valley."]
    )
    conversation = conversation_with(app, facts_pdf, other)
    state = done(assistant.ask(app, conversation, "Compare these two documents.", sampling=SHORT))
    assert state.task == "compare"
    assert {passage.document for passage in state.passages} == {"lighthouse.pdf", "mill.pdf"}


def test_a_trusted_model_summarizes_at_once_what_fits_and_in_parts_what_does_not(
    trusted: App, facts_pdf: Path, tmp_path: Path
) -> None:
    conversation = conversation_with(trusted, facts_pdf)
    whole = done(assistant.ask(trusted, conversation, "Summarize this document.", sampling=SHORT))
    assert (whole.reading, whole.parts) == ("whole", None)
    long = write_pdf(
        tmp_path / "long.pdf", ["numbers " + " ".join(map(str, range(p * 500, p * 500 + 330))) for p in range(12)]
    )
    conversation = conversation_with(trusted, long)
    refused = assistant.ask(trusted, conversation, "Summarize this document.", reading="whole").wait(400)
    assert isinstance(refused.error, DoesNotFit)
    assert "reading it in parts" in refused.error.choices
