"""Lines of source files that open a class, a function or the like, found by tree-sitter inside the reading child.

A grammar is looked up by the file's name; one that is not installed gives no signatures and is named once.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_CHARACTERS = 160
"""Of one signature; what is longer ends in an ellipsis."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """package and function: where its language comes from. opens: node types that are listed."""

    package: str
    opens: frozenset[str]
    function: str = "language"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JS = _words("class_declaration function_declaration generator_function_declaration method_definition "
             "variable_declarator")  # fmt: skip
_TS = _JS | _words("interface_declaration type_alias_declaration enum_declaration abstract_class_declaration module "
                   "internal_module function_signature method_signature abstract_method_signature")  # fmt: skip
GRAMMARS = {
    "python": Grammar("tree_sitter_python", _words("class_definition function_definition")),
    "javascript": Grammar("tree_sitter_javascript", _JS),
    "typescript": Grammar("tree_sitter_typescript", _TS, "language_typescript"),
    "tsx": Grammar("tree_sitter_typescript", _TS, "language_tsx"),
    "java": Grammar("tree_sitter_java", _words("class_declaration interface_declaration enum_declaration "
                    "record_declaration method_declaration constructor_declaration annotation_type_declaration")),
    "go": Grammar("tree_sitter_go", _words("function_declaration method_declaration type_spec")),
    "rust": Grammar("tree_sitter_rust", _words("function_item struct_item enum_item trait_item impl_item mod_item "
                    "macro_definition type_item union_item function_signature_item")),
    "c": Grammar("tree_sitter_c", _words("function_definition struct_specifier enum_specifier union_specifier "
                 "type_definition")),
    "cpp": Grammar("tree_sitter_cpp", _words("function_definition class_specifier struct_specifier enum_specifier "
                   "union_specifier namespace_definition type_definition")),
    "c_sharp": Grammar("tree_sitter_c_sharp", _words("class_declaration interface_declaration struct_declaration "
                       "enum_declaration record_declaration method_declaration constructor_declaration "
                       "namespace_declaration delegate_declaration")),
    "ruby": Grammar("tree_sitter_ruby", _words("class module method singleton_method")),
    "php": Grammar("tree_sitter_php", _words("class_declaration interface_declaration trait_declaration "
                   "enum_declaration function_definition method_declaration"), "language_php"),
    "bash": Grammar("tree_sitter_bash", _words("function_definition")),
}  # fmt: skip
_SUFFIXES = {
    "python": ".py .pyi", "javascript": ".js .mjs .cjs .jsx", "typescript": ".ts .mts .cts", "tsx": ".tsx",
    "java": ".java", "go": ".go", "rust": ".rs", "c": ".c .h", "cpp": ".cc .cpp .cxx .hh .hpp .hxx .cu .cuh",
    "c_sharp": ".cs", "ruby": ".rb", "php": ".php", "bash": ".sh .bash",
}  # fmt: skip
LANGUAGES = {suffix: name for name, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_NEEDS_BODY = _words("struct_specifier enum_specifier union_specifier class_specifier")
"""These also stand where a type is only used: only one with a body opens anything."""
_CALLABLE = ("function", "method", "constructor", "variable_declarator")
"""Parts of node types whose inside is not looked into: what a function declares is its own affair."""
_LEAVES = _words("string comment string_literal template_string heredoc_body array object dictionary list")
_parsers: dict[str, Any] = {}


def language_of(path: str) -> str:
    """Name of the grammar for a file, "" where there is none."""
    name = path.rpartition("/")[2].lower()
    return LANGUAGES.get(f".{name.rpartition('.')[2]}", "") if "." in name else ""


def signatures(language: str, text: str) -> Iterator[tuple[int, int, str]]:
    """(line from 1, depth from 0, signature on one line) of what the text declares, in its order.

    ImportError where the grammar is not installed. Text that is no valid source gives what could be recognised.
    """
    source = text.encode("utf-8", "replace")
    grammar, parser = GRAMMARS[language], _parser(language)
    # A stack, not recursion: hostile text nests deep.
    stack: list[tuple[Node, int]] = [(parser.parse(source).root_node, 0)]
    while stack:
        node, depth = stack.pop()
        inside = depth
        if node.type in grammar.opens and _opens(node):
            line = node.start_point[0] + 1
            yield line, depth, _head(node, source)
            inside = depth + 1
            if any(part in node.type for part in _CALLABLE):
                continue
        if node.type not in _LEAVES:
            stack.extend((child, inside) for child in reversed(node.named_children))


def _parser(language: str) -> Any:
    if language not in _parsers:
        from tree_sitter import Language, Parser

        grammar = GRAMMARS[language]
        module = importlib.import_module(grammar.package)
        _parsers[language] = Parser(Language(getattr(module, grammar.function)()))
    return _parsers[language]


def _opens(node: Node) -> bool:
    if node.type == "variable_declarator":
        value = node.child_by_field_name("value")
        return value is not None and value.type in ("arrow_function", "function_expression", "class")
    if node.type in _NEEDS_BODY:
        return node.child_by_field_name("body") is not None and node.child_by_field_name("name") is not None
    return True


def _head(node: Node, source: bytes) -> str:
    """The source up to the body, on one line."""
    inner = node.child_by_field_name("value") if node.type == "variable_declarator" else node
    body = inner.child_by_field_name("body") if inner is not None else None
    end = body.start_byte if body is not None else node.end_byte
    head = source[node.start_byte : min(end, node.start_byte + 4 * MOST_CHARACTERS)].decode("utf-8", "replace")
    if body is None:
        head = head.split("{", 1)[0] if "{" in head else head.split("\n", 1)[0]
        name = node.child_by_field_name("declarator") if node.type == "type_definition" else None
        if name is not None and name.text is not None and name.text.decode("utf-8", "replace") not in head:
            head += f" {name.text.decode('utf-8', 'replace')}"
    head = " ".join(head.split()).removesuffix("=>").rstrip(" {:;=")
    return head if len(head) <= MOST_CHARACTERS else head[: MOST_CHARACTERS - 1].rstrip() + "…"


def read_signatures(files: Iterable[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """For (path, text) of each file the message {"type": "signatures", "path", "rows": [[line, depth, text], ...]},
    or {"type": "no_grammar", "language"} in its place."""
    for path, text in files:
        language = language_of(path)
        try:
            rows = [list(row) for row in signatures(language, text)] if language else []
        except ImportError:
            yield {"type": "no_grammar", "path": path, "language": language}
        else:
            yield {"type": "signatures", "path": path, "rows": rows}
