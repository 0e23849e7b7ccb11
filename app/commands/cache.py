"""`unabridged cache stats|verify|prune`: the KV snapshots. They can always be deleted; text is never in danger."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from app.commands.common import add_json_flag, add_setting_flags, opened, print_json, settings_from
from app.errors import WrongUse
from app.units import format_size, parse_size


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("cache", parents=[everywhere], help="look at, check and shrink the KV snapshots")
    add_json_flag(parser)
    parser.set_defaults(run=stats)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    showing = actions.add_parser("stats", parents=[everywhere], help="how much is stored, and the quota")
    checking = actions.add_parser("verify", parents=[everywhere], help="check every row; damaged ones are removed")
    pruning = actions.add_parser("prune", parents=[everywhere], help="delete the least recently used snapshots")
    pruning.add_argument("--to", metavar="SIZE", default="0", help="what may stay, such as 5GB (default: nothing)")
    for action, run in ((showing, stats), (checking, verify), (pruning, prune)):
        add_json_flag(action, of_action=True)
        add_setting_flags(action, ("cache.quota",))
        action.set_defaults(run=run)


def stats(args: argparse.Namespace) -> int:
    with opened(settings_from(args)) as app:
        found = app.snapshots.stats()
    if args.json:
        print_json(asdict(found))
    else:
        print(
            f"{found.rows} snapshot rows, {format_size(found.bytes)} of {format_size(found.quota_bytes)} "
            f"({format_size(found.file_bytes)} on disk), for {found.owners} conversations."
        )
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
    if args.json:
        print_json({"removed_bytes": freed})
    else:
        print(f"Removed {format_size(freed)} of snapshots.")
    return 0
