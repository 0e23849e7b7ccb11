"""The engine's one thread and its queue. Screens hold a Job and read its state; they own nothing.

A job's TurnState is replaced as a whole, so reading it needs no lock. A job ends exactly once: it is stored first, then
its last state becomes visible. Stop on a job that is still waiting (in the queue, or for the model to load) ends it at
once in the caller's thread; a running one is stopped by the engine, which looks at the job's `cancelled` event.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from app.errors import AppError, as_app_error
from app.turn import TurnState

if TYPE_CHECKING:
    from engine import Engine

log = logging.getLogger(__name__)

Loader = Callable[[Callable[[str, float], None]], "Engine"]
IdleTask = Callable[[], Iterator[None]]
"""Work for when nobody waits. It is left between two steps as soon as a job arrives, and begun anew afterwards."""


class Job:
    """One turn in the queue. `work` runs in the engine's thread; `store` writes the final state, once."""

    def __init__(
        self,
        conversation_id: str,
        work: Callable[[Job], None],
        store: Callable[[TurnState], None],
        state: TurnState,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.conversation_id = conversation_id
        self.cancelled = threading.Event()
        self.state = state
        self._work = work
        self._store = store
        self._changed = threading.Condition()
        self._ending = False
        self._in_engine = False

    def update(self, **changes: Any) -> None:
        """Replaces the state; a finished job keeps its last one."""
        with self._changed:
            if not self._ending:
                self.state = replace(self.state, **changes)
                self._changed.notify_all()

    def enter_engine(self) -> bool:
        """From here on Stop is left to the engine. False: the job has ended already."""
        with self._changed:
            self._in_engine = not self._ending
            return self._in_engine

    def finish(self, phase: Literal["done", "stopped", "failed"], **changes: Any) -> None:
        """Stores and shows the last state. Later calls do nothing."""
        with self._changed:
            if self._ending:
                return
            self._ending = True
            last = replace(self.state, phase=phase, eta_s=None, **changes)
        try:
            self._store(last)
        except Exception as error:
            _log_failure("The end of a turn could not be stored", error)
            failure = as_app_error(error)
            last = replace(last, phase="failed", error=failure)
        with self._changed:
            self.state = last
            self._changed.notify_all()

    def cancel(self) -> None:
        """Stops the job in whatever phase it is; what has been answered so far stays."""
        self.cancelled.set()
        with self._changed:
            waiting = not self._in_engine
        if waiting:
            self.finish("stopped")

    def wait(self, timeout: float | None = None) -> TurnState:
        """The state once the job has ended, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.state.finished, timeout)
            return self.state

    def run(self) -> None:
        if self.state.finished:
            return
        try:
            self._work(self)
        except Exception as error:
            _log_failure("A turn failed", error)
            self.finish("failed", error=as_app_error(error))


def _log_failure(what: str, error: Exception) -> None:
    """With a traceback, unless the error is one that was foreseen and explains itself."""
    foreseen = isinstance(error, AppError) or hasattr(error, "hint")
    log.log(logging.DEBUG if foreseen else logging.ERROR, what, exc_info=error)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """phase, what is being done (`text`) and how far (`share`, 0 to 1)."""

    phase: Literal["cold", "loading", "ready", "failed", "closed"]
    text: str = ""
    share: float = 0.0
    error: AppError | None = None


class EngineService:
    """Loads the engine when it is first needed and runs one job at a time, in a thread of its own."""

    def __init__(self, load: Loader) -> None:
        self.status = EngineStatus("cold")
        self._load = load
        self._engine: Engine | None = None
        self._jobs: deque[Job] = deque()
        self._calls: deque[tuple[Callable[[Engine | None], Any], Future]] = deque()
        self._idle: dict[str, IdleTask] = {}
        self._running: Job | None = None
        self._closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine | None:
        """The loaded engine, None before; only its plain facts may be read outside the engine's thread."""
        return self._engine

    def submit(self, job: Job) -> Job:
        with self._wake:
            if self._closing:
                raise AppError("The app is closing.", "Start it again and ask once more.")
            self._jobs.append(job)
            self._show_positions()
            self._wake.notify_all()
        return job

    def current(self, conversation_id: str) -> Job | None:
        """The first unfinished job of a conversation: a page that was reloaded shows it again."""
        with self._wake:
            running = [self._running] if self._running else []
            for job in (*running, *self._jobs):
                if job.conversation_id == conversation_id and not job.state.finished:
                    return job
        return None

    def unfinished(self, conversation_id: str | None = None) -> list[Job]:
        with self._wake:
            jobs = ([self._running] if self._running else []) + list(self._jobs)
        return [job for job in jobs if not job.state.finished and conversation_id in (None, job.conversation_id)]

    def warm_up(self) -> Future:
        """Loads the engine in its thread, so that the first question need not wait. The future gives None."""
        return self._call(lambda _: self._warm())

    def call(self, function: Callable[[Engine | None], Any]) -> Future:
        """Runs a short function in the engine's thread between two jobs; it gets the engine, None while not loaded."""
        return self._call(function)

    def when_idle(self, name: str, task: IdleTask) -> None:
        """Runs `task` while no job waits. A later task of the same name replaces one that has not begun."""
        with self._wake:
            self._idle[name] = task
            self._wake.notify_all()

    def forget_idle(self, name: str) -> None:
        with self._wake:
            self._idle.pop(name, None)

    def loaded(self, progress: Callable[[str, float], None] | None = None) -> Engine:
        """The engine, loaded now if need be. Only for the engine's thread. Errors: the engine's own."""
        if self._engine is not None:
            return self._engine

        def report(text: str, share: float) -> None:
            self.status = EngineStatus("loading", text, share)
            if progress is not None:
                progress(text, share)

        report("Loading the model", 0.0)
        try:
            self._engine = self._load(report)
        except Exception as error:
            self.status = EngineStatus("failed", error=as_app_error(error))
            raise
        self.status = EngineStatus("ready", share=1.0)
        return self._engine

    def close(self) -> None:
        """Stops what runs, does what was left for idle times (snapshots), frees the engine. May be called twice."""
        with self._wake:
            self._closing = True  # first: a job that comes while the others are stopped would run to its end
            self._wake.notify_all()
        for job in self.unfinished():
            job.cancel()
        self._thread.join()

    def _warm(self) -> None:
        self.loaded()

    def _call(self, function: Callable[[Engine | None], Any]) -> Future:
        future: Future = Future()
        with self._wake:
            if self._closing:
                future.cancel()
                return future
            self._calls.append((function, future))
            self._wake.notify_all()
        return future

    def _loop(self) -> None:
        while self._step():
            pass
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self.status = EngineStatus("closed")

    def _step(self) -> bool:
        """Does one thing: a call, a job, an idle task, or waiting. False when all is done and the app closes."""
        with self._wake:
            self._wake.wait_for(lambda: self._calls or self._jobs or self._idle or self._closing)
            call = self._calls.popleft() if self._calls else None
            if call is None and self._jobs:
                self._running = self._jobs.popleft()
                self._show_positions()
        if call is not None:
            self._answer(*call)
        elif self._running is not None:
            self._running.run()
            with self._wake:
                self._running = None
                self._show_positions()
        elif self._idle:
            self._work_idly()
        else:
            return not self._closing
        return True

    def _answer(self, function: Callable[[Engine | None], Any], future: Future) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function(self._engine))
        except Exception as error:
            future.set_exception(error)

    def _work_idly(self) -> None:
        with self._wake:
            if not self._idle:
                return
            name, task = next(iter(self._idle.items()))
        started = time.monotonic()
        try:
            for _ in task():
                if self._jobs or self._calls or self._idle.get(name) is not task:
                    return  # the task stays in the list and begins anew: what it has written already is known then
        except Exception:
            log.exception("Idle work %s failed after %.1f s", name, time.monotonic() - started)
        with self._wake:
            if self._idle.get(name) is task:
                del self._idle[name]

    def _show_positions(self) -> None:
        ahead = 1 if self._running else 0
        for number, job in enumerate(job for job in self._jobs if not job.state.finished):
            job.update(phase="queued", position=number + ahead)
