"""Settings: one frozen dataclass is the schema, with the meaning and the rule of every key.

Order of loading, later wins: defaults, `settings.toml` in the data folder, environment (UNABRIDGED_CACHE_QUOTA for
`cache.quota`), flags. Every value is checked when it is made, and `Settings.origin(key)` says where it came from. A key
that does not exist is an error that names the nearest one; a documented key or value whose feature is not in this
version is refused by name, never ignored.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.errors import WrongUse
from app.setting_rules import (
    Parse,
    choice,
    device_name,
    divisor_of_64,
    number,
    ocr_languages,
    pattern_name,
    switch,
    text,
    whole,
)
from app.units import parse_length, parse_size

ENVIRONMENT_PREFIX = "UNABRIDGED_"
FILE_NAME = "settings.toml"
OTHER_VARIABLES = frozenset({"UNABRIDGED_DATA_DIR", "UNABRIDGED_TORCH"})
"""Documented variables that are no settings: app/paths.py and the installer read them."""

# Keys of the design whose feature this version does not have yet.
LATER_KEYS = {"memory_reserve": "what is left to other programs cannot be set in this version"}
_LATER_FORMAT = "this KV format is not in this version"


def _setting(default: object, parse: Parse, meaning: str, key: str = "") -> Any:
    return field(default=default, metadata={"parse": parse, "meaning": meaning, "key": key})


_LENGTH = "a number of tokens such as 8192 or 12k"
_SIZE = "a size such as 20GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose. None stands for 'auto' where the meaning says so.

    Raises ValueError('key: got X, need Y') for a value outside its rule.
    """

    data_dir: Path
    model: str = _setting("starter", text, "catalogue name, model folder or GGUF file that answers")
    profile: str = _setting(
        "auto",
        choice("auto", "cpu", "ada", "ampere-dc", "hopper", "blackwell"),
        "set of kernels and formats for a kind of machine; auto = chosen from the machine",
    )
    device: str = _setting(
        "auto", device_name, "where the model runs: cpu, cuda:N or N for card N; auto = the card with most free memory"
    )
    context: int | None = _setting(
        None, whole(128, 2**24, _LENGTH, parse_length, auto=True), "longest prompt plus answer, tokens; auto = model's"
    )
    kv_format: str = _setting(
        "auto",
        choice(
            "auto",
            "f32",
            "bf16",
            "fp8",
            "k8v8",
            "k8v4",
            "k4v4",
            "k3v3",
            "k3v2",
            "k2v2",
            later={"widest": _LATER_FORMAT},
        ),
        "how keys and values are kept: f32, bf16, 8 to 2 bits for keys (k) and values (v); auto = by profile",
    )
    mode: str = _setting(
        "balanced",
        pattern_name,
        "how answers attend: exact, balanced, fast, or an attention pattern's name",
    )
    sparsity_budget: int | None = _setting(
        None,
        whole(320, 2**24, _LENGTH, parse_length, auto=True),
        "tokens that a step of balanced or fast reads; auto = by mode",
        key="sparsity.budget",
    )
    sparsity_ratio: float | None = _setting(
        None, number(0, 1, auto=True), "budget as a share of the context, if that is more", key="sparsity.ratio"
    )
    sparsity_crossover: int = _setting(
        12288,
        whole(0, 2**24, _LENGTH, parse_length),
        "shorter contexts are answered densely",
        key="sparsity.crossover",
    )
    sparsity_streaming_ratio: float | None = _setting(
        None,
        number(0, 1, auto=True),
        "share of KV heads forced to stream; auto = by their gates",
        key="sparsity.streaming_ratio",
    )
    sparsity_logical_pages: int = _setting(
        16,
        divisor_of_64,
        "tokens of a logical page, the unit that is scored",
        key="sparsity.logical_pages",
    )
    sparsity_reuse_interval: int = _setting(
        4,
        divisor_of_64,
        "past 64k so many tokens share a choice of pages, past 256k twice as many",
        key="sparsity.reuse_interval",
    )
    sparsity_score: str = _setting(
        "coarse_keys", choice("coarse_keys", "mean_std", "min_max"), "how KV pages are judged", key="sparsity.score"
    )
    prefill_chunk: int | None = _setting(
        None,
        whole(64, 65536, _LENGTH, parse_length, auto=True),
        "tokens read at once in prefill; auto = by machine",
    )
    threads: int | None = _setting(
        None,
        whole(1, 1024, "a number of threads from 1", auto=True),
        "CPU threads; auto = physical cores",
    )
    max_answer_tokens: int = _setting(
        512, whole(1, 2**20, _LENGTH, parse_length), "longest answer, tokens; this room is part of every fit"
    )
    ocr: str = _setting(
        "",
        ocr_languages,
        "languages (eng, deu+eng) in which tesseract reads scanned pages of PDFs; empty = scanned pages are only named",
    )
    cache_quota: int | None = _setting(
        None,
        whole(0, 2**60, _SIZE, parse_size, auto=True),
        "disk for KV snapshots; auto = the smaller of 20 % of free disk and 200 GB",
        key="cache.quota",
    )
    decode_weights: str = _setting(
        "auto",
        choice("auto", "f32", "bf16", "fp8", "int8", "int4"),
        "packing of weights, on a CPU f32, int8 or int4 in decode, on a card bf16, fp8 or int4; auto = by profile",
    )
    reading: str = _setting(
        "auto",
        choice("auto", "passages", "whole", "parts"),
        "answer from the best passages, the whole document, or its parts in turn; auto = passages for models under 1B",
    )
    evidence: bool = _setting(True, switch, "keep where the model looked while it answered")
    temperature: float = _setting(0.0, number(0, 2), "randomness of answers; 0 = always the likeliest token")
    top_p: float = _setting(1.0, number(0.01, 1), "keep the likeliest tokens up to this total probability")
    top_k: int = _setting(0, whole(0, 10**6, "a whole number from 0"), "keep this many likeliest tokens; 0 = all")
    min_p: float = _setting(0.0, number(0, 1), "drop tokens less likely than this share of the likeliest")
    repetition_penalty: float = _setting(1.0, number(0.5, 2), "above 1 makes repeated tokens less likely; 1 = off")
    seed: int | None = _setting(
        None, whole(0, 2**63 - 1, "a whole number from 0", auto=True), "same seed, same answer; auto = a new one"
    )
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.data_dir, Path) or not self.data_dir.is_absolute():
            raise ValueError(f"data_dir: got {self.data_dir!r}, need an absolute path")
        for key, known in KEYS.items():
            value = getattr(self, known.attribute)
            try:
                same = known.parse(value) == value
            except ValueError as error:
                raise ValueError(f"{key}: got {value!r}, {error}") from None
            if not same:
                raise ValueError(f"{key}: got {value!r}, need {known.parse(value)!r}")

    def origin(self, key: str) -> str:
        """Where the value of key came from: 'default', 'settings.toml', 'environment NAME' or 'flag --name'."""
        return self.origins.get(key, "default")

    def value(self, key: str) -> Any:
        """The value by its key, as in settings.toml: value('cache.quota')."""
        return getattr(self, known_key(key).attribute)

    def rows(self) -> list[dict[str, Any]]:
        """Every key with value, origin and meaning, in the order of the schema; data_dir first."""
        first = {"key": "data_dir", "value": str(self.data_dir), "origin": self.origin("data_dir")}
        rows = [first | {"meaning": "folder of everything that the app keeps"}]
        for key, known in KEYS.items():
            value = getattr(self, known.attribute)
            shown = "auto" if value is None else value
            rows.append({"key": key, "value": shown, "origin": self.origin(key), "meaning": known.meaning})
        return rows


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the schema."""

    key: str
    attribute: str
    parse: Parse
    meaning: str

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.attribute.upper()

    @property
    def flag(self) -> str:
        return "--" + self.attribute.removeprefix("sparsity_").replace("_", "-")


KEYS: Mapping[str, Key] = MappingProxyType(
    {
        (key := f.metadata["key"] or f.name): Key(key, f.name, f.metadata["parse"], f.metadata["meaning"])
        for f in fields(Settings)
        if "parse" in f.metadata
    }
)


def known_key(key: str, where: str = "") -> Key:
    """The key, else WrongUse that names the nearest one or the reason why a later feature's key is refused."""
    if key in KEYS:
        return KEYS[key]
    place = f" in {where}" if where else ""
    if key in LATER_KEYS:
        raise WrongUse(f"The setting {key!r}{place} has no effect: {LATER_KEYS[key]}.", "Remove it.")
    near = difflib.get_close_matches(key, [*KEYS, *(k.attribute for k in KEYS.values())], n=1, cutoff=0.0)[0]
    near = next((k.key for k in KEYS.values() if k.attribute == near), near)
    raise WrongUse(
        f"There is no setting {key!r}{place}; the nearest is {near!r}.", "`unabridged settings` lists every setting."
    )


