"""A model's Markdown as safe HTML.

The model repeats what documents say, so its output is hostile input: HTML in it is shown as text, images are never
loaded, links lead only to http and https and show where. The parser escapes everything that it does not build itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ui.render.html import escape, visible
from ui.strings import text

MAX_NESTING = 30


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


def render_markdown(source: str) -> str:
    return _PARSER.render(visible(source))
