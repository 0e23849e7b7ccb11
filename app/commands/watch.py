"""Follows one job on a terminal: passages first, the answer as it streams, progress on stderr."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from app.commands.common import StatusLine
from app.parts.text import pages_name
from app.report import citation_lines, evidence_lines, part_lines, passage_lines, stats_line

if TYPE_CHECKING:
    from app.jobs import Job
    from app.parts.state import PartsState
    from app.turn import TurnState

_POLL_S = 0.05
KEY_SENTENCES = "Key sentences, copied from the text by the app:"


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
                    name = "Best passages:" if state.task == "question" else KEY_SENTENCES
                    shown = passages if state.task == "question" else len(state.passages)
                    print(name, *passage_lines(state.passages[:shown], width), "", sep="\n", flush=True)
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


def print_end(state: TurnState, model: str, warnings: tuple[str, ...] = (), *, evidence: bool = False) -> None:
    """What stands under an answer: its sources and the status line; warnings go to stderr. evidence: where the model
    looked, too."""
    if state.parts is not None:
        print("\nParts:", *(f"  {line}" for line in part_lines(state.parts)), sep="\n")
    sources = citation_lines(state.citations)
    if sources:
        print("\nSources:", *(f"  {line}" for line in sources), sep="\n")
    if evidence and state.evidence is not None:
        print("\nWhere the model looked:", *(f"  {line}" for line in evidence_lines(state.evidence)), sep="\n")
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
        case "reading" if state.parts is not None and not state.parts.level:
            return _part_text(state, state.parts)
        case "reading" if state.read_total:
            share = 100 * state.read_done // state.read_total
            left = f", {state.eta_s:.0f} s left" if state.eta_s is not None else ""
            return f"Reading: {state.read_done} of {state.read_total} tokens ({share} %{left})"
        case "reading":
            return "Reading"
        case _:
            return "Answering"


def _part_text(state: TurnState, parts: PartsState) -> str:
    part = parts.current
    if part is None:
        return f"Read {parts.done} of {len(parts.parts)} parts"
    left = f", {state.eta_s:.0f} s left" if state.eta_s is not None else ""
    found = sum(part.found for part in parts.parts)
    where = f"{part.document}, {pages_name(part.pages)}"
    return f"Part {part.number} of {len(parts.parts)} ({where}), found in {found} so far{left}"
