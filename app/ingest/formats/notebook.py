"""Jupyter notebooks (.ipynb): cells in order with their kind, source and text outputs. Pictures are counted only."""

from __future__ import annotations

import json
import re
from typing import Any, BinaryIO

from app.errors import BadInput
from app.ingest.formats.flow import pieces
from app.ingest.formats.pages import PAGE_CHARACTERS, Pages

MOST_BYTES = 200_000_000
_COLOURS = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")
_HEADING = re.compile(r"(#{1,6})\s+(\S.*)")
_FENCE = re.compile(r"\s*(```|~~~)")


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadInput(f"{name} is larger than {MOST_BYTES / 1e6:g} MB.", "Clear its outputs and save it again.")
    try:
        content = json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is damaged or cut off: it is no notebook.", "Copy or download it again.") from error
    cells = _cells(content)
    if cells is None:
        raise BadInput(f"{name} is not a Jupyter notebook: it has no cells.", "Open it in Jupyter and save it again.")
    page = _Page(out)
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict):
            page.put(number, _Cell(cell, out))
    page.close()


def _cells(content: Any) -> list[Any] | None:
    """Of format 4, or of format 3, whose cells lie in worksheets."""
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("cells"), list):
        return content["cells"]
    sheets = content.get("worksheets")
    if not isinstance(sheets, list):
        return None
    found = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)]
    return [cell for cells in found if isinstance(cells, list) for cell in cells]


class _Cell:
    """text: source and outputs. headings: (title, level) of its Markdown headings."""

    def __init__(self, cell: dict[str, Any], out: Pages) -> None:
        self._out = out
        kind = str(cell.get("cell_type", "raw"))
        source = _joined(cell.get("source", cell.get("input", "")))
        self.kind = "markdown" if kind in ("heading", "html") else kind if kind in ("code", "markdown") else "raw"
        if kind == "heading":  # format 3
            source = "#" * max(1, min(6, _number(cell.get("level", 1)))) + " " + source
        attachments = cell.get("attachments")
        out.pictures += len(attachments) if isinstance(attachments, dict) else 0
        self.headings = list(_headings(source)) if self.kind == "markdown" else []
        outputs = cell.get("outputs")
        shown = [output for output in outputs if isinstance(output, dict)] if isinstance(outputs, list) else []
        texts = [self._output(output) for output in shown]
        results = "\n".join(text.strip("\n") for text in texts if text.strip())
        self.text = source.strip("\n") + (f"\n[output]\n{results}" if results else "")

    def _output(self, output: dict[str, Any]) -> str:
        kind = output.get("output_type")
        if kind in ("error", "pyerr"):
            trace = _joined(output.get("traceback", []), "\n")
            return _COLOURS.sub("", trace) or f"{output.get('ename', 'Error')}: {output.get('evalue', '')}"
        if kind == "stream":
            return _overwritten(_COLOURS.sub("", _joined(output.get("text", ""))))
        data = output.get("data", output)
        if not isinstance(data, dict):
            return ""
        if any(key.startswith("image/") or key in ("png", "jpeg", "svg") for key in data):
            self._out.pictures += 1
        for key in ("text/markdown", "text/plain", "text", "text/latex", "latex"):
            if data.get(key):
                return _COLOURS.sub("", _joined(data[key]))
        if data.get("application/json") is not None:
            return json.dumps(data["application/json"], ensure_ascii=False)
        if data.get("text/html") or data.get("html") or data.get("application/javascript"):
            self._out.warn("Outputs that are web pages without a text form were not read.")
        return ""


class _Page:
    def __init__(self, out: Pages) -> None:
        self._out = out
        self._texts: list[str] = []
        self._first = self._last = self._length = 0

    def put(self, number: int, cell: _Cell) -> None:
        if not cell.text.strip():
            return
        parts = pieces(f"[Cell {number}, {cell.kind}]\n{cell.text}", PAGE_CHARACTERS)
        if self._texts and self._length + len(parts[0]) > PAGE_CHARACTERS:
            self.close()
        for title, level in cell.headings:
            self._out.mark(title, level)
        if len(parts) > 1:
            self.close()
            for place, part in enumerate(parts):
                self._out.add(f"Cell {number}" + (f" ({place + 1})" if place else ""), part)
            return
        self._first = self._first or number
        self._last = number
        self._texts.append(parts[0])
        self._length += len(parts[0]) + 2

    def close(self) -> None:
        if self._texts:
            label = f"Cell {self._first}" if self._first == self._last else f"Cells {self._first}-{self._last}"
            self._out.add(label, "\n\n".join(self._texts))
        self._texts = []
        self._first = self._length = 0


def _headings(source: str) -> list[tuple[str, int]]:
    found, fenced = [], False
    for line in source.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        match = None if fenced else _HEADING.match(line)
        if match:
            found.append((match[2].rstrip().rstrip("#").rstrip(), len(match[1]) - 1))
    return found


def _joined(value: Any, between: str = "") -> str:
    if isinstance(value, list):
        return between.join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _overwritten(text: str) -> str:
    """Progress bars write over their line: the last state of it is what is seen."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 1
