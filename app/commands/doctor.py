"""`unabridged doctor`: is everything here that the app needs, and what can this machine do?"""

from __future__ import annotations

import argparse
from typing import Any

from app import environment
from app.commands.common import add_json_flag, add_setting_flags, print_json, settings_from


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "doctor",
        parents=[everywhere],
        help="check the installation and this machine",
        description="Checks the installation and prints what this machine can do. Exit code 1 if a check fails.",
    )
    add_json_flag(parser)
    add_setting_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    environment.clean()
    from app.doctor import examine

    report = examine(settings_from(args))
    if args.json:
        print_json(report.as_dict())
    else:
        print("\n".join(report.lines()))
    return 0 if report.healthy else 1
