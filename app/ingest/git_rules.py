"""What git's own files say about a tree: .gitignore at any depth, .git/info/exclude, .gitattributes and .gitmodules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathspec

    Rules = tuple[tuple[str, pathspec.GitIgnoreSpec], ...]  # (folder of the file with a trailing "/", its patterns)

_MODULE_PATH = re.compile(r"^\s*path\s*=\s*(.+?)\s*$", re.MULTILINE)
MOST_STARS = 3  # in one name
MOST_DEEP = 3
_MARKS = frozenset({"linguist-generated", "linguist-vendored"})
ReadText = Callable[[str], str]
"""The text of a file of the tree, "" where it may not be read (it is then listed under its own name)."""


@dataclass(frozen=True, slots=True)
class GitRules:
    """The rules that hold in one folder. in_repository: some folder at or above it holds a .git. passed_over: files of
    rules in this folder with patterns that are too costly to match."""

    ignored: Rules = ()
    generated: Rules = ()
    submodules: frozenset[str] = frozenset()
    in_repository: bool = False
    passed_over: tuple[str, ...] = ()

    def inside(self, folder: str, names: Iterable[str], read: ReadText) -> GitRules:
        """The rules for what lies in `folder` ("" or "a/b/"), which holds these names."""
        names = frozenset(names)
        rules = replace(self, passed_over=()) if self.passed_over else self

        def spec(name: str, lines: Iterable[str]) -> pathspec.GitIgnoreSpec:
            nonlocal rules
            lines = list(lines)
            cheap = [line for line in lines if not _is_costly(line)]
            if len(cheap) < len(lines):
                rules = replace(rules, passed_over=(*rules.passed_over, folder + name))
            return _spec(cheap)

        if ".git" in names:
            excluded = spec(".git/info/exclude", read(f"{folder}.git/info/exclude").splitlines())
            rules = replace(rules, in_repository=True, ignored=(*rules.ignored, (folder, excluded)))
        if ".gitmodules" in names:
            paths = _MODULE_PATH.findall(read(f"{folder}.gitmodules"))
            rules = replace(rules, submodules=rules.submodules | {folder + path.strip("/") for path in paths})
        if ".gitattributes" in names:
            marked = spec(".gitattributes", _marked(read(f"{folder}.gitattributes")))
            rules = replace(rules, generated=(*rules.generated, (folder, marked)))
        if ".gitignore" in names:
            patterns = spec(".gitignore", read(f"{folder}.gitignore").splitlines())
            rules = replace(rules, ignored=(*rules.ignored, (folder, patterns)))
        return rules

    def reason(self, path: str) -> str:
        """Why git's files say that a path is left out, or "". A folder's path ends in "/"."""
        if path.rstrip("/") in self.submodules:
            return "a git submodule, another project: open it by itself"
        if _decides(self.ignored, path):
            return "ignored by .gitignore"
        if not path.endswith("/") and _decides(self.generated, path):  # attributes are those of files
            return "generated or vendored, as .gitattributes says"
        return ""


def _decides(rules: Rules, path: str) -> bool:
    """The deepest file that says anything about the path decides, as in git."""
    for folder, spec in reversed(rules):
        decision = spec.check_file(path[len(folder) :]).include
        if decision is not None:
            return decision
    return False


def _is_costly(pattern: str) -> bool:
    """Patterns become regular expressions; with many wildcards in one name, or many "**", those try every way to divide
    a path among them, for hours. Nobody writes such patterns but to that end."""
    parts = pattern.strip().split("/")
    deep = sum("**" in part for part in parts)
    return deep > MOST_DEEP or any(part.count("*") - part.count("**") > MOST_STARS for part in parts)


def _spec(lines: Iterable[str]) -> pathspec.GitIgnoreSpec:
    import pathspec  # here, since only folders need it and each child starts anew

    kept: list[str] = []
    for line in lines:
        try:
            pathspec.GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue  # git too passes over a pattern that it cannot read
        kept.append(line)
    return pathspec.GitIgnoreSpec.from_lines(kept)


def _marked(text: str) -> list[str]:
    """Lines of a .gitattributes file as ignore patterns: "dist/** linguist-generated" -> "dist/**"."""
    patterns = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0].startswith(("#", "[")):
            continue
        for word in words[1:]:
            name, _, value = word.lstrip("-!").partition("=")
            if name in _MARKS:
                off = word.startswith(("-", "!")) or value.lower() == "false"
                patterns.append("!" + words[0] if off else words[0])
    return patterns
