"""Where the model looked: a strip along the pages of each document, for the whole answer and for each sentence.

A bar is a page, or a run of pages where a document has more than a strip can show; its height is its share of the
attention. Bars are for the mouse; the pages that drew most stand above the strip as buttons that everyone can reach.
Sentences of the answer are spans `ub-s` with a number; app.js shows a sentence's own bars (`ub-of-` and its number)
while it is pointed at or has the focus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.evidence import DocumentLook, Evidence, PageShare
from app.viewer import Place
from ui.render.html import button, escape, hear, shorten
from ui.render.markdown import Mark
from ui.render.places import page_name
from ui.render.viewer import look_value
from ui.strings import text

OPEN_PAGE = "look"
"""The action of everything here that opens a page."""
MOST_BARS = 100
SHOWN = 3  # pages that are named
LEAST = 0.002  # a smaller share gets no bar
LOWEST = 6  # per cent of a strip's height that the lowest bar has


def page_value(document_id: str, page: int) -> str:
    """The page with nothing marked on it, as the viewer takes it."""
    return look_value(Place(document_id, page))


def render_evidence(found: Evidence | None, newest: bool) -> str:
    """`newest`: open, and with the bars of each sentence. Nothing for documents of one page each."""
    if found is None or all(len(document.pages) < 2 for document in found.documents):
        return ""
    top = found.top(SHOWN)
    sentences = found.sentences if newest else ()
    said = f'<p class="ub-look-said">{_pages(top, len(found.documents) > 1)}</p>'
    for number, sentence in enumerate(sentences):
        pages = _pages(found.top_of(sentence, SHOWN), len(found.documents) > 1, text("look.sentence"))
        said += f'<p class="ub-look-said ub-of ub-of-{number}">{pages}</p>'
    rows = "".join(
        _document(found, place, document, newest)
        for place, document in enumerate(found.documents)
        if len(document.pages) > 1
    )
    title = escape(text("look.title", page=_named(top[0])) if top and not newest else text("look.title_open"))
    return (
        f'<details class="ub-looked"{" open" if newest else ""}><summary>{title}</summary>'
        f'{said}{rows}<p class="ub-look-note">{escape(text("look.note"))}</p></details>'
    )


def marks_of(found: Evidence | None) -> tuple[Mark, ...]:
    """Where the sentences stand that have bars of their own, for `render_markdown`."""
    if found is None:
        return ()
    return tuple(Mark(s.start, s.end, f"ub-s ub-s-{number}") for number, s in enumerate(found.sentences))


@dataclass(frozen=True, slots=True)
class _Bar:
    """`left` and `width` in per cent of the strip; `page`: the one that drew most of those it stands for."""

    left: float
    width: float
    share: float
    page: int
    first: int
    last: int


def bars(pages: Sequence[int], shares: Mapping[int, float]) -> list[_Bar]:
    """At most MOST_BARS equal runs of `pages`, those without attention left out."""
    each = math.ceil(len(pages) / MOST_BARS)
    count = math.ceil(len(pages) / each)
    made = []
    for number in range(count):
        run = pages[number * each : (number + 1) * each]
        share = sum(shares.get(page, 0.0) for page in run)
        if share >= LEAST:
            most = max(run, key=lambda page: shares.get(page, 0.0))
            made.append(_Bar(100 * number / count, 100 / count, share, most, run[0], run[-1]))
    return made


def _document(found: Evidence, place: int, document: DocumentLook, newest: bool) -> str:
    """A strip: a button a bar, and for each sentence its bars behind them, unseen until app.js shows them."""
    shares = dict(zip(document.pages, document.shares, strict=True))
    highest = max((bar.share for d in found.documents for bar in _bars_of(d)), default=1.0)
    parts = [_button(bar, document, highest) for bar in bars(document.pages, shares)]
    for number, sentence in enumerate(found.sentences if newest else ()):
        own = {page: share for at, page, share in sentence.pages if at == place}
        most = max((share for _, _, share in sentence.pages), default=1.0)
        parts += [
            f'<span class="ub-look-mark ub-of ub-of-{number}" style="{_place(bar, most)}"></span>'
            for bar in bars(document.pages, own)
        ]
    name = escape(shorten(document.document, 60))
    ends = f'<span class="ub-look-ends"><span>{document.pages[0]}</span><span>{document.pages[-1]}</span></span>'
    return (
        f'<div class="ub-look"><span class="ub-look-doc">{name}</span>'
        f'<div class="ub-strip">{"".join(parts)}</div>{ends}</div>'
    )


def _bars_of(document: DocumentLook) -> list[_Bar]:
    return bars(document.pages, dict(zip(document.pages, document.shares, strict=True)))


def _button(bar: _Bar, document: DocumentLook, highest: float) -> str:
    return (
        f'<button type="button" class="ub-act ub-look-bar" name="{OPEN_PAGE}" tabindex="-1" '
        f'value="{escape(page_value(document.document_id, bar.page))}" title="{escape(_label(bar, document))}" '
        f'style="{_place(bar, highest)}">{hear(_label(bar, document))}</button>'
    )


def _place(bar: _Bar, highest: float) -> str:
    height = max(LOWEST, round(100 * bar.share / highest)) if highest > 0 else LOWEST
    return f"left:{bar.left:.2f}%;width:{bar.width:.2f}%;background-size:100% {min(height, 100)}%"


def _label(bar: _Bar, document: DocumentLook) -> str:
    share = _percent(bar.share)
    if bar.first == bar.last:
        return text("look.page", page=page_name(bar.page, document.labels.get(bar.page, "")), share=share)
    return text("look.run", first=bar.first, last=bar.last, share=share, page=bar.page)


def _pages(pages: Iterable[PageShare], several: bool, lead: str = "") -> str:
    """The named pages as buttons; with the document where there are several."""
    shown = [f'<span class="ub-look-lead">{escape(lead)}</span>'] if lead else []
    for found in pages:
        name = text("look.page", page=_named(found), share=_percent(found.share))
        label = f"{shorten(found.document, 40)}, {name}" if several else name
        shown.append(button(OPEN_PAGE, page_value(found.document_id, found.page), label, "ub-look-page"))
    return "".join(shown)


def _named(found: PageShare) -> str:
    return page_name(found.page, found.label)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.01 else "<1"
