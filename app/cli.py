"""The command line: `unabridged COMMAND`. Each command is one file in app/commands; this one parses and reports errors.

Exit codes: 0 done, 2 wrong use, 3 does not fit, 4 bad input file, 130 interrupted, 1 anything else. An error is one
sentence and one hint on stderr; the traceback only with --debug. Starting is quick: a command imports what it needs.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from app.commands import COMMANDS
from app.errors import AppError, WrongUse, as_app_error

_BAD_MODEL_FILE = {"ModelFileError", "UnsupportedModelError"}
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong: WrongUse with the nearest flag or command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise WrongUse(f"{message[0].upper()}{message[1:]}.", f"`{self.prog} --help` shows how to use it.")


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
    parser.set_defaults(data_dir=None, debug=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        command.add_parser(commands, everywhere)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
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
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise _unknown_arguments(parser, args.command, unknown)
    if args.version:
        import importlib.metadata

        print(importlib.metadata.version("unabridged"))
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    code = args.run(args)
    sys.stdout.flush()
    return code


def explain(error: BaseException) -> AppError:
    """The sentence and hint for any error, a full disk among them."""
    if isinstance(error, OSError) and error.errno in _FULL:
        place = f" ({error.filename})" if error.filename else ""
        return AppError(
            f"The disk is full{place}.", "Make room and run it again; what was stored before is still there."
        )
    if isinstance(error, ModuleNotFoundError):
        return AppError(f"The installation is not complete: {error}.", "Run `python3 installer setup` again.")
    return as_app_error(error)


def exit_code(error: BaseException) -> int:
    """DESIGN's code for an error: its own, or 4 for a model file that cannot be used."""
    links: BaseException | None = error
    while links is not None:
        if type(links).__name__ in _BAD_MODEL_FILE:
            return 4
        links = links.__cause__
    return explain(error).exit_code


def _unknown_arguments(parser: Parser, command: str | None, unknown: list[str]) -> WrongUse:
    chosen = subparser(parser, command) if command else parser
    flags = [flag for action in chosen._actions for flag in action.option_strings]
    first = next((word for word in unknown if word.startswith("-")), unknown[0])
    near = difflib.get_close_matches(first.partition("=")[0], flags, n=1, cutoff=0.6)
    nearest = f"; the nearest is {near[0]}" if near else ""
    return WrongUse(f"There is no {first!r} here{nearest}.", f"`{chosen.prog} --help` shows how to use it.")


def subparser(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices[command]
    raise KeyError(command)


if __name__ == "__main__":
    sys.exit(main())
