"""`unabridged library list|add|remove`: the documents that the app keeps."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands import file_set
from app.commands.common import add_json_flag, opened, print_json, print_table, settings_from
from app.commands.files import add_password_flag, attach
from app.errors import WrongUse
from app.units import format_size

if TYPE_CHECKING:
    from app.wiring import App
    from storage import Document


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("library", parents=[everywhere], help="list, add and remove documents")
    add_json_flag(parser)
    parser.set_defaults(run=show)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", parents=[everywhere], help="every document, newest first")
    adding = actions.add_parser("add", parents=[everywhere], help="read files now, so that later questions are quick")
    adding.add_argument("files", nargs="+", metavar="FILE", help="document, source file, archive or folder")
    add_password_flag(adding)
    removing = actions.add_parser(
        "remove", parents=[everywhere], help="delete a document: its text, search index, copy and KV snapshots"
    )
    removing.add_argument("document", metavar="DOCUMENT", help="its id, the beginning of it, or its name")
    for action, run in ((listing, show), (adding, add), (removing, remove)):
        add_json_flag(action, of_action=True)
        action.set_defaults(run=run)


def show(args: argparse.Namespace) -> int:
    with opened(settings_from(args)) as app:
        documents = sorted(app.library.documents(), key=lambda document: document.added, reverse=True)
    if args.json:
        print_json([asdict(document) for document in documents])
    elif not documents:
        print("The library is empty. Add a file: unabridged library add FILE")
    else:
        rows = [(d.id[:8], f"{d.pages} pages", format_size(d.size), d.name, d.source) for d in documents]
        print_table([("ID", "PAGES", "SIZE", "NAME", "FROM"), *rows])
    return 0


def add(args: argparse.Namespace) -> int:
    paths = [Path(name) for name in args.files]
    with opened(settings_from(args)) as app:
        conversation_id = app.library.create_conversation(f"Command line: {', '.join(p.name for p in paths)}").id
        try:
            warnings = attach(app, conversation_id, paths, args.password)
            documents = app.library.documents(conversation_id)
        except BaseException:
            app.library.delete_conversation(conversation_id)
            raise
        file_set.settle(app, conversation_id)
    if args.json:
        print_json({"documents": [asdict(document) for document in documents], "warnings": list(warnings)})
        return 0
    for document in documents:
        print(f"Added {document.name}: {document.pages} pages, {document.characters} characters.")
    for warning in warnings:
        print(f"note: {warning}")
    return 0


def remove(args: argparse.Namespace) -> int:
    from app.documents import remove_document

    with opened(settings_from(args)) as app:
        document = find_document(app, args.document)
        remove_document(app, document.id)
        file_set.sweep(app)
    if args.json:
        print_json({"removed": document.id, "name": document.name})
    else:
        print(f"Removed {document.name}: text, search index, copy and snapshots.")
    return 0


def find_document(app: App, wanted: str) -> Document:
    """By id, name or the beginning of an id. WrongUse unless it is one."""
    documents = app.library.documents()
    found = [d for d in documents if d.id == wanted] or [d for d in documents if d.name == wanted]
    found = found or [d for d in documents if d.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    what = "No document is" if not found else f"{len(found)} documents are"
    raise WrongUse(f"{what} called {wanted!r}.", "`unabridged library list` shows ids; give one of them.")
