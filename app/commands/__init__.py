"""One file per command. Each has `add_parser(commands, everywhere)`; importing them must stay quick."""

from app.commands import ask, bench, cache, calibrate, chat, doctor, eval, export, library, models, run, settings

COMMANDS = (run, ask, chat, doctor, models, settings, library, export, cache, eval, bench, calibrate)
"""In the order of the help text."""
