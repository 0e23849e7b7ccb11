"""The tray of documents above the question, and the meter of context used."""

from __future__ import annotations

from collections.abc import Sequence

from ui.backend import DocumentView, FitView
from ui.render.html import button, escape, hear, icon, number, one_line, shorten
from ui.strings import count, text
from ui.uploads import Upload

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


def render_tray(documents: Sequence[DocumentView], uploads: Sequence[Upload]) -> str:
    if not documents and not uploads:
        return one_line("")
    chips = "".join([*map(_document, documents), *map(_upload, uploads)])
    return one_line(f'<ul class="ub-tray">{hear(text("doc.tray"))}{chips}</ul>')


def _document(document: DocumentView) -> str:
    facts = [count("doc.pages", document.pages)]
    if document.tokens is not None:
        facts.append(text("doc.tokens", count=number(document.tokens)))
    notes = "".join(f'<span class="ub-doc-note">{escape(note)}</span>' for note in document.notes)
    return (
        f'<li class="ub-doc"><span class="ub-doc-kind">{KIND_LABELS.get(document.kind, "DOC")}</span>'
        f'<span class="ub-doc-text"><span class="ub-doc-name" title="{escape(document.name)}">'
        f"{escape(shorten(document.name, 60))}</span>"
        f'<span class="ub-doc-facts">{escape(" · ".join(facts))}</span>{notes}</span>'
        + button("remove", document.id, text("doc.remove", name=document.name), "ub-doc-close", icon("cross"))
        + "</li>"
    )


def _upload(upload: Upload) -> str:
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
