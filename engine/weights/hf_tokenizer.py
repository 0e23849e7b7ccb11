"""The tokenizer side of a Hugging Face folder: tokenizer.json, its settings, special tokens and the chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config import ModelConfig
from engine.errors import ModelFileError
from engine.weights.json_files import read_limited, read_object
from engine.weights.source import TokenizerSource

TOKENIZER_LIMIT = 128 << 20
TEMPLATE_LIMIT = 1 << 20
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_tokenizer_files(folder: Path, config: ModelConfig) -> TokenizerSource:
    """ModelFileError where tokenizer.json is missing or a settings file is damaged."""
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelFileError(
            f"The folder {folder.name} has no tokenizer.json.", "Get the model's tokenizer.json into the folder."
        )
    settings = _optional(folder / "tokenizer_config.json")
    special = _special_tokens(settings)
    for name, text in _special_tokens(_optional(folder / "special_tokens_map.json")).items():
        special.setdefault(name, text)
    return TokenizerSource(
        name=folder.name,
        tokenizer_json=read_limited(tokenizer, TOKENIZER_LIMIT),
        chat_template=_chat_template(folder, settings),
        special_tokens=special,
        eos_ids=config.eos_ids,
        bos_id=config.bos_id,
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """A token is written as its text, or as an object with the text in "content"."""
    found = {}
    for name in SPECIAL_NAMES:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: one text, or several of which "default" counts."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_limited(file, TEMPLATE_LIMIT).decode("utf-8", errors="replace")
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, Mapping)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelFileError(
            f"tokenizer_config.json of {folder.name} has a chat template that is not text.", "Get the file again."
        )
    return value
