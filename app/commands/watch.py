"""Follows one job on a terminal: passages first, the answer as it streams, progress on stderr."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from app.commands.common import StatusLine
from app.report import citation_lines, passage_lines, stats_line

if TYPE_CHECKING:
    from app.jobs import Job
    from app.turn import TurnState

_POLL_S = 0.05


def follow(job: Job, *, quiet: bool = False, passages: int = 3) -> TurnState:
    """Waits for the end of a job and returns its last state. Ctrl-C stops the job, then comes back as that error.

    quiet: nothing on stdout. passages: how many of them are shown.
    """
    line = StatusLine()
    printed, shown_passages = 0, quiet
    try:
        while True:
            state = job.wait(_POLL_S)
            if not quiet:
                if state.passages and not shown_passages:
                    line.clear()
                    shown_passages = True
                    width = shutil.get_terminal_size((100, 24)).columns
                    print("Best passages:", *passage_lines(state.passages[:passages], width), "", sep="\n", flush=True)
                if len(state.answer) > printed:
                    line.clear()
                    print(state.answer[printed:], end="", flush=True)
                    printed = len(state.answer)
            if state.finished:
                if printed:
                    print(flush=True)
                return state
            if not printed:
                line.show(progress_text(state))
    except KeyboardInterrupt:
        job.cancel()
        job.wait(5)
        if printed:
            print(flush=True)
        raise
    finally:
        line.clear()


def print_end(state: TurnState, model: str, warnings: tuple[str, ...] = ()) -> None:
    """What stands under an answer: its sources and the status line; warnings go to stderr."""
    sources = citation_lines(state.citations)
    if sources:
        print("\nSources:", *(f"  {line}" for line in sources), sep="\n")
    if state.stats is not None:
        print(f"\n[{stats_line(state.stats, model)}]", flush=True)
    for warning in dict.fromkeys((*warnings, *state.warnings)):
        print(f"note: {warning}", file=sys.stderr)


def progress_text(state: TurnState) -> str:
    """What is going on, for the status line."""
    match state.phase:
        case "queued":
            return "Waiting" if not state.position else f"Waiting, {state.position} before this one"
        case "loading":
            return f"Loading the model: {state.read_done / 10:.0f} %" if state.read_total else "Loading the model"
        case "reading" if state.read_total:
            share = 100 * state.read_done // state.read_total
            left = f", {state.eta_s:.0f} s left" if state.eta_s is not None else ""
            return f"Reading: {state.read_done} of {state.read_total} tokens ({share} %{left})"
        case "reading":
            return "Reading"
        case _:
            return "Answering"
