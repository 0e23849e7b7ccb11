"""What can be done about scanned pages: a card for each document that has some, with the languages to read them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.scans import OcrEstimate
from ui.backend import OcrView
from ui.render.html import button, duration, escape, hear
from ui.strings import text

NAMES = {
    "afr": "Afrikaans", "ara": "Arabic", "bul": "Bulgarian", "cat": "Catalan", "ces": "Czech", "chi_sim": "Chinese",
    "chi_tra": "Chinese (traditional)", "dan": "Danish", "deu": "German", "ell": "Greek", "eng": "English",
    "est": "Estonian", "eus": "Basque", "fas": "Persian", "fin": "Finnish", "fra": "French", "frk": "Fraktur",
    "gle": "Irish", "glg": "Galician", "heb": "Hebrew", "hin": "Hindi", "hrv": "Croatian", "hun": "Hungarian",
    "ind": "Indonesian", "isl": "Icelandic", "ita": "Italian", "jpn": "Japanese", "kor": "Korean", "lat": "Latin",
    "lav": "Latvian", "lit": "Lithuanian", "nld": "Dutch", "nor": "Norwegian", "pol": "Polish", "por": "Portuguese",
    "ron": "Romanian", "rus": "Russian", "slk": "Slovak", "slv": "Slovenian", "spa": "Spanish", "srp": "Serbian",
    "swe": "Swedish", "tha": "Thai", "tur": "Turkish", "ukr": "Ukrainian", "vie": "Vietnamese",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offer:
    """id: of the document, or of the upload that waits. tried: languages in which OCR left something unread."""

    id: str
    sentence: str
    estimate: OcrEstimate
    tried: str = ""


def render_offers(offers: Sequence[Offer], ocr: OcrView) -> str:
    """A card for each; where nothing can be read here, one for all that says what to install."""
    if ocr.languages or not offers:
        return "".join(_offer(offer, ocr) for offer in offers)
    said = "".join(f"<p>{escape(offer.sentence)}</p>" for offer in offers)
    later = button("ocr-leave", ",".join(offer.id for offer in offers), text("ocr.leave"), "ub-tool")
    install = f'<p class="ub-changes-what">{escape(ocr.install)}</p>'
    return (
        f'<div class="ub-changes ub-scan" role="status">{said}{install}<div class="ub-changes-ways">{later}</div></div>'
    )


def _offer(offer: Offer, ocr: OcrView) -> str:
    """In one sentence what was not read, the languages, the button."""
    tried = f" {text('ocr.tried', languages=_listed(offer.tried))}" if offer.tried else ""
    later = button("ocr-leave", offer.id, text("ocr.leave"), "ub-tool")
    head = f"<p>{escape(offer.sentence + tried)}</p>"
    key = "ocr.about" if offer.estimate.measured else "ocr.guess"
    label = text("ocr.read", duration=text(key, duration=duration(offer.estimate.seconds)))
    boxes = "".join(_box(name, name in ocr.chosen) for name in ocr.languages)
    return (
        f'<div class="ub-changes ub-scan" role="status">{head}<div class="ub-form ub-scan-ways" role="group">'
        f'<span class="ub-scan-languages">{hear(text("ocr.languages"))}{boxes}</span><span class="ub-scan-do">'
        + button("ocr", offer.id, label, "ub-quiet ub-take-ticks")
        + f"{later}</span></div></div>"
    )


def _box(language: str, checked: bool) -> str:
    return (
        f'<label class="ub-pick" title="{escape(language)}"><input type="checkbox" value="{escape(language)}"'
        f"{' checked' if checked else ''}><span>{escape(NAMES.get(language, language))}</span></label>"
    )


def _listed(languages: str) -> str:
    return ", ".join(NAMES.get(name, name) for name in languages.split("+"))
