"""The Jinja environment of chat templates: what Hugging Face templates expect, without what could do harm.

On top of Jinja's own sandbox (no Python internals, no changes of the messages): no chance, no clock, and no operation
that makes a huge text out of small ones.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from engine.errors import ChatTemplateError

HINT = "Choose another model, or another conversion of this one."
SIZE_LIMIT = 64 << 20
WIDENING_METHODS = {"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map"}
REMOVED_FILTERS = ("center", "random", "wordwrap", "batch", "slice", "pprint", "urlize", "xmlattr")
WIDE_FIELD = re.compile(r"\d{4}|\*")


def check_size(size: int) -> None:
    """Refuses a text or list of more than SIZE_LIMIT."""
    if size > SIZE_LIMIT:
        raise ChatTemplateError("The model's chat template makes a huge text.", HINT)


class _GenerationBlock(Extension):
    """Some templates mark the assistant's words with {% generation %} for training; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 reads this name

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _ConcatAsAdd(NodeTransformer):
    """a ~ b becomes a|string + b|string, since only operators can be watched."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        texts = [nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno) for part in node.nodes]
        joined: nodes.Expr = texts[0]
        for text in texts[1:]:
            joined = nodes.Add(joined, text, lineno=node.lineno)
        return joined


class Sandbox(ImmutableSandboxedEnvironment):
    """Block trimming, loop controls and a plain `tojson`, as chat templates are written for."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        for name in REMOVED_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"tojson": _to_json, "replace": _replace, "join": _join, "indent": _indent, "format": _format}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _ConcatAsAdd().visit(super()._parse(source, name, filename))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 1 << 32 and abs(right) <= 64):
            raise ChatTemplateError("The model's chat template computes a huge number.", HINT)
        sized = (str, list, tuple)
        if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
            check_size(len(left) + len(right))
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, sized) and isinstance(count, int):
                    check_size(len(value) * count)
        if operator == "%" and isinstance(left, str):
            return _format(left, *(right if isinstance(right, tuple) else (right,)))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> None:
        """Jinja's way to make text.format() safe leaves wide fields in; it is switched off like the others."""
        if isinstance(getattr(value, "__self__", None), str) and value.__name__ in WIDENING_METHODS:
            raise ChatTemplateError(f"The model's chat template uses text.{value.__name__}(), which is off.", HINT)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            if name == "replace":
                return _replace(owner, *args, **kwargs)
            if name == "join":
                return _join(*args, d=owner)
        return super().call(context, obj, *args, **kwargs)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    check_size(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _join(values: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    found = (value if attribute is None else _member(value, attribute) for value in values)
    texts, size = [], 0
    for text in map(str, found):
        size += len(text) + len(d)
        check_size(size)
        texts.append(text)
    return d.join(texts)


def _member(value: Any, name: str) -> Any:
    """An entry of a message or tool."""
    return value.get(name, "") if isinstance(value, dict) else ""


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(width, 64)
    text = str(value)
    check_size(len(text) + text.count("\n") * len(margin))
    lines = text.splitlines() or [""]
    rest = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def _format(form: Any, *values: Any) -> str:
    """printf-style, with narrow fields only."""
    if WIDE_FIELD.search(str(form)):
        raise ChatTemplateError("The model's chat template formats text in very wide fields.", HINT)
    return str(form) % values


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter would escape it for HTML."""
    indent = None if indent is None else min(indent, 64)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