def load_settings(
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    data_dir_origin: str = "",
) -> Settings:
    """Defaults < data_dir/settings.toml < environment < flags.

    flags: by key ('kv_format', 'cache.quota'); None means not given. environment: os.environ unless given.
    data_dir: None = from the environment, else the user's data folder. Raises WrongUse.
    """
    from app.paths import resolve_data_dir

    environment = os.environ if environment is None else environment
    folder, origin = resolve_data_dir(data_dir, environment)
    values: dict[str, Any] = {}
    origins = {"data_dir": data_dir_origin or origin}
    for source, given in (
        (lambda known: FILE_NAME, _from_file(folder / FILE_NAME)),
        (lambda known: f"environment {known.environment}", _from_environment(environment)),
        (
            lambda known: "flag " + known.flag,
            {k: v for k, v in (flags or {}).items() if v is not None},
        ),
    ):
        for key, value in given.items():
            known = known_key(key, FILE_NAME if source(KEYS["model"]) == FILE_NAME else "")
            values[known.attribute] = checked(known, value, source(known))
            origins[key] = source(known)
    return Settings(data_dir=folder, origins=MappingProxyType(origins), **values)


def checked(known: Key, given: object, origin: str) -> Any:
    """given, parsed by the key's rule; WrongUse with the origin when it breaks it."""
    try:
        return known.parse(given)
    except ValueError as error:
        message = f"The setting {known.key} from {origin}: got {given!r}, {error}."
        raise WrongUse(message, f"{known.key}: {known.meaning}.") from None


