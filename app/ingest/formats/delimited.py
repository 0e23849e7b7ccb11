"""Tables as text files (.csv, .tsv): records as rows, the header row repeated on every page, cells as stored."""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import BinaryIO

from app.errors import BadInput
from app.ingest import textfile
from app.ingest.formats.pages import LimitReached, Pages
from app.ingest.formats.sheet import Sheet

DELIMITERS = ",;\t|"
_SAMPLE = 64 * 1024
_MOST_CELL = 1 << 20
_LONG_CELL = 20_000


def read(file: BinaryIO, name: str, out: Pages, password: str | None = None) -> None:
    most = out.limits.text_bytes
    data = file.read(most + 1)
    cut = len(data) > most
    if cut:
        data = data[: data.rfind(b"\n") + 1] or data[:most]
    try:
        text, warning = textfile.decode(data)
    except textfile.NotText as error:
        raise BadInput(f"{name} is not a text file: {error}", "Save it as CSV in UTF-8 and open that.") from error
    if warning:
        out.warn(warning)
    sheet = Sheet("", "", out)
    try:
        for number, cells in enumerate(_records(text, name, out), 1):
            sheet.row(number, dict(enumerate(cells, 1)))
    except LimitReached as limit:
        sheet.close([])
        raise limit
    sheet.close([])
    if cut:
        raise LimitReached(f"it is larger than {most / 1e6:g} MB")


def _records(text: str, name: str, out: Pages) -> list[list[str]]:
    if text.startswith("sep=") and text[5:6] == "\n":  # Excel's own way to tell it
        delimiter, text = text[4], text[6:]
    else:
        delimiter = delimiter_of(text, name)
    csv.field_size_limit(_MOST_CELL)
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
        if not any(len(cell) > _LONG_CELL and cell.count("\n") > 50 for cells in records for cell in cells):
            return records
    except csv.Error:
        pass  # a cell longer than any honest one
    out.warn("Its quotation marks do not pair, so each line was taken as a row.")
    return [line.split(delimiter) for line in text.split("\n")]


def delimiter_of(text: str, name: str) -> str:
    """The one that parts the first records into the same number of cells most often."""
    if name.lower().endswith((".tsv", ".tab")):
        return "\t"
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample
    best, best_score = ",", 0.0
    for delimiter in DELIMITERS:
        try:
            widths = [len(row) for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if row]
        except csv.Error:
            continue
        if not widths:
            continue
        width, count = Counter(widths).most_common(1)[0]
        score = count / len(widths) * min(width - 1, 5)
        if width > 1 and score > best_score:
            best, best_score = delimiter, score
    return best
