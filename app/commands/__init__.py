"""One file per command. Each has `add_parser(commands, everywhere)`; importing them must stay quick."""

from app.commands import ask, cache, chat, doctor, library, models, run, settings

COMMANDS = (run, ask, chat, doctor, models, settings, library, cache)
"""In the order of the help text."""
