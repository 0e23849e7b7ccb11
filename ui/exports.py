"""Conversations as files to save: /export/CONVERSATION.md, .json or .docx, behind the guard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

from app.errors import as_app_error
from ui.backend import Backend

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)


def add_exports(app: FastAPI, backend: Backend) -> None:
    """The route; 404 with a sentence for a conversation or format that is not there."""
    from fastapi import Response

    @app.get("/export/{name}", include_in_schema=False)
    def export_conversation(name: str) -> Response:
        conversation_id, _, format = name.rpartition(".")
        headers = {"cache-control": "no-store"}
        try:
            exported = backend.export(conversation_id, format)
        except Exception as error:
            shown = as_app_error(error)
            if shown is not error:
                log.exception("A conversation could not be exported")
            return Response(f"{shown.message} {shown.hint}\n", 404, headers, "text/plain; charset=utf-8")
        headers["content-disposition"] = f"attachment; filename*=utf-8''{quote(exported.name)}"
        return Response(exported.data, 200, headers, exported.media_type)
