"""A conversation as a file: Markdown, JSON or DOCX, with every citation and how far it was checked.

What is exported are questions, answers and the cited quotes; never the documents' text, passages or thinking.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from app import history
from app.citation_report import SYMBOLS, citation_object, citation_place, status_words, stored_citation
from app.citations import Citation
from app.errors import WrongUse
from storage import NotFound

if TYPE_CHECKING:
    from app.wiring import App

MEDIA_TYPES = {
    "md": "text/markdown; charset=utf-8",
    "json": "application/json",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
FORMATS = tuple(MEDIA_TYPES)
MOST_QUOTE = 2_000  # characters; a citation is a quotation, not the page
_UNSAFE_NAME = re.compile(r"[^\w\- .]+")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as it is exported. role: user or assistant; written: seconds since 1970; state as stored."""

    role: str
    text: str
    written: float
    state: str
    model: str
    reading: str
    citations: tuple[Citation, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """A file to be saved. name is safe as a file name."""

    name: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class _Conversation:
    id: str
    title: str
    created: float
    documents: tuple[tuple[str, str, int], ...]
    """(name, kind, pages)"""
    turns: tuple[Turn, ...]


def export(app: App, conversation_id: str, format: str) -> Exported:
    """Raises WrongUse for an unknown conversation or format."""
    if format not in MEDIA_TYPES:
        raise WrongUse(f"There is no export as {format!r}.", f"Use {', '.join(FORMATS)}.")
    conversation = _read(app, conversation_id)
    write = {"md": _markdown, "json": _json, "docx": _docx}[format]
    stem = " ".join(_UNSAFE_NAME.sub(" ", conversation.title).split()).strip(" .")[:80].strip(" .") or "conversation"
    return Exported(f"{stem}.{format}", MEDIA_TYPES[format], write(conversation))


def _read(app: App, conversation_id: str) -> _Conversation:
    try:
        conversation = app.library.conversation(conversation_id)
    except NotFound as error:
        raise WrongUse("This conversation is no longer here.", "Open another one.") from error
    turns = [
        Turn(
            message.role,
            _CONTROLS.sub("", message.text),
            message.created,
            message.state,
            str((message.details.get("stats") or {}).get("model") or ""),
            str(message.details.get("reading") or ""),
            tuple(_short(stored_citation(stored)) for stored in message.details.get("citations") or ()),
            tuple(_CONTROLS.sub("", str(warning)) for warning in message.details.get("warnings") or ()),
        )
        for message in history.visible(app.library.messages(conversation_id))
    ]
    documents = tuple((_CONTROLS.sub("", d.name), d.kind, d.pages) for d in app.library.documents(conversation_id))
    title = " ".join(_CONTROLS.sub("", conversation.title).split()) or "Conversation"
    return _Conversation(conversation.id, title, conversation.created, documents, tuple(turns))


def _short(citation: Citation) -> Citation:
    quote, document, label, said = (
        _CONTROLS.sub("", value) for value in (citation.quote, citation.document, citation.label, citation.said)
    )
    quote = quote if len(quote) <= MOST_QUOTE else f"{quote[: MOST_QUOTE - 1]}…"
    return replace(citation, quote=quote, document=document, label=label, said=said)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _json(conversation: _Conversation) -> bytes:
    turns: list[dict[str, Any]] = []
    for turn in conversation.turns:
        own: dict[str, Any] = {"role": turn.role, "text": turn.text, "time": _iso(turn.written), "state": turn.state}
        if turn.role == "assistant":
            own |= {
                "model": turn.model,
                "reading": turn.reading,
                "citations": [citation_object(c) | {"places": list(c.places)} for c in turn.citations],
                "warnings": list(turn.warnings),
            }
        turns.append(own)
    whole = {
        "format": "unabridged-conversation-1",
        "id": conversation.id,
        "title": conversation.title,
        "created": _iso(conversation.created),
        "documents": [{"name": n, "kind": k, "pages": p} for n, k, p in conversation.documents],
        "messages": turns,
    }
    return (json.dumps(whole, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "replace")


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def with_numbers(text: str, citations: Sequence[Citation]) -> str:
    """The answer with the numbers of its sources where they stand: "It lifts 12 tonnes. [1]"."""
    numbers: dict[int, list[int]] = {}
    for number, citation in enumerate(citations, 1):
        for place in citation.places:
            if 0 <= place <= len(text) and not text[text.rfind("\n", 0, place) + 1 : place].lstrip().startswith("```"):
                numbers.setdefault(place, []).append(number)
    for place in sorted(numbers, reverse=True):
        text = f"{text[:place]} [{', '.join(map(str, numbers[place]))}]{text[place:]}"
    return text


def _markdown(conversation: _Conversation) -> bytes:
    lines = [f"# {_plain(conversation.title)}", "", f"Begun {_when(conversation.created)}.", ""]
    if conversation.documents:
        lines += ["Documents:", ""]
        lines += [f"- {_plain(name)} ({kind}, {pages} pages)" for name, kind, pages in conversation.documents]
        lines.append("")
    for turn in conversation.turns:
        if turn.role == "user":
            lines += ["## Question", "", _quoted(turn.text), ""]
            continue
        lines += ["### Answer", "", harmless_markdown(with_numbers(turn.text, turn.citations)) or "(no answer)", ""]
        if turn.state not in ("complete", "streaming"):
            lines += [f"*This answer was {turn.state}.*", ""]
        if turn.citations:
            lines += ["Sources:", ""]
            for number, citation in enumerate(turn.citations, 1):
                symbol = SYMBOLS[citation.status]
                lines.append(f"{number}. {symbol} {_plain(citation_place(citation))}: {_plain(status_words(citation))}")
                if citation.quote:
                    lines += ["", *(f"   > {_plain(line)}" for line in citation.quote.splitlines()), ""]
            lines.append("")
        lines += [f"*Note: {_plain(warning)}*" for warning in turn.warnings]
        if turn.model:
            lines += [f"*{_plain(turn.model)}, {_when(turn.written)}*", ""]
    return ("\n".join(lines).rstrip() + "\n").encode("utf-8", "replace")


def _plain(text: str) -> str:
    """Text of names and documents that Markdown must not read as markup, links or HTML."""
    return re.sub(r"([\\`*_\[\]<>#|~!])", r"\\\1", text)


_CODE = re.compile(r"(^ {0,3}```.*?(?:^ {0,3}```|\Z)|(?<!`)`[^`\n]+`(?!`))", re.MULTILINE | re.DOTALL)


def harmless_markdown(answer: str) -> str:
    """An answer's Markdown without pictures, which readers fetch from anywhere, and without HTML; code stays."""
    parts = _CODE.split(answer)
    parts[::2] = [re.sub(r"<(?=[A-Za-z/!?])", r"\\<", part.replace("![", r"!\[")) for part in parts[::2]]
    return "".join(parts)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in _plain(text).splitlines() or [""])


def _docx(conversation: _Conversation) -> bytes:
    from docx import Document
    from docx.shared import Pt

    document = Document()
    document.core_properties.title = conversation.title[:255]
    document.core_properties.author = "Unabridged"
    document.core_properties.comments = ""
    document.add_heading(conversation.title, 0)
    document.add_paragraph(f"Begun {_when(conversation.created)}.")
    for name, kind, pages in conversation.documents:
        document.add_paragraph(f"{name} ({kind}, {pages} pages)", style="List Bullet")
    for turn in conversation.turns:
        if turn.role == "user":
            document.add_heading("Question", 1)
            document.add_paragraph(turn.text, style="Intense Quote")
            continue
        document.add_heading("Answer", 2)
        for block in re.split(r"\n\s*\n", with_numbers(turn.text, turn.citations)) or [""]:
            document.add_paragraph(block)
        if turn.state not in ("complete", "streaming"):
            document.add_paragraph().add_run(f"This answer was {turn.state}.").italic = True
        if turn.citations:
            document.add_paragraph().add_run("Sources").bold = True
        for number, citation in enumerate(turn.citations, 1):
            paragraph = document.add_paragraph()
            paragraph.paragraph_format.left_indent = Pt(14)
            paragraph.add_run(f"[{number}] {SYMBOLS[citation.status]} {citation_place(citation)}").bold = True
            paragraph.add_run(f": {status_words(citation)}")
            if citation.quote:
                paragraph.add_run(f"\n“{' '.join(citation.quote.split())}”").italic = True
        for warning in turn.warnings:
            document.add_paragraph().add_run(f"Note: {warning}").italic = True
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()
