"""HTML in one line, from escaped parts.

The page shows it through gr.Markdown, whose parser hands a line that opens with a block tag through untouched; a line
break would end that, so every one becomes a character reference. gr.HTML is not used: it runs its value through a
template engine (document text may contain `{{`) and needs 'unsafe-eval'.
Gradio's sanitiser stays on. It drops data-* and aria-*, so buttons say what they do in `name` and `value`, and what
only a screen reader should hear stands in `.ub-hear`.
"""

from __future__ import annotations

import html
import re
import unicodedata

# What changes how neighbouring text is read: control characters, and the marks that reverse or hide it.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")


def visible(value: str) -> str:
    """Without control characters and without marks that turn the direction of the text around them."""
    return _UNSEEN.sub("", value.replace("\r\n", "\n").replace("\r", "\n"))


def escape(value: object) -> str:
    """Text for any place between tags or in a double-quoted attribute."""
    return html.escape(visible(str(value)), quote=True)


def one_line(markup: str) -> str:
    """A block that gr.Markdown passes on as it is."""
    flat = markup.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "&#10;").replace("$", "&#36;")
    return f'<div class="ub-block">{flat}</div>'


def hear(value: str) -> str:
    return f'<span class="ub-hear">{escape(value)}</span>'


def button(action: str, value: str, label: str, classes: str = "", icon: str = "", shown: str = "") -> str:
    """A button that app.js reports as (action, value). label names it; shown or icon, if given, are what is seen."""
    inside = f"{icon}{escape(shown)}{hear(label)}" if icon or shown else escape(label)
    title = f' title="{escape(label)}"' if icon or shown else ""
    classes = f"ub-act {classes}".strip()
    return f'<button type="button" class="{classes}" name="{action}" value="{escape(value)}"{title}>{inside}</button>'


def icon(name: str) -> str:
    """A drawing from app.css, invisible to screen readers because it is empty text."""
    return f'<span class="ub-icon ub-icon-{name}"></span>'


def shorten(value: str, length: int) -> str:
    """At most `length` characters on one line, cut at a word where there is one; wide characters count once."""
    flat = " ".join(unicodedata.normalize("NFC", value).split())
    if len(flat) <= length:
        return flat
    cut = flat[: length - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > length * 0.5 else cut).rstrip() + "…"


def number(value: int) -> str:
    return f"{value:,}"


def duration(seconds: float) -> str:
    """40 s, 3 min, 1 h 20 min: as exact as an estimate deserves."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def error_card(message: str, hint: str, more: str = "") -> str:
    """One sentence, one hint; `more` is trusted markup."""
    return (
        f'<div class="ub-error" role="alert"><p class="ub-error-what">{escape(message)}</p>'
        + (f'<p class="ub-error-hint">{escape(hint)}</p>' if hint else "")
        + f"{more}</div>"
    )
