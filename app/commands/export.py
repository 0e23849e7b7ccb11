"""`unabridged export [CONVERSATION]`: a conversation as Markdown, JSON or DOCX, with its citations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.common import opened, settings_from
from app.errors import AppError, WrongUse

if TYPE_CHECKING:
    from app.wiring import App

FORMATS = ("md", "json", "docx")
_DESCRIPTION = """\
Writes a conversation to a file: questions, answers and every citation with document, page, quote and how far it was
checked. The documents' own text is not part of it. Without a conversation the latest one is taken.
"""


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "export", parents=[everywhere], help="write a conversation to a file", description=_DESCRIPTION
    )
    parser.add_argument(
        "conversation", nargs="?", metavar="CONVERSATION", help="its id or the beginning of it, or its title"
    )
    parser.add_argument("--format", choices=FORMATS, help="md (the default), json or docx; else as --output ends")
    parser.add_argument(
        "--output", "-o", metavar="FILE", help="file to write; - is standard output, the default for text"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from app.export import export

    format = _format(args.format, args.output)
    with opened(settings_from(args)) as app:
        exported = export(app, _find(app, args.conversation), format)
    if args.output == "-" or (args.output is None and format != "docx"):
        if format == "docx":
            sys.stdout.buffer.write(exported.data)
        else:
            print(exported.data.decode("utf-8"), end="")
        return 0
    path = Path(args.output or exported.name)
    try:
        path.write_bytes(exported.data)
    except OSError as error:
        raise AppError(f"{path} cannot be written: {error.strerror}.", "Choose another place with --output.") from error
    print(f"Wrote {path}.")
    return 0


def _format(chosen: str | None, output: str | None) -> str:
    if chosen:
        return chosen
    ending = Path(output).suffix.lstrip(".").lower() if output else ""
    return {"markdown": "md"}.get(ending, ending) if ending in (*FORMATS, "markdown") else "md"


def _find(app: App, wanted: str | None) -> str:
    from app import conversations

    known = conversations.list(app)
    if wanted is None:
        if not known:
            raise WrongUse("There is no conversation yet.", "Ask something first: unabridged chat FILE")
        return max(known, key=lambda conversation: conversation.updated).id
    found = [c for c in known if c.id.startswith(wanted)] or [c for c in known if c.title == wanted]
    if len(found) == 1:
        return found[0].id
    what = "No conversation is" if not found else f"{len(found)} conversations are"
    names = ", ".join(f"{c.id[:8]} ({c.title[:40]})" for c in known[:5])
    raise WrongUse(f"{what} called {wanted!r}.", f"The newest are {names}." if names else "There is none yet.")
