"""Offers to read scanned pages with OCR: for documents of a conversation, and for files that hold nothing else.

What a person does not want now stays away until it is asked for again, or until the app is started anew.
"""

from __future__ import annotations

from app.errors import WrongUse
from ui.backend import Backend, DocumentView, OcrView
from ui.render.html import one_line
from ui.render.scans import Offer, render_offers
from ui.strings import text
from ui.uploads import Uploads


class ScanOffers:
    """Thread safe: its sets are only added to and taken from."""

    def __init__(self, backend: Backend, uploads: Uploads) -> None:
        self._backend = backend
        self._uploads = uploads
        self._left: set[str] = set()
        self._wanted: set[str] = set()

    def render(self, conversation_id: str) -> tuple[str, frozenset[str]]:
        """A card for each, and the ids that they are of; a document that is being read with OCR has none."""
        ocr = self._backend.ocr()
        offers = self._offers(conversation_id, ocr) if conversation_id else []
        return one_line(render_offers(offers, ocr)), frozenset(o.id for o in offers)

    def act(self, conversation_id: str, action: str, id: str, languages: str) -> None:
        """A button of a card. All three come from the browser: untrusted. Raises WrongUse."""
        if action == "ocr-leave":
            self._wanted.difference_update(id.split(","))
            self._left.update(id.split(","))
        elif action == "ocr-open":
            self._left.discard(id)
            self._wanted.add(id)
        else:
            self._read(conversation_id, id, languages)

    def _read(self, conversation_id: str, id: str, languages: str) -> None:
        if not languages:
            raise WrongUse(text("ocr.no_language"))
        unknown = set(languages.split("+")) - set(self._backend.ocr().languages)
        if unknown:
            raise WrongUse(text("ocr.gone"), text("ocr.gone_hint"))
        document = next((d for d in self._backend.documents(conversation_id) if d.id == id), None)
        if document is not None and document.scans is not None:
            self._uploads.recognise_document(
                conversation_id, document.id, document.name, languages, document.scans.pages
            )
        elif not self._uploads.recognise(id, languages):
            raise WrongUse(text("ocr.gone"), text("ocr.gone_hint"))

    def _offers(self, conversation_id: str, ocr: OcrView) -> list[Offer]:
        uploads = self._uploads.of(conversation_id)
        reading = {upload.document_id for upload in uploads if upload.state != "failed"}
        chosen = "+".join(ocr.chosen)
        offers = [
            Offer(d.id, d.scans.sentence(), self._backend.ocr_estimate(d.scans.pages, chosen), d.scans.languages)
            for d in self._backend.documents(conversation_id)
            if d.scans is not None and d.id not in reading and self._is_shown(d)
        ]
        return offers + [
            Offer(u.id, u.message, self._backend.ocr_estimate(u.scanned, chosen))
            for u in uploads
            if u.state == "scanned" and u.id not in self._left
        ]

    def _is_shown(self, document: DocumentView) -> bool:
        """Where OCR was tried already, only when it is asked for."""
        if document.id in self._wanted:
            return True
        return document.id not in self._left and not (document.scans and document.scans.languages)
