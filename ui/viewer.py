"""Opens pages of documents beside the chat, and serves their pictures.

`look_button` gives markup that opens a page from anywhere in the page's own markup; app.js reports it through a box of
its own, so that a running answer goes on being shown. Pictures come from /page/DOCUMENT/PAGE-ZOOM.png, behind the guard
like everything else, and are kept by nobody: a document that is deleted is gone.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from app.errors import as_app_error
from ui.backend import Backend
from ui.render.html import one_line
from ui.render.viewer import look_button, read_look, render_no_view, render_viewer

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["add_page_pictures", "look", "look_button"]

log = logging.getLogger(__name__)


def look(backend: Backend, message: str) -> dict[str, Any]:
    """The viewer's part of the page for a button that app.js reports; anything else closes the viewer."""
    try:
        sent = json.loads(message)
        wanted = read_look(str(sent["value"])) if sent["action"] == "look" else None
    except (ValueError, TypeError, KeyError):
        wanted = None
    if wanted is None:
        return {"viewer": one_line("")}
    place, zoom, as_text = wanted
    try:
        return {"viewer": render_viewer(backend.look(place, zoom, as_text), zoom, as_text)}
    except Exception as error:
        shown = as_app_error(error)
        if shown is not error:
            log.exception("A page could not be shown")
        return {"viewer": render_no_view(shown.message, shown.hint)}


def add_page_pictures(app: FastAPI, backend: Backend) -> None:
    """The route of the pictures; 404 for whatever cannot be drawn."""
    from fastapi import Response

    @app.get("/page/{document_id}/{name}", include_in_schema=False)
    def page_picture(document_id: str, name: str) -> Response:
        page, _, zoom = name.removesuffix(".png").partition("-")
        headers = {"cache-control": "no-store"}
        try:
            png = backend.picture(document_id, int(page), int(zoom))
        except Exception as error:
            shown = as_app_error(error)
            if shown is not error and not isinstance(error, ValueError):  # ValueError: no number, or one too long
                log.exception("A picture could not be drawn")
            return Response(shown.message, 404, headers, "text/plain; charset=utf-8")
        return Response(png, 200, headers, "image/png")
