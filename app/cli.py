"""The command line: `unabridged COMMAND`. Each command is one file in app/commands; this one parses and reports errors.

Exit codes: 0 done, 2 wrong use, 3 does not fit, 4 bad input file, 130 interrupted, 1 anything else. An error is one
sentence and one hint on stderr; the traceback only with --debug. Starting is quick: a command imports what it needs.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from app.commands import COMMANDS
from app.commands.failures import exit_code, explain
from app.errors import WrongUse
from app.paths import private_files
from app.terminal import clean_output


class Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong: WrongUse with the nearest flag or command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            message = f"there is no {wrong[1]!r} here{_nearest(wrong[1], re.findall(r'[a-z]+', wrong[2]))}"
        end = "" if message.endswith("?") else "."
        raise WrongUse(f"{message[0].upper()}{message[1:]}{end}", f"`{self.prog} --help` shows how to use it.")


def build_parser() -> Parser:
    """The whole grammar; docs/cli.md is tested against it."""
    everywhere = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    everywhere.add_argument("--data-dir", metavar="DIR", help="folder of everything that the app keeps")
    everywhere.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser = Parser(
        prog="unabridged",
        description="Chat with whole documents, not snippets, on your own machine.",
        parents=[everywhere],
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        command.add_parser(commands, everywhere)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    with clean_output():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        with private_files():
            return _run(arguments)
    except SystemExit as leaving:  # argparse after --help
        return leaving.code if isinstance(leaving.code, int) else 0
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print("error: Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing is left to say, and Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        shown = explain(error)
        print(f"error: {shown.message}", file=sys.stderr)
        if shown.hint:
            print(f"hint: {shown.hint}", file=sys.stderr)
        return exit_code(error)


def _run(arguments: list[str]) -> int:
    parser = build_parser()
    # Given as a namespace: defaults of the parser would win over what stands before the command.
    args, unknown = parser.parse_known_args(arguments, argparse.Namespace(data_dir=None, debug=False))
    if unknown:
        raise _unknown_arguments(parser, args.command, unknown)
    if args.version:
        print(f"unabridged {_version()}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    code = args.run(args)
    sys.stdout.flush()
    return code


def _unknown_arguments(parser: Parser, command: str | None, unknown: list[str]) -> WrongUse:
    chosen = subparser(parser, command) if command else parser
    flags = [flag for action in chosen._actions for flag in action.option_strings]
    first = next((word for word in unknown if word.startswith("-")), unknown[0])
    near = _nearest(first.partition("=")[0], flags)
    return WrongUse(f"There is no {first!r} here{near or '.'}", f"`{chosen.prog} --help` shows how to use it.")


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _version() -> str:
    """Of the installed distribution, else of the checkout that this file stands in."""
    import importlib.metadata
    import tomllib
    from pathlib import Path

    try:
        return importlib.metadata.version("unabridged")
    except importlib.metadata.PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        return tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]


def subparser(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices[command]
    raise KeyError(command)


if __name__ == "__main__":
    sys.exit(main())
