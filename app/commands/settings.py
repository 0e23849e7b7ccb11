"""`unabridged settings`: every key with value, origin and meaning; set or unset one in settings.toml."""

from __future__ import annotations

import argparse
from typing import Any

from app.commands.common import add_json_flag, add_setting_flags, print_json, print_table, settings_from
from app.errors import WrongUse
from app.settings import store_setting


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "settings",
        parents=[everywhere],
        help="show every setting, or change one",
        description="Shows every setting with its value, where the value comes from, and what it means.\n"
        "`settings set KEY VALUE` and `settings unset KEY` change settings.toml in the data folder.",
    )
    parser.add_argument("action", nargs="?", choices=("set", "unset"), help="change settings.toml")
    parser.add_argument("key", nargs="?", metavar="KEY", help="a key such as kv_format or cache.quota")
    parser.add_argument("value", nargs="?", metavar="VALUE", help="its new value, for set")
    add_json_flag(parser)
    add_setting_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = settings_from(args)
    if args.action is not None:
        wanted = 3 if args.action == "set" else 2
        if len([word for word in (args.action, args.key, args.value) if word is not None]) != wanted:
            raise WrongUse(
                f"`settings {args.action}` needs {'a key and a value' if wanted == 3 else 'a key'}.",
                "For example: unabridged settings set kv_format k8v4",
            )
        store_setting(settings.data_dir, args.key, args.value)
        settings = settings_from(args)
    rows = settings.rows()
    if args.json:
        print_json({"data_dir": str(settings.data_dir), "settings": rows})
    else:
        print_table((row["key"], row["value"], row["origin"], row["meaning"]) for row in rows)
    return 0
