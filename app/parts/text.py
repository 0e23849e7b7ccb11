"""What the app itself writes about parts: findings for the next pass, merged lists, and honest partial answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.pages import format_pages
from app.parts.state import PartsState, PartState
from app.words import tokens

_ITEM = re.compile(r"^\s*(?:[-*•‣▪–—]|\(?\d{1,3}[.)])\s+(.+)$")
_PAGES = re.compile(r"[\[(]\s*(?:pages?|pp?\.?)\s*([\d,;\s–-]+|\d+ and \d+)\s*[\])]", re.IGNORECASE)


def pages_name(pages: Sequence[int]) -> str:
    """'page 3', 'pages 3-7'."""
    return f"page{'' if len(pages) == 1 else 's'} {format_pages(pages)}"


def finding_head(part: PartState, several: bool) -> str:
    """A part's place in a prompt: its pages, with the document's name where there are several."""
    name = f"{part.document}, " if several else ""
    return f"{name}{pages_name(part.pages)}"


def quoted(part: PartState, several: bool) -> list[str]:
    """Each quote of a part after a marker with its page, for a prompt."""
    texts = []
    for quote in part.quotes:
        name = f"{quote.document}, " if several else ""
        texts.append(f"[{name}page {quote.page}]\n{' '.join(quote.quote.split())}\n\n")
    return list(dict.fromkeys(texts))


def merge_items(parts: Sequence[PartState], several: bool) -> list[str]:
    """The items of all parts as lines "- item (page 3)", equal ones joined, in order of first appearance."""
    pages: dict[str, dict[tuple[str, str], None]] = {}
    shown: dict[str, str] = {}
    for part in parts:
        for line in part.text.splitlines():
            item = _ITEM.match(line)
            if item is None:
                continue
            named = [page for match in _PAGES.finditer(item[1]) for page in re.findall(r"\d+", match[1])]
            bare = " ".join(_PAGES.sub(" ", item[1]).split()).rstrip(" .;,")
            key = " ".join(word for word, _, _ in tokens(bare))
            if not key:
                continue
            shown.setdefault(key, bare)
            own = named or [format_pages(part.pages)]
            pages.setdefault(key, {}).update(dict.fromkeys((part.document, page) for page in own))
    return [f"- {shown[key]} ({_places(list(places), several)})" for key, places in pages.items()]


def _places(places: Sequence[tuple[str, str]], several: bool) -> str:
    """Each page in a marker of its own kind: 'page 3, page 7', with the document's name where there are several."""
    return ", ".join(f"{document}, page {page}" if several else f"page {page}" for document, page in places)


def nothing_found(state: PartsState, asked: bool) -> str:
    """The answer where no part has anything. asked: whether the model was asked, or words alone have decided."""
    cover = state.coverage
    if not cover.pages:
        return "None of the chosen pages has text, so nothing was read."
    with_text = " with text" if cover.without_text else ""
    pages = f"The one page{with_text}" if cover.pages == 1 else f"All {cover.pages} pages{with_text}"
    if asked:
        said = f"{pages} were read, in {len(state.parts)} parts, and in none of them was anything found on this."
    else:
        said = f"{pages} were searched, in {len(state.parts)} parts, and none has the words of this question."
    return f"{said} Pages without text, which nobody has read: {cover.without_text}." if cover.without_text else said


def so_far(state: PartsState) -> str:
    """What a stopped reading has found: how far it came, and every quote or text with its pages."""
    cover = state.coverage
    head = (
        f"Stopped after {state.done} of {len(state.parts)} parts: {cover.pages_read} of {cover.pages} pages were read."
    )
    several = len({part.document_id for part in state.parts}) > 1
    lines: list[str] = []
    for part in state.parts:
        if part.text:
            name = f"{part.document}, " if several else ""
            where = f"{name}{pages_name(part.pages)}"
            lines.append(f"**{where[0].upper()}{where[1:]}**\n\n{part.text.strip()}")
            continue
        for quote in part.quotes:
            name = f"{quote.document}, " if several else ""
            lines.append(f"- “{' '.join(quote.quote.split())}” ({name}page {quote.page})")
    if not lines:
        return f"{head} Nothing was found in them so far."
    return f"{head} Found so far, not yet put together:\n\n" + "\n\n".join(dict.fromkeys(lines))
