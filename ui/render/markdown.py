"""A model's Markdown as safe HTML.

The model repeats what documents say, so its output is hostile input: HTML in it is shown as text, images are never
loaded, links lead only to http and https and show where. The parser escapes everything that it does not build itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

from ui.render.html import escape, visible
from ui.strings import text

MAX_NESTING = 30
_MARK = "\U00010a7f"  # a punctuation mark of a script long gone: Markdown takes it for one, answers never have it
_MARKED = re.compile(f"{_MARK}(\\d*){_MARK}")
_CLOSING = "*_~`|>#:- \t\n"  # what may close markup: a mark goes before it
_NUMBER = re.compile(r"(?:^|\n)[ \t]*\d{1,9}[.)]$")
_CHIP = "\U00010a50"  # likewise: stands where a chip will
_CHIPPED = re.compile(f" ?{_CHIP}(\\d+){_CHIP}")
_OPEN, _BETWEEN, _CLOSE = "\ue000", "\ue001", "\ue002"  # stand for the tags of a span until all is rendered
_SPAN = re.compile(f"{_OPEN}(\\d+){_BETWEEN}|{_CLOSE}")


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of the source, source[start:end], whose text gets these classes."""

    start: int
    end: int
    classes: str


def allowed_link(url: str) -> bool:
    """http and https with a host name, and nothing else: no other scheme, no relative path, nothing before an @."""
    if any(ord(character) < 33 or character == "\\" for character in url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def _image(tokens: Sequence[Token], index: int, *_: Any) -> str:
    alt = tokens[index].content
    shown = text("turn.image", alt=alt) if alt else text("turn.image_plain")
    return f'<span class="ub-no-image">{escape(shown)}</span>'


def _link_open(tokens: Sequence[Token], index: int, *_: Any) -> str:
    target = str(tokens[index].attrGet("href") or "")
    if not allowed_link(target):  # the parser lets an empty one through
        return "<span>"
    return f'<a href="{escape(target)}" title="{escape(target)}" target="_blank" rel="noopener noreferrer nofollow">'


def _link_close(tokens: Sequence[Token], index: int, *_: Any) -> str:
    opening = next(i for i in range(index, -1, -1) if tokens[i].type == "link_open")
    target = str(tokens[opening].attrGet("href") or "")
    if not allowed_link(target):
        return "</span>"
    label = "".join(token.content for token in tokens[opening + 1 : index])
    return "</a>" if label == target else f'</a> <span class="ub-target">({escape(target)})</span>'


def _build() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": MAX_NESTING})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = allowed_link  # type: ignore[method-assign]
    parser.renderer.rules["image"] = _image  # type: ignore[attr-defined]
    parser.renderer.rules["link_open"] = _link_open  # type: ignore[attr-defined]
    parser.renderer.rules["link_close"] = _link_close  # type: ignore[attr-defined]
    return parser


_PARSER = _build()


def _text(tokens: Sequence[Token], index: int, options: Any, env: dict[str, Any]) -> str:
    """Text of one run, its marked parts each in a span: a run holds no other tag, so spans are always well nested."""
    parts, shown = _MARKED.split(tokens[index].content), []
    for number, part in enumerate(parts):
        if number % 2:
            env["mark"] = part
        elif part:
            mark, bare = env.get("mark", ""), part.lstrip()
            shown.append(part[: len(part) - len(bare)])
            inside = escapeHtml(bare)
            shown.append(f"{_OPEN}{mark}{_BETWEEN}{inside}{_CLOSE}" if mark and bare else inside)
    return "".join(shown)


_PARSER.renderer.rules["text"] = _text  # type: ignore[attr-defined]


def render_markdown(source: str, marks: Sequence[Mark] = (), chips: Sequence[tuple[int, str]] = ()) -> str:
    """`marks`: in order, with nothing but blanks between. chips: (offset in the source, trusted markup), ascending.

    Where they would change how the source reads, they are left out: all marks first, then the chips too.
    """
    plain = _PARSER.render(_without_signs(visible(source)))
    if visible(source) != source or _without_signs(source) != source:
        return plain
    standing = [(at, f" {_CHIP}{n}{_CHIP}") for n, (at, _) in enumerate(chips) if not _in_fence(source, at)]
    for tried in (marks, ()) if marks else ((),):
        signs = sorted([*_signs(source, tried), *standing], key=lambda sign: sign[0])
        if signs:
            marked = _MARKED.sub("", _PARSER.render(_with(source, signs), {"mark": "0" if tried else ""}))
            if _CHIPPED.sub("", _SPAN.sub("", marked)) == plain:
                return _CHIPPED.sub(lambda found: chips[int(found[1])][1], _with_spans(marked, tried))
    return plain


def _with_spans(marked: str, marks: Sequence[Mark]) -> str:
    first = set()

    def tag(found: re.Match[str]) -> str:
        if found[1] is None:
            return "</span>"
        reached = "" if found[1] in first else ' tabindex="0"'  # by keyboard once, however many parts it has
        first.add(found[1])
        return f'<span class="{escape(marks[int(found[1])].classes)}"{reached}>'

    return _SPAN.sub(tag, marked)


def _without_signs(source: str) -> str:
    for sign in (_MARK, _CHIP, _OPEN, _BETWEEN, _CLOSE):
        source = source.replace(sign, "")
    return source


def _in_fence(source: str, at: int) -> bool:
    """Whether the line up to there is one that opens or closes a block of code."""
    line = source[source.rfind("\n", 0, at) + 1 : at].strip()
    return line.startswith(("```", "~~~"))


def _with(source: str, signs: Sequence[tuple[int, str]]) -> str:
    pieces, at = [], 0
    for place, sign in signs:
        pieces += [source[at:place], sign]
        at = place
    return "".join([*pieces, source[at:]])


def _signs(source: str, marks: Sequence[Mark]) -> list[tuple[int, str]]:
    """Signs only where a stretch ends, saying which one begins: before a line they would break lists and tables."""
    signs, at = [], 0
    following = [*range(1, len(marks)), None] if marks else []
    for mark, after in zip(marks, following, strict=True):
        end = mark.end
        while end > mark.start and source[end - 1] in _CLOSING:
            end -= 1
        if _NUMBER.search(source[max(at, end - 16) : end]) and source[end : end + 1] == " ":
            end += 1  # the number of a list's entry was taken for a sentence
        signs.append((end, f"{_MARK}{'' if after is None else after}{_MARK}"))
        at = end
    return signs
