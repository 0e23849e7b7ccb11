"""`unabridged ask FILE... -q TEXT`: questions about files, answered one after another, each by itself."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands import file_set
from app.commands.before import add_choice_flags, add_plan_flags, choice_of, chooses, prepare_maps, print_plan
from app.commands.common import add_setting_flags, asks_for_evidence, opened, print_json, settings_from
from app.commands.failures import exit_code
from app.commands.files import add_password_flag, attach
from app.commands.watch import follow, print_end
from app.errors import AppError, BadInput, WrongUse
from app.questions_table import as_markdown, markdown_row
from app.report import CSV_COLUMNS, csv_row, table_row, turn_object
from app.tasks import TASKS

if TYPE_CHECKING:
    from app.pages import PageChoice
    from app.turn import TurnState
    from app.wiring import App

_DESCRIPTION = """\
Answers questions about files and folders. The files are read once: asked again, also on another day, what was read is
re-used. Several questions are answered one by one, each as if it were the first.
"""


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "ask", parents=[everywhere], help="ask questions about files", description=_DESCRIPTION
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="document, source file, archive or folder")
    parser.add_argument("-q", "--question", action="append", default=[], metavar="TEXT", help="may be repeated")
    parser.add_argument("--suggest", action="store_true", help="print a few ready questions about the files, ask none")
    parser.add_argument("--questions", metavar="FILE", help="a question on each line; - reads standard input")
    add_reading_flags(parser)
    add_password_flag(parser)
    add_plan_flags(parser)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object; one a line for several questions")
    output.add_argument("--csv", action="store_true", help="one row a question, with a header")
    output.add_argument("--markdown", action="store_true", help="a Markdown table with one row a question")
    add_setting_flags(parser)
    parser.set_defaults(run=run)


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    reading = parser.add_mutually_exclusive_group()
    reading.add_argument(
        "--whole", dest="reading", action="store_const", const="whole", help="answer from the whole documents"
    )
    reading.add_argument(
        "--passages", dest="reading", action="store_const", const="passages", help="answer from the best passages"
    )
    reading.add_argument(
        "--parts", dest="reading", action="store_const", const="parts",
        help="ask each part of the documents in turn, then answer from what was found",
    )  # fmt: skip
    parser.add_argument(
        "--pages", metavar="PAGES", help="read only these pages, such as 1-12,15; means --whole unless --parts is given"
    )
    add_choice_flags(parser)
    parser.add_argument(
        "--task", choices=("auto", *TASKS), default="auto",
        help="what kind of question it is; auto = recognised by its words",
    )  # fmt: skip


def chosen_reading(args: argparse.Namespace) -> str | None:
    """'whole', 'parts' or 'passages' as the flags say, None without one. Chosen pages are read whole, or in parts."""
    if args.pages and args.reading == "passages":
        raise WrongUse("--pages and --passages exclude each other.", "Leave one out: passages come from every page.")
    if chooses(args) and args.reading == "passages":
        raise WrongUse("--passages reads no chosen files.", "Leave one out: passages come from every page.")
    return "whole" if chooses(args) and args.reading is None else args.reading


def run(args: argparse.Namespace) -> int:
    questions, reading = ([] if args.plan or args.suggest else _questions(args)), chosen_reading(args)
    if not args.files:
        raise WrongUse("No file was given.", 'For example: unabridged ask manual.pdf -q "How do I reset it?"')
    paths = [Path(name) for name in args.files]
    for path in paths:
        if not path.exists():
            raise BadInput(f"There is no file {path}.", "Check the name and the folder.")
    settings = settings_from(args, reading=reading)
    with opened(settings) as app:
        return _ask_all(app, args, paths, questions)


def _ask_all(app: App, args: argparse.Namespace, paths: list[Path], questions: list[str]) -> int:
    from app.before_reading.choice import store_choice, stored_choice

    quiet, writer, code = args.json or args.csv or args.markdown, csv.writer(sys.stdout), 0
    if args.csv:
        writer.writerow(CSV_COLUMNS)
    if args.markdown:
        print(as_markdown(()), flush=True)
    new_id = app.library.create_conversation(f"Command line: {', '.join(path.name for path in paths)}").id
    try:
        warnings = attach(app, new_id, paths, args.password, args.changed)
        prepare_maps(app, new_id, args.map)
        choice = stored_choice(app, new_id)
    except BaseException:
        app.library.delete_conversation(new_id)
        raise
    conversation_id = file_set.settle(app, new_id)
    store_choice(app, conversation_id, choice)
    if args.suggest:
        _print_ready(app, conversation_id, args.json)
        return 0
    if args.plan:
        print_plan(app, conversation_id, args, " ".join(args.question), warnings)
        return 0
    for number, question in enumerate(questions):
        if len(questions) > 1 and not quiet:
            print(f"{chr(10) if number else ''}== {question}\n", flush=True)
        file_set.start_over(app, conversation_id)
        try:
            pages = choice_of(app, conversation_id, args, question)
            state = _ask(app, conversation_id, question, pages, args.task, quiet)
        except AppError as error:
            if len(questions) == 1:
                raise
            code = code or exit_code(error)
            failure = {"error": error.message, "hint": error.hint, "exit_code": exit_code(error)}
            if args.json:
                print_json({"question": question} | failure)
            elif args.csv:
                writer.writerow(csv_row(question, failure))
            elif args.markdown:
                print(markdown_row(table_row(question, failure)), flush=True)
            else:
                print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            continue
        if not quiet:
            print_end(state, app.model.label, warnings, evidence=asks_for_evidence(app.settings))
            continue
        result = turn_object(state, warnings)
        if args.json:
            print_json(({"question": question} if len(questions) > 1 else {}) | result)
        elif args.markdown:
            print(markdown_row(table_row(question, result)), flush=True)
        else:
            writer.writerow(csv_row(question, result))
            sys.stdout.flush()
    return code


def _ask(app: App, conversation_id: str, question: str, pages: PageChoice | None, task: str, quiet: bool) -> TurnState:
    from app import assistant

    job = assistant.ask(app, conversation_id, question, reading=app.settings.reading, pages=pages, task=task)
    state = follow(job, quiet=quiet)
    if state.error is not None:
        raise state.error
    return state


def _print_ready(app: App, conversation_id: str, as_json: bool) -> None:
    """A few ready questions, one a line."""
    from app.ready_questions import ready_questions

    ready = ready_questions(app, conversation_id)
    if as_json:
        print_json({"questions": list(ready)})
        return
    print(*ready, sep="\n")


def _questions(args: argparse.Namespace) -> list[str]:
    """-q and the lines of --questions, in that order; empty lines and lines that start with # are left out."""
    questions = [question.strip() for question in args.question]
    if args.questions:
        try:
            text = sys.stdin.read() if args.questions == "-" else Path(args.questions).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(
                f"The questions in {args.questions} cannot be read: {reason}.", "One question a line."
            ) from None
        questions += [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not questions or not all(questions):
        raise WrongUse("No question was given.", "Give -q TEXT, or --questions FILE with one on each line.")
    return questions
