"""`unabridged chat [FILE...]`: a conversation in the terminal, the same as on the page and stored with it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.ask import add_reading_flags, chosen_reading
from app.commands.before import choice_of, plan_lines, prepare_maps, tell_changes, update_all
from app.commands.common import add_setting_flags, asks_for_evidence, opened, settings_from
from app.commands.files import add_password_flag, attach
from app.commands.watch import follow, print_end
from app.errors import AppError, WrongUse

if TYPE_CHECKING:
    from app.pages import PageChoice
    from app.wiring import App

HELP = """\
/passages         answer from the best passages
/whole            answer from the whole documents
/parts            ask each part of the documents in turn
/pages 1-12       read these pages whole; /pages alone ends the choice
/add FILE         add a document to this conversation
/plan             tokens of each file, time and memory, and what fits
/update append    take what changed in folders: append the new versions; /update again reads from the first change
/stop             stop the answer (so does Ctrl-C while it runs)
/help             this list
/quit             leave; the conversation is kept (so does Ctrl-D, and Ctrl-C at the prompt)\
"""


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "chat",
        parents=[everywhere],
        help="a conversation in the terminal",
        description="A conversation about files in the terminal. It is stored and also appears on the page.\n"
        f"Commands inside:\n{HELP}",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="document, source file, archive or folder")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--conversation", metavar="ID", help="go on with this conversation")
    which.add_argument("--last", action="store_true", help="go on with the latest conversation")
    add_reading_flags(parser)
    add_password_flag(parser)
    add_setting_flags(parser)
    parser.set_defaults(run=run)


@dataclass(slots=True)
class _Chat:
    """What the commands of a chat change."""

    app: App
    conversation_id: str
    reading: str
    """As flags and commands say, else 'auto': by the settings, else by the model's size."""
    pages: PageChoice | None
    password: str | None
    task: str
    args: argparse.Namespace


def run(args: argparse.Namespace) -> int:
    from app.pages import PageChoice

    chosen_reading(args)  # refuses --pages with --passages; here /pages can end the choice, so it is no setting
    settings = settings_from(args, reading=args.reading)
    pages = PageChoice.parse(args.pages) if args.pages else None
    with opened(settings) as app:
        conversation_id, is_new = _conversation(app, args), not (args.conversation or args.last)
        chat = _Chat(app, conversation_id, args.reading or "auto", pages, args.password, args.task, args)
        try:
            for warning in attach(app, conversation_id, [Path(name) for name in args.files], args.password):
                print(f"note: {warning}", file=sys.stderr)
            if args.map:
                prepare_maps(app, conversation_id, True)
            for line in tell_changes(app, conversation_id):
                print(f"note: {line}", file=sys.stderr)
            _loop(chat)
        finally:
            _leave(app, conversation_id, is_new)
    return 0


def _conversation(app: App, args: argparse.Namespace) -> str:
    if args.conversation:
        known = [c.id for c in app.library.conversations() if c.id.startswith(args.conversation)]
        if len(known) != 1:
            raise WrongUse(f"There is no conversation {args.conversation!r}.", "Give an id that `chat` printed.")
        return known[0]
    if args.last:
        from app import conversations

        latest = conversations.list(app)
        if not latest:
            raise WrongUse("There is no conversation yet.", "Leave out --last to begin one.")
        return max(latest, key=lambda conversation: conversation.updated).id
    return app.library.create_conversation().id


def _leave(app: App, conversation_id: str, is_new: bool) -> None:
    """A chat in which nothing was asked leaves nothing behind; any other says how to go on with it."""
    if app.library.messages(conversation_id):
        print(f"Go on with it: unabridged chat --conversation {conversation_id}")
    elif is_new:
        app.library.delete_conversation(conversation_id)


def _loop(chat: _Chat) -> None:
    """Reads questions until /quit, end of input, or Ctrl-C at the prompt."""
    interactive = sys.stdin.isatty()
    if interactive:
        _line_editing()
        names = ", ".join(document.name for document in chat.app.library.documents(chat.conversation_id))
        print(f"{chat.app.model.label}. {names or 'No documents; /add FILE adds one'}. /help lists the commands.")
        for message in chat.app.library.messages(chat.conversation_id)[-2:]:
            print(f"\n{'> ' if message.role == 'user' else ''}{message.text}")
    while True:
        try:
            line = input("\n> " if interactive else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            return
        try:
            if line.startswith("/"):
                if not _command(chat, line):
                    return
            elif line:
                _turn(chat, line)
        except KeyboardInterrupt:
            print("[stopped]")
        except AppError as error:
            print(f"error: {error.message}", f"hint: {error.hint}", sep="\n", file=sys.stderr)


def _turn(chat: _Chat, question: str) -> None:
    from app import assistant

    pages = chat.pages
    if pages is None and chat.reading != "passages" and (chat.args.chosen_files or chat.args.fit):
        pages = choice_of(chat.app, chat.conversation_id, chat.args, question)
    chosen = pages is not None or chat.args.map
    reading = "whole" if chosen and chat.reading not in ("parts", "passages") else chat.reading
    job = assistant.ask(chat.app, chat.conversation_id, question, reading=reading, pages=pages, task=chat.task)
    state = follow(job)
    if state.error is not None:
        raise state.error
    print_end(state, chat.app.model.label, evidence=asks_for_evidence(chat.app.settings))


def _command(chat: _Chat, line: str) -> bool:
    """Does one /command; False when the chat ends."""
    from app.pages import PageChoice

    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    match name:
        case "quit" | "exit" | "q":
            return False
        case "help":
            print(HELP)
        case "passages" | "whole" | "parts":
            chat.reading = name
            names = {"passages": "the best passages", "whole": "the whole documents", "parts": "each part in turn"}
            print(f"Answers now come from {names[name]}.")
            if name == "passages" and chat.pages is not None:
                chat.pages = None
                print("No pages are chosen any more.")
        case "pages":
            if rest and chat.reading == "passages":
                raise WrongUse("Answers come from the best passages of every page.", "/whole first, then /pages.")
            chat.pages = PageChoice.parse(rest) if rest else None
            print(f"Pages {rest} are read whole." if rest else "No pages are chosen any more.")
        case "add" if rest:
            for warning in attach(chat.app, chat.conversation_id, [Path(rest).expanduser()], chat.password):
                print(f"note: {warning}", file=sys.stderr)
            print(f"Added {Path(rest).name}.")
        case "plan":
            from app.before_reading import reading_plan
            from app.keeping import not_kept

            plan = reading_plan(chat.app, chat.conversation_id, choice=chat.pages)
            notes = [f"note: {note}" for note in not_kept(chat.app, plan.bytes_per_token, plan.tokens)]
            print("\n".join([*plan_lines(plan), *notes]))
        case "update" if rest:
            print("\n".join(update_all(chat.app, chat.conversation_id, rest)))
        case "stop":
            job = chat.app.engine_service.current(chat.conversation_id)
            if job is None:
                print("Nothing is running.")
            else:
                job.cancel()
        case _:
            raise WrongUse(f"There is no command {line!r}.", "/help lists the commands.")
    return True


def _line_editing() -> None:
    """Arrow keys and history where Python has readline; Windows has its own."""
    if importlib.util.find_spec("readline") is not None:
        importlib.import_module("readline")
