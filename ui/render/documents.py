"""The tray of documents above the question, and the meter of context used."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ui.backend import DocumentView, FitView
from ui.render.html import button, duration, escape, hear, icon, number, one_line, shorten
from ui.strings import count, text
from ui.uploads import Upload

NOTE_LENGTH = 110
KIND_LABELS = {
    "pdf": "PDF",
    "text": "TXT",
    "markdown": "MD",
    "code": "SRC",
    "folder": "DIR",
    "archive": "ZIP",
    "docx": "DOCX",
    "pptx": "PPTX",
    "xlsx": "XLSX",
    "csv": "CSV",
    "html": "HTML",
    "epub": "EPUB",
    "notebook": "NB",
    "email": "MAIL",
    "rtf": "RTF",
    "odt": "ODT",
    "ods": "ODS",
    "odp": "ODP",
}


def render_tray(
    documents: Sequence[DocumentView], uploads: Sequence[Upload], offered: Collection[str] = frozenset()
) -> str:
    """offered: ids of documents and uploads about whose scanned pages a card stands below."""
    if not documents and not uploads:
        return one_line("")
    running = {upload.document_id: upload for upload in uploads if upload.document_id and upload.busy}
    shown = {document.id for document in documents}
    chips = "".join(
        [
            *(_document(document, running.get(document.id), document.id in offered) for document in documents),
            *(_upload(u, u.id in offered) for u in uploads if not (u.busy and u.document_id in shown)),
        ]
    )
    return one_line(f'<ul class="ub-tray">{hear(text("doc.tray"))}{chips}</ul>')


def _document(document: DocumentView, running: Upload | None, offered: bool) -> str:
    """running: its scanned pages are being read."""
    facts = [count("doc.pages", document.pages)]
    if document.tokens is not None:
        facts.append(text("doc.tokens", count=number(document.tokens)))
    below = "".join(_note(note) for note in document.notes)
    closing = button("remove", document.id, text("doc.remove", name=document.name), "ub-doc-close", icon("cross"))
    if running is not None:
        below = _progress(running)
        stop = text("ocr.stop", name=document.name)
        closing = button("upload-close", running.id, stop, "ub-doc-close", icon("cross"))
    elif document.scans is not None:
        below += _unread(document.id, document.name, document.scans.note(), offered)
    return (
        f'<li class="ub-doc{" ub-doc-busy" if running else ""}">'
        f'<span class="ub-doc-kind">{KIND_LABELS.get(document.kind, "DOC")}</span>'
        f'<span class="ub-doc-text"><span class="ub-doc-name" title="{escape(document.name)}">'
        f"{escape(shorten(document.name, 60))}</span>"
        f'<span class="ub-doc-facts">{escape(" · ".join(facts))}</span>{below}</span>{closing}</li>'
    )


def _unread(id: str, name: str, note: str, offered: bool) -> str:
    """What is scanned, with the button that brings the card back."""
    label = text("ocr.open_label", name=name)
    ask = "" if offered else button("ocr-open", id, label, "ub-doc-ocr", shown=text("ocr.open"))
    return f'<span class="ub-doc-scans">{_note(note)}{ask}</span>'


def _note(note: str) -> str:
    """One line; the whole sentence where the pointer rests."""
    return f'<span class="ub-doc-note" title="{escape(note)}">{escape(shorten(note, NOTE_LENGTH))}</span>'


def _upload(upload: Upload, offered: bool) -> str:
    name = escape(shorten(upload.name, 60))
    head = f'<span class="ub-doc-name" title="{escape(upload.name)}">{name}</span>'
    if upload.state == "failed":
        facts = f'<span class="ub-doc-problem" role="alert">{escape(upload.message)} {escape(upload.hint)}</span>'
        classes, closing = "ub-doc ub-doc-failed", "doc.dismiss"
    elif upload.state == "locked":
        facts = (
            f'<span class="ub-doc-problem">{escape(upload.message)}</span><span class="ub-form" role="group">'
            f'<input class="ub-input" type="password" name="password" autocomplete="off" '
            f'title="{escape(text("doc.password", name=upload.name))}" '
            f'placeholder="{escape(text("doc.password_placeholder"))}">'
            + button("unlock", upload.id, text("doc.unlock"), "ub-small ub-take-input")
            + "</span>"
        )
        classes, closing = "ub-doc ub-doc-locked", "doc.dismiss"
    elif upload.state == "scanned":
        facts = _unread(upload.id, upload.name, text("doc.scanned"), offered)
        classes, closing = "ub-doc ub-doc-locked", "doc.dismiss"
    else:
        facts, classes, closing = _progress(upload), "ub-doc ub-doc-busy", "doc.cancel"
    return (
        f'<li class="{classes}"><span class="ub-doc-kind">{escape(upload.extension)}</span>'
        f'<span class="ub-doc-text">{head}{facts}</span>'
        + button("upload-close", upload.id, text(closing, name=upload.name), "ub-doc-close", icon("cross"))
        + "</li>"
    )


def _progress(upload: Upload) -> str:
    if upload.state == "waiting":
        return f'<span class="ub-doc-facts">{escape(text("doc.waiting"))}</span>'
    if not upload.total:
        return f'<span class="ub-doc-facts">{escape(text("doc.opening"))}</span>'
    share = min(100, round(100 * upload.done / upload.total))
    if upload.languages:
        page = min(upload.done + 1, upload.total)
        reading = text("doc.recognising", done=number(page), total=number(upload.total))
        if upload.seconds_left is not None:
            reading += f" · {text('turn.eta', duration=duration(upload.seconds_left))}"
    else:
        reading = text("doc.extracting", done=number(upload.done), total=number(upload.total))
    return (
        f'<span class="ub-doc-facts">{escape(reading)}</span>'
        f'<span class="ub-bar"><span class="ub-bar-fill" style="width:{share}%"></span></span>'
    )


def render_meter(fit: FitView | None) -> str:
    """Documents and turns against the context."""
    if fit is None or fit.total <= 0 or fit.used <= 0:
        return ""
    share = min(100, round(100 * fit.used / fit.total))
    key = "status.context_of" if fit.fits else "status.context_over"
    level = "ub-over" if not fit.fits else "ub-near" if share > 85 else ""
    spoken = text(key, used=number(fit.used), total=number(fit.total))
    return (
        f'<span class="ub-meter {level}" title="{escape(spoken)}">'
        f'<span class="ub-meter-name">{escape(text("status.context"))}</span>'
        f'<span class="ub-bar"><span class="ub-bar-fill" style="width:{share}%"></span></span>'
        f'<span class="ub-meter-text">{escape(spoken)}</span></span>'
    )
