"""Another try at an answer, and what a turn keeps: whole turns of the app over an engine that says what it is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import assistant, conversations, documents
from app.pages import PageChoice
from app.settings import Settings
from app.turn import TurnState
from app.turn_choices import DEMO_REPETITION_PENALTY
from app.wiring import App
from tests.app.small_pdfs import write_pdf

PAGES = [
    "The lighthouse was built by Ines Hallam in the spring of 1904.",
    "The access code of the lamp room is 7391 and nobody else knows it.",
    "The ferry to the mainland leaves every day at noon from the pier.",
]


@dataclass
class Script:
    """An engine's face for the app. says: the next answer; it ends there, or waits to be stopped with `stop`."""

    encode: Any
    says: str = ""
    stop: bool = False
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    samplings: list[Any] = field(default_factory=list)
    largest_prompt: int = 8192
    kv_format: str = "bf16"
    fingerprint: str = "x"
    kv_bytes_per_token: int = 100
    profile: Any = field(default_factory=lambda: SimpleNamespace(name="cpu"))

    def generate(self, ids: Any, sampling: Any, *, cancel: Any, **_: Any) -> Iterator[Any]:
        from engine import Done, GenerationStats, Token

        self.prompts.append(tuple(ids))
        self.samplings.append(sampling)
        if self.says:
            for id in self.encode(self.says):
                yield Token(id, "")
            yield Token(0, self.says)
        if self.stop:
            cancel.wait(20)
        reason = "cancelled" if self.stop else "stop"
        yield Done(GenerationStats(len(ids), 0, 0, len(ids), 1, 0.1, 1.0, reason, 1.0, 1.0, 1.0, 0))

    def policy(self, mode: str) -> Any:
        from engine.patterns import AttentionPolicy

        return AttentionPolicy(mode)

    def live_tokens(self, _: str) -> int:
        return 0

    def kept_tokens(self, _: str) -> list[int]:
        return []

    def unload(self, _: str) -> None: ...
    def close(self) -> None: ...


@pytest.fixture(scope="module")
def opened(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("data")
    with App.open(Settings(data_dir=folder, model=str(starter_model), max_answer_tokens=24)) as app:
        yield app


@pytest.fixture
def engine(opened: App, monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script(opened.face().tokenizer.encode)
    monkeypatch.setattr(opened.engine_service, "loaded", lambda progress=None: script)
    return script


@pytest.fixture
def conversation(opened: App, tmp_path: Path) -> str:
    made = conversations.new(opened)
    (added,) = documents.add_files(opened, made.id, [write_pdf(tmp_path / "lighthouse.pdf", PAGES)])
    assert added.error is None
    return made.id


def ended(job: Any, stop: bool = False) -> TurnState:
    if stop:
        while job.state.phase not in ("reading", "answering") and not job.state.finished:
            time.sleep(0.005)
        time.sleep(0.05)
        job.cancel()
    state = job.wait(30)
    assert state.phase == ("stopped" if stop else "done"), state.error
    return state


def test_a_retry_stopped_before_its_first_word_changes_nothing_of_the_prompt(
    opened: App, engine: Script, conversation: str
) -> None:
    engine.says = "Ines Hallam."
    ended(assistant.ask(opened, conversation, "Who built the lighthouse?", reading="passages"))
    engine.says, engine.stop = "", True
    ended(conversations.regenerate(opened, conversation, reading="whole"), stop=True)
    engine.says, engine.stop = "At noon.", False
    ended(assistant.ask(opened, conversation, "When does the ferry leave?", reading="passages"))
    first, _, last = engine.prompts
    assert last[: len(first)] == first
    answer = engine.encode("Ines Hallam.")
    assert [*last[len(first) :]][: len(answer)] == answer


def test_an_answer_stopped_in_its_middle_is_gone_on_from(opened: App, engine: Script, conversation: str) -> None:
    engine.says, engine.stop = "Ines", True
    job = assistant.ask(opened, conversation, "Who built the lighthouse?", reading="whole")
    assert ended(job, stop=True).answer == "Ines"
    engine.says, engine.stop = "At noon.", False
    ended(assistant.ask(opened, conversation, "When does the ferry leave?", reading="whole"))
    first, last = engine.prompts
    assert last[: len(first)] == first
    assert list(last[len(first) :])[: len(engine.encode("Ines"))] == engine.encode("Ines")


def test_quotes_are_looked_up_where_earlier_turns_and_other_pages_have_them(
    opened: App, engine: Script, conversation: str
) -> None:
    engine.says = "It is 7391."
    ended(assistant.ask(opened, conversation, "What is the access code of the lamp room?", reading="passages"))
    engine.says = (
        "It leaves at noon. As said, nobody else knows the access code of the lamp room. "
        'It says "was built by Ines Hallam in the spring". It says "no page has these words at all".'
    )
    state = ended(assistant.ask(opened, conversation, "And the ferry to the mainland?", reading="passages"))
    assert [passage.page for passage in state.passages] == [3]
    found = [(citation.page, citation.status) for citation in state.citations]
    assert (2, "attributed") in found
    assert (1, "verified") in found
    assert [status for _, status in found].count("not_found") == 1


def test_another_try_is_sampled_afresh_only_where_it_would_come_out_the_same(
    opened: App, engine: Script, conversation: str
) -> None:
    engine.says = "Ines Hallam."
    ended(assistant.ask(opened, conversation, "Who built the lighthouse?", reading="passages"))
    ended(conversations.regenerate(opened, conversation, reading="passages"))
    ended(conversations.regenerate(opened, conversation, reading="whole"))
    first, same, other = engine.samplings
    assert first.repetition_penalty == same.repetition_penalty == other.repetition_penalty
    assert first.repetition_penalty == DEMO_REPETITION_PENALTY
    assert (first.temperature, same.temperature, other.temperature) == (0.0, 0.7, 0.0)


def test_another_try_reads_the_same_pages(opened: App, engine: Script, conversation: str) -> None:
    engine.says = "Ines Hallam."
    pages = PageChoice.parse("1,3-")
    ended(assistant.ask(opened, conversation, "Who built the lighthouse?", reading="whole", pages=pages))
    ended(conversations.regenerate(opened, conversation, reading="whole"))
    ended(conversations.regenerate(opened, conversation, reading="whole"))
    first, second, third = engine.prompts
    assert first == second == third
    ended(conversations.regenerate(opened, conversation, reading="whole", pages=PageChoice.parse("1-3")))
    assert len(engine.prompts[-1]) > len(first)
    assert [sampling.temperature for sampling in engine.samplings] == [0.0, 0.7, 0.7, 0.0]
