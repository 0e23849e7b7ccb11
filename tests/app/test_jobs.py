"""The queue and its one thread, without a model: what `work` does is up to the test."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import AppError
from app.jobs import EngineService, Job
from app.snapshots import KnownKeys, SnapshotWriter
from app.turn import TurnState
from storage import SnapshotRow, SnapshotStore


class NoEngine:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def service() -> Iterator[EngineService]:
    service = EngineService(lambda progress: NoEngine())  # type: ignore[arg-type,return-value]
    yield service
    service.close()


def make_job(work: Callable[[Job], None], conversation: str = "c", stored: list[TurnState] | None = None) -> Job:
    return Job(conversation, work, (stored if stored is not None else []).append, TurnState("queued"))


def answering(job: Job) -> None:
    if job.enter_engine():
        job.update(phase="answering", answer="yes")
        job.finish("done")


def blocking(gate: threading.Event) -> Callable[[Job], None]:
    def work(job: Job) -> None:
        job.enter_engine()
        job.update(phase="answering", answer="part")
        while not gate.wait(0.005):
            if job.cancelled.is_set():
                return job.finish("stopped")
        return job.finish("done")

    return work


def test_jobs_run_in_order_and_show_their_place(service: EngineService) -> None:
    gate = threading.Event()
    first = service.submit(make_job(blocking(gate), "a"))
    second = service.submit(make_job(answering, "b"))
    third = service.submit(make_job(answering, "b"))
    deadline = time.monotonic() + 5
    while first.state.phase != "answering" and time.monotonic() < deadline:
        time.sleep(0.002)
    assert (second.state.phase, second.state.position) == ("queued", 1)
    assert (third.state.phase, third.state.position) == ("queued", 2)
    assert service.current("a") is first
    assert service.current("b") is second
    assert service.current("nobody") is None
    gate.set()
    assert third.wait(5).phase == "done"
    assert second.state.answer == "yes"
    assert service.current("b") is None


def test_stop_ends_a_waiting_job_at_once(service: EngineService) -> None:
    gate = threading.Event()
    stored: list[TurnState] = []
    ran: list[Job] = []
    service.submit(make_job(blocking(gate)))
    waiting = service.submit(make_job(ran.append, stored=stored))
    started = time.monotonic()
    waiting.cancel()
    assert waiting.wait(1).phase == "stopped"
    assert time.monotonic() - started < 0.3
    assert [state.phase for state in stored] == ["stopped"]
    gate.set()
    assert service.submit(make_job(answering)).wait(5).phase == "done"
    assert not ran


def test_stop_while_loading_ends_the_job_and_keeps_the_engine(service: EngineService) -> None:
    gate, loading = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        job.update(phase="loading")
        loading.set()
        gate.wait(5)
        job.update(phase="reading")
        assert not job.enter_engine()

    job = service.submit(make_job(work))
    assert loading.wait(5)
    started = time.monotonic()
    job.cancel()
    assert job.wait(1).phase == "stopped"
    assert time.monotonic() - started < 0.3
    gate.set()
    service.call(lambda engine: None).result(5)
    assert job.state.phase == "stopped"


def test_stop_while_answering_keeps_the_part(service: EngineService) -> None:
    job = service.submit(make_job(blocking(threading.Event())))
    while job.state.phase != "answering":
        time.sleep(0.002)
    job.cancel()
    state = job.wait(1)
    assert (state.phase, state.answer) == ("stopped", "part")


def test_an_error_is_stored_with_its_hint_and_the_next_job_runs(service: EngineService) -> None:
    stored: list[TurnState] = []

    def failing(job: Job) -> None:
        raise AppError("It broke.", "Mend it.")

    state = service.submit(make_job(failing, stored=stored)).wait(5)
    assert state.phase == "failed"
    assert state.error is not None
    assert state.error.hint == "Mend it."
    assert stored == [state]
    assert service.submit(make_job(answering)).wait(5).phase == "done"


def test_a_job_whose_end_cannot_be_stored_fails_visibly(service: EngineService) -> None:
    def store(state: TurnState) -> None:
        raise AppError("The disk is full.", "Make room.")

    job = service.submit(Job("c", answering, store, TurnState("queued")))
    state = job.wait(5)
    assert state.phase == "failed"
    assert state.error is not None
    assert "disk is full" in state.error.message


def test_idle_work_gives_way_to_a_job_and_begins_anew(service: EngineService) -> None:
    began: list[int] = []
    finished = threading.Event()
    second_try = threading.Event()

    def task() -> Iterator[None]:
        began.append(1)
        while not second_try.is_set():
            time.sleep(0.002)
            yield
        finished.set()

    service.when_idle("c", task)
    while not began:
        time.sleep(0.002)
    assert service.submit(make_job(answering)).wait(2).phase == "done"
    second_try.set()
    assert finished.wait(2)
    assert len(began) >= 2


def test_close_stops_what_runs_and_finishes_idle_work() -> None:
    engines: list[Any] = []

    def load(progress: Callable[[str, float], None]) -> Any:
        engines.append(NoEngine())
        return engines[0]

    service = EngineService(load)
    service.warm_up().result(5)
    job = service.submit(make_job(blocking(threading.Event())))
    done: list[int] = []

    def task() -> Iterator[None]:
        for number in range(3):
            done.append(number)
            yield

    service.when_idle("c", task)
    service.close()
    assert job.state.phase == "stopped"
    assert done == [0, 1, 2]
    assert engines[0].closed
    assert service.status.phase == "closed"
    with pytest.raises(AppError):
        service.submit(make_job(answering))


def test_loading_is_tried_again_after_a_failure() -> None:
    attempts: list[int] = []

    def load(progress: Callable[[str, float], None]) -> Any:
        attempts.append(1)
        progress("Reading weights", 0.5)
        if len(attempts) == 1:
            raise AppError("The file is damaged.", "Fetch it again.")
        return NoEngine()

    service = EngineService(load)
    with pytest.raises(AppError, match="damaged"):
        service.warm_up().result(5)
    assert service.status.phase == "failed"
    service.warm_up().result(5)
    assert service.status.phase == "ready"
    service.close()


def test_a_row_that_waits_for_another_conversation_is_written_for_both(tmp_path: Path) -> None:
    row = SnapshotRow("checkpoint", "a" * 64, "b" * 64, 0, (1, 2), b"document")
    with SnapshotStore.open(tmp_path, 10**8) as store:
        writer = SnapshotWriter(store)
        with writer._writing:  # the disk is busy
            writer.offer("one", row.parent, row)
            assert row.key in KnownKeys(writer, "one")
            assert row.key not in KnownKeys(writer, "two")
            writer.offer("two", row.parent, row)
        writer.flush()
        writer.forget("one")
        assert list(store.owners()) == ["two"]
        known = KnownKeys(writer, "three")
        assert row.key in known  # a checkpoint that is stored is known, and can be claimed
        writer.claim("three", known.stored)
        writer.flush()
        assert list(store.owners()) == ["three", "two"]
        writer.close()


def test_nothing_is_accepted_once_closing_has_begun() -> None:
    class Asked(EngineService):
        refused = False

        def unfinished(self, conversation_id: str | None = None) -> list[Job]:
            jobs = super().unfinished(conversation_id)
            try:
                self.submit(make_job(answering))  # somebody asks just as the app stops what runs
            except AppError:
                self.refused = True
            return jobs

    service = Asked(lambda progress: NoEngine())  # type: ignore[arg-type,return-value]
    service.close()
    assert service.refused