def _from_file(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} cannot be read: {error}.", "Make the file readable, or move it away.") from None
    return parse_file(text, str(path))


def parse_file(text: str, where: str = FILE_NAME) -> dict[str, object]:
    """settings.toml as flat keys: [cache] quota = ... and cache.quota = ... are the same."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WrongUse(f"{where} is not valid TOML: {error}.", 'A line reads: key = "value".') from None
    flat: dict[str, object] = {}

    def walk(prefix: str, table: Mapping[str, Any]) -> None:
        for name, value in table.items():
            if isinstance(value, Mapping):
                walk(f"{prefix}{name}.", value)
            else:
                flat[prefix + name] = value

    walk("", tables)
    return flat


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    by_name = {known.environment: known.key for known in KEYS.values()}
    later = {ENVIRONMENT_PREFIX + key.replace(".", "_").upper(): key for key in LATER_KEYS}
    given: dict[str, object] = {}
    for name, value in environment.items():
        own = name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(ENVIRONMENT_PREFIX + "TEST_")
        if not own or name in OTHER_VARIABLES:
            continue
        if name in by_name:
            given[by_name[name]] = value
        elif name in later:
            known_key(later[name], f"the environment ({name})")
        else:
            near = difflib.get_close_matches(name, list(by_name), n=1, cutoff=0.0)[0]
            raise WrongUse(f"The environment variable {name} is no setting; the nearest is {near}.", f"Unset {name}.")
    return given


def store_setting(data_dir: Path, key: str, given: str | None) -> None:
    """Writes `key = value` into settings.toml, keeping every other line and comment; None removes the key.

    Raises WrongUse for a value outside its rule, or when the key stands inside a table that only a person should edit.
    """
    known = known_key(key)
    path = data_dir / FILE_NAME
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    wanted = parse_file("\n".join(lines))
    wanted.pop(known.key, None)
    lines = [line for line in lines if not re.match(rf"\s*{re.escape(known.key)}\s*=", line)]
    if given is not None:
        value = checked(known, given, "the command line")
        number = value is not None and str(value) == given
        literal = given if number and not isinstance(value, str) else json.dumps(given, ensure_ascii=False)
        wanted[known.key] = tomllib.loads(f"v = {literal}")["v"]
        lines.insert(0, f"{known.key} = {literal}")
    text = "\n".join(lines) + "\n"
    try:
        kept = parse_file(text) == wanted
    except WrongUse:  # the key's table is written as [table], which a dotted key cannot join
        kept = False
    if not kept:
        raise WrongUse(f"{known.key} stands inside a table of {path}.", "Change it there by hand.")
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(FILE_NAME + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
