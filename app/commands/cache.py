"""`unabridged cache stats|verify|prune|pin`: the KV snapshots. They can always be deleted; text is never in danger."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from app.commands.common import add_json_flag, add_setting_flags, opened, print_json, print_table, settings_from
from app.commands.library import find_document
from app.errors import WrongUse
from app.pins import pinned_documents, set_pin
from app.units import format_size, parse_size

if TYPE_CHECKING:
    from app.wiring import App


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("cache", parents=[everywhere], help="look at, check and shrink the KV snapshots")
    add_json_flag(parser)
    parser.set_defaults(run=stats)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    showing = actions.add_parser("stats", parents=[everywhere], help="how much is stored, of what, and the quota")
    checking = actions.add_parser("verify", parents=[everywhere], help="check every row; damaged ones are removed")
    pruning = actions.add_parser("prune", parents=[everywhere], help="delete the least recently used snapshots")
    pruning.add_argument("--to", metavar="SIZE", default="0", help="what may stay, such as 5GB (default: nothing)")
    pinning = actions.add_parser("pin", parents=[everywhere], help="never delete a document's snapshots to save space")
    pinning.add_argument(
        "document", nargs="?", metavar="DOCUMENT", help="its id, the beginning of it, or its name; without: list pins"
    )
    pinning.add_argument("--off", action="store_true", help="let go of it again")
    for action, run in ((showing, stats), (checking, verify), (pruning, prune), (pinning, pin)):
        add_json_flag(action, of_action=True)
        add_setting_flags(action, ("cache.quota",))
        action.set_defaults(run=run)


def stats(args: argparse.Namespace) -> int:
    with opened(settings_from(args)) as app:
        found = app.snapshots.stats()
        conversations = _conversations(app)
        facts = asdict(found) | {
            "quota_origin": app.settings.origin("cache.quota"),
            "pinned_bytes": app.snapshots.pinned_bytes(),
            "pinned_documents": [{"id": d.id, "name": d.name} for d in pinned_documents(app)],
            "conversations": conversations,
        }
    if args.json:
        print_json(facts)
        return 0
    print(
        f"{found.rows} snapshot rows, {format_size(found.bytes)} of {format_size(found.quota_bytes)} "
        f"({format_size(found.file_bytes)} on disk), for {found.owners} conversations."
    )
    if conversations:
        rows = [
            (c["id"][:8], f"{c['tokens']:,}", format_size(c["bytes"]), "pinned" if c["pinned"] else "", c["title"])
            for c in conversations
        ]
        print_table([("CHAT", "TOKENS", "SIZE", "", "TITLE"), *rows])
        print("Rows that several chats share count for each of them here, and once above.")
    return 0


def verify(args: argparse.Namespace) -> int:
    with opened(settings_from(args)) as app:
        damaged = app.snapshots.verify()
        rows = app.snapshots.stats().rows
    if args.json:
        print_json({"rows": rows, "damaged": damaged})
    elif damaged:
        print(f"{len(damaged)} damaged rows were removed, {rows} are sound. What they held will be read again.")
    else:
        print(f"All {rows} rows are sound.")
    return 0


def prune(args: argparse.Namespace) -> int:
    try:
        most = parse_size(args.to)
    except ValueError as error:
        raise WrongUse(f"--to: {error}.", "Write a size such as 5GB.") from None
    with opened(settings_from(args)) as app:
        freed = app.snapshots.prune(most)
        kept, pinned = app.snapshots.stats().bytes, app.snapshots.pinned_bytes()
    if args.json:
        print_json({"removed_bytes": freed, "bytes": kept, "pinned_bytes": pinned})
        return 0
    print(f"Removed {format_size(freed)} of snapshots.")
    if kept > most:
        print(f"{format_size(kept)} stay: {format_size(pinned)} are pinned.")
    return 0


def pin(args: argparse.Namespace) -> int:
    with opened(settings_from(args)) as app:
        if args.document is None:
            if args.off:
                raise WrongUse("--off needs a document.", "`unabridged cache pin` lists the pinned ones.")
            documents = pinned_documents(app)
        else:
            documents = [find_document(app, args.document)]
            set_pin(app, documents[0], not args.off)
    if args.json:
        print_json([{"id": d.id, "name": d.name, "pinned": not args.off} for d in documents])
    elif args.document is None:
        print_table([(d.id[:8], d.name) for d in documents] or [("No document is pinned.",)])
    else:
        done = "no longer pinned" if args.off else "pinned: its snapshots stay, whatever the quota"
        print(f"{documents[0].name} is {done}.")
    return 0


def _conversations(app: App) -> list[dict[str, Any]]:
    """What each conversation's rows hold, the most recently used first."""
    titles = {conversation.id: conversation.title for conversation in app.library.conversations()}
    holdings = sorted(app.snapshots.holdings(), key=lambda holding: holding.last_used, reverse=True)
    return [
        {
            "id": holding.owner,
            "title": titles.get(holding.owner, ""),
            "rows": holding.rows,
            "tokens": holding.tokens,
            "bytes": holding.bytes,
            "last_used": holding.last_used,
            "pinned": holding.pinned,
        }
        for holding in holdings
    ]
