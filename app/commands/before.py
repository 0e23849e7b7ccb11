"""Flags of `ask` and `chat` that decide what is read before it is: --plan, --files, --fit, --map, --changed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.common import StatusLine, print_json
from app.errors import WrongUse
from app.units import format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.before_reading import ReadingPlan
    from app.changes import Changes
    from app.pages import PageChoice
    from app.wiring import App

FITS = ("match", "smallest", "beginning")
SHOWN_ITEMS = 40


def add_choice_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--files", dest="chosen_files", action="append", default=[], metavar="GLOB",
        help="read only these files, such as 'src/*.py'; may be repeated; means --whole unless --parts is given",
    )  # fmt: skip
    parser.add_argument(
        "--fit",
        choices=FITS,
        help="read what fits: pages that match the question, the smallest files, or the beginning",
    )
    parser.add_argument(
        "--map", action="store_true", help="read paths and signatures of folders in place of their text"
    )


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plan", action="store_true", help="only say what reading would take: tokens, time, memory, and what fits"
    )
    parser.add_argument(
        "--changed", choices=("again", "append"), default="again",
        help="a folder that changed: read it again from the first change, or append the new versions",
    )  # fmt: skip


def chooses(args: argparse.Namespace) -> bool:
    """Whether the flags choose a part of the documents, which is read whole or in parts."""
    return bool(args.pages or args.chosen_files or args.fit or args.map)


def prepare_maps(app: App, conversation_id: str, wanted: bool) -> None:
    """--map: every folder and archive is read as its map; without it, as its text, whatever was chosen before."""
    from app.before_reading.choice import store_choice
    from app.before_reading.repository_map import use_map
    from app.changes.versions import MAP

    store_choice(app, conversation_id, None)
    if not wanted:
        return
    documents = [d for d in app.library.documents(conversation_id) if d.kind != MAP and app.library.files(d.id)]
    if not documents:
        raise WrongUse("--map needs a folder or an archive of sources.", "Leave it out for single files.")
    line = StatusLine()
    try:
        for document in documents:
            use_map(app, conversation_id, document, progress=lambda done, total: line.show(f"map: {done} of {total}"))
    finally:
        line.clear()


def choice_of(app: App, conversation_id: str, args: argparse.Namespace, question: str) -> PageChoice | None:
    """What the flags choose for this question; None for everything."""
    from app.before_reading import reading_plan
    from app.before_reading.choice import by_names, sources, stored_choice
    from app.pages import PageChoice

    choice = stored_choice(app, conversation_id)
    if args.pages:
        pages = PageChoice.parse(args.pages)
        choice = pages if choice is None else choice.join(pages)
    if args.chosen_files:
        files = by_names(sources(app, conversation_id), args.chosen_files)
        choice = files if choice is None else choice.join(files)
    if args.fit:
        plan = reading_plan(app, conversation_id, question=question, propose="always")
        if plan.all_tokens <= plan.room:
            return choice
        fitting = next((s for s in plan.suggestions if s.kind == args.fit), None)
        if fitting is None:
            raise WrongUse(f"Nothing can be chosen by {args.fit}.", f"Use one of {', '.join(FITS)}, or --pages.")
        choice = fitting.choice
    return choice


def print_plan(app: App, conversation_id: str, args: argparse.Namespace, question: str, notes: Sequence[str]) -> None:
    """The answer of --plan; the fit of the choice that the other flags make, and what else would fit."""
    from app.before_reading import plan_object, reading_plan
    from app.keeping import not_kept

    choice = choice_of(app, conversation_id, args, question)
    plan = reading_plan(app, conversation_id, choice=choice, question=question)
    notes = [*notes, *not_kept(app, plan.bytes_per_token, plan.tokens)]
    if args.json:
        print_json(plan_object(plan, app.model.name) | {"warnings": list(notes)})
        return
    for line in plan_lines(plan):
        print(line)
    for note in notes:
        print(f"note: {note}")


def plan_lines(plan: ReadingPlan) -> list[str]:
    lines: list[str] = []
    for source in plan.sources:
        document = source.document
        files = f"{len(source.items):,} files, " if source.has_files else ""
        lines.append(f"{document.name}: {files}{document.pages:,} pages, {source.tokens:,} tokens")
        running = source.around
        for item in source.items[:SHOWN_ITEMS]:
            running += item.tokens
            lines.append(f"{running:>12,} {item.tokens:>10,}  {item.name}")
        if len(source.items) > SHOWN_ITEMS:
            lines.append(f"{'':>23}  and {len(source.items) - SHOWN_ITEMS:,} more; --json lists them all")
    if plan.tokens != plan.all_tokens:
        lines.append(f"Chosen: {plan.tokens:,} of {plan.all_tokens:,} tokens.")
    how = "measured on this machine" if plan.estimate.measured else "a guess: nothing was measured yet"
    lines.append(
        f"Reading {plan.tokens:,} tokens takes about {format_time(plan.estimate.seconds)} ({how}) "
        f"and {format_size(plan.estimate.memory_bytes)} of memory."
    )
    over = plan.tokens - plan.room
    verdict = "It fits" if plan.fits else f"It does not fit: {over:,} tokens too many"
    lines.append(f"{verdict}; {plan.room:,} tokens of the context of {plan.context:,} are left for documents.")
    if not plan.fits:
        lines.append("What would work:")
        lines += [f"  --fit {s.kind:<12}{s.text}" for s in plan.suggestions]
        if any(source.has_files for source in plan.sources):
            lines.append(f"  {'--map':<18}Paths and signatures in place of the text of sources.")
            lines.append(f"  {'--files GLOB':<18}Only the files that you name.")
        lines.append(f"  {'--parts':<18}Each part is asked in turn, so everything is read.")
        lines.append(f"  {'--passages':<18}Only the best passages are read.")
    return lines


def attach_known_folder(app: App, conversation_id: str, path: Path, way: str) -> list[str] | None:
    """A folder that was read before is brought up to date instead of being read anew; None if this is no such folder.

    Returns what a reader should know: which files changed, and how they were taken.
    """
    from app import ingest
    from app.changes import apply_changes, find_changes

    known = app.library.last_of_source(str(path.absolute()), "folder") if path.is_dir() else None
    if known is None or not app.library.document(known).extractor.startswith(ingest.extractor("folder")):
        return None
    app.library.attach(conversation_id, known)
    changes = next(iter(find_changes(app, conversation_id)), None)
    if changes is None:
        return []
    line = StatusLine()
    try:
        apply_changes(
            app, conversation_id, known, "append" if way == "append" else "again",
            progress=lambda done, total: line.show(f"{path.name}: file {done} of {total}"),
        )  # fmt: skip
    except WrongUse:  # only files that are not read changed
        return []
    finally:
        line.clear()
    return [changes.sentence(), how_taken(changes, way)]


def tell_changes(app: App, conversation_id: str) -> list[str]:
    """For a conversation that goes on: what changed in its folders, and how `/update` would take it."""
    from app.changes import find_changes

    lines = []
    for changes in find_changes(app, conversation_id):
        lines.append(changes.sentence())
        for way in ("append", "again"):
            lines.append(f"/update {way:<8}{how_taken(changes, way)}")
    return lines


def update_all(app: App, conversation_id: str, way: str) -> list[str]:
    """Takes all changes in one way and says so."""
    from app.changes import apply_changes, find_changes

    if way not in ("append", "again"):
        raise WrongUse(f"/update {way} is no way to take changes.", "Write /update append or /update again.")
    done = []
    for changes in find_changes(app, conversation_id):
        apply_changes(app, conversation_id, changes.document_id, "append" if way == "append" else "again")
        done.append(how_taken(changes, way))
    return done or ["Nothing changed."]


def how_taken(changes: Changes, way: str) -> str:
    estimate = changes.append if way == "append" else changes.again
    time = f", about {format_time(estimate.seconds)}" if estimate is not None else ""
    if way == "append":
        return f"The new versions are appended ({changes.count} files{time})."
    return f"{changes.name} is read again from the first change{time}."
