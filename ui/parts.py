"""The panel for many questions at once, and the table's files as downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI, Response

from app.errors import BadInput
from ui.backend import Backend
from ui.strings import text

LONGEST_LIST_BYTES = 1_000_000


def build_panel(parts: dict[str, Any]) -> tuple[gr.UploadButton, gr.Button, gr.Button]:
    """-> the button that takes a file in, that which sends, and that which closes. Closed at first."""
    with gr.Column(elem_id="ub-many", visible=False) as parts["many"]:
        parts["listed"] = gr.Textbox(
            label=text("many.label"), placeholder=text("many.placeholder"), show_label=False, container=False,
            lines=4, max_lines=12, elem_id="ub-listed",
        )  # fmt: skip
        with gr.Row(elem_id="ub-many-controls"):
            take = gr.UploadButton(
                text("many.file"), file_types=[".txt", ".csv", ".md"], file_count="single", elem_id="ub-many-file",
                scale=0,
            )  # fmt: skip
            close = gr.Button(text("many.close"), elem_id="ub-many-close", scale=0)
            send = gr.Button(text("many.send"), elem_id="ub-many-send", variant="primary", scale=0)
    return take, send, close


def list_from_file(path: str | None) -> str:
    """The text of a list that Gradio has taken in. Raises BadInput for what is no text."""
    if not path:
        return ""
    file = Path(path)
    data = file.read_bytes()[: LONGEST_LIST_BYTES + 1]
    if len(data) > LONGEST_LIST_BYTES:
        raise BadInput(f"{file.name} is too long for a list of questions.", "Write one question on each line.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{file.name} is no UTF-8 text.", "Save it as UTF-8, or paste the questions.") from None


def add_table_files(app: FastAPI, backend: Backend) -> None:
    """GET /table/MESSAGE.csv, .md and .jsonl; behind the guard like all else."""

    def table_file(name: str) -> Response:
        message_id, _, ending = name.rpartition(".")
        made = backend.table_file(message_id, ending)
        if made is None:
            return Response(status_code=404)
        media_type, content = made
        return Response(
            content.encode("utf-8-sig" if ending == "csv" else "utf-8"),
            media_type=f"{media_type}; charset=utf-8",
            headers={
                "Content-Disposition": f'attachment; filename="questions.{ending}"',
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            },
        )

    app.add_api_route("/table/{name}", table_file, methods=["GET"], include_in_schema=False)
