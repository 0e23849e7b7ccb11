"""`unabridged models list|get|import|remove`: the models of this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app import environment
from app.commands.common import StatusLine, add_json_flag, byte_progress, print_json, print_table, settings_from
from app.models import CATALOGUE, ModelInfo, Models
from app.paths import Paths
from app.units import format_size

_EXAMPLES = """\
unabridged models get qwen2.5-1.5b                       a name of the catalogue
unabridged models get OWNER/REPOSITORY                   its safetensors, or its only GGUF file
unabridged models get OWNER/REPOSITORY:FILE.gguf         one file of several
HF_ENDPOINT names another hub or a mirror, HF_TOKEN is your token for models behind terms.
"""


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("models", parents=[everywhere], help="list, fetch, import and remove models")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=show)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", parents=[everywhere], help="the models here, and those that can be fetched")
    get = actions.add_parser(
        "get", parents=[everywhere], help="fetch a model into the data folder", description=_EXAMPLES
    )
    get.add_argument("model", metavar="NAME", help="catalogue name, OWNER/REPOSITORY or OWNER/REPOSITORY:FILE")
    get.add_argument("--name", default="", help="what to call it here")
    imported = actions.add_parser("import", parents=[everywhere], help="copy a local model into the data folder")
    imported.add_argument("path", metavar="PATH", help="a folder in Hugging Face layout or a .gguf file")
    imported.add_argument("--name", default="", help="what to call it here")
    imported.add_argument("--link", action="store_true", help="link to it instead of copying")
    remove = actions.add_parser("remove", parents=[everywhere], help="delete a model of the data folder")
    remove.add_argument("model", metavar="NAME", help="its name in the list")
    for action, run in ((listing, show), (get, fetch), (imported, add), (remove, delete)):
        add_json_flag(action, of_action=True)
        action.set_defaults(run=run)


def _models(args: argparse.Namespace) -> Models:
    return Models(Paths(settings_from(args).data_dir).prepare().models)


def as_dict(info: ModelInfo) -> dict[str, Any]:
    return asdict(info) | {"path": str(info.path)}


def show(args: argparse.Namespace) -> int:
    models = _models(args)
    found = models.check()
    here = {info.name for info, _ in found if info}
    to_fetch = [entry for entry in CATALOGUE.values() if entry.name not in here]
    if args.json:
        print_json(
            {
                "models": [as_dict(info) for info, _ in found if info],
                "damaged": [{"error": error.message, "hint": error.hint} for _, error in found if error],
                "catalogue": [asdict(entry) for entry in to_fetch],
            }
        )
        return 0
    rows = [
        (info.name, format_size(info.size), f"{info.context} tokens", info.label, info.path)
        for info, _ in found
        if info
    ]
    print_table([("NAME", "SIZE", "CONTEXT", "WHAT", "PATH"), *rows])
    for _, error in found:
        if error:
            print(f"damaged: {error.message} {error.hint}")
    print("\nTo fetch with `unabridged models get NAME`:")
    print_table((e.name, format_size(e.size), f"{e.context} tokens", e.repository) for e in to_fetch)
    return 0


def fetch(args: argparse.Namespace) -> int:
    environment.clean(hub=True)
    from app.hub import get

    models, line = _models(args), StatusLine()
    try:
        info = get(models, args.model, name=args.name, progress=byte_progress(line, f"Fetching {args.model}"))
    finally:
        line.clear()
    return _tell(args, info, "Fetched")


def add(args: argparse.Namespace) -> int:
    environment.clean()
    models, line = _models(args), StatusLine()
    try:
        info = models.add(Path(args.path), args.name, link=args.link, progress=byte_progress(line, "Copying"))
    finally:
        line.clear()
    return _tell(args, info, "Linked" if args.link else "Imported")


def _tell(args: argparse.Namespace, info: ModelInfo, done: str) -> int:
    if args.json:
        print_json(as_dict(info))
    else:
        print(f"{done} {info.name}: {info.label}, {format_size(info.size)}, {info.context} tokens of context.")
        print(f"Use it: unabridged run --model {info.name}")
    return 0


def delete(args: argparse.Namespace) -> int:
    removed = _models(args).remove(args.model)
    if args.json:
        print_json({"removed": args.model, "path": str(removed)})
    else:
        print(f"Removed {args.model}.")
    return 0
