"""How a page is called on the screen: by number, by what is printed on it, or by the file of a folder that it is of."""

from __future__ import annotations

from app.page_labels import file_page, names_place
from ui.strings import text


def page_name(page: int, label: str) -> str:
    """page 12, page 12 (printed xii), Slide 4, docs/manual.pdf, page 3."""
    file = file_page(label)
    if file is not None:
        if not file.page or not file.printed:
            return text("turn.file_page", path=file.path, page=file.number)
        return text("turn.file_page_label", path=file.path, page=file.number, label=file.printed)
    if names_place(label):  # "Slide 4" says more than a number
        return label
    if label and label != str(page):
        return text("turn.page_label", page=page, label=label)
    return text("turn.page", page=page)


def short_page_name(page: int, label: str) -> str:
    """p. 12, Slide 4, manual.pdf p. 3."""
    file = file_page(label)
    if file is not None:
        return text("turn.file_page_short", name=file.path.rpartition("/")[2], page=file.number)
    return label if names_place(label) else text("turn.page_short", page=page)


def pages_name(first: int, last: int, label: str, short: bool) -> str:
    """pages 12-13, pp. 12-13, docs/manual.pdf, pages 3-4; label: of the first page."""
    file = file_page(label)
    if file is None or not file.page:
        return text("turn.pages_short" if short else "turn.pages", first=first, last=last)
    last_in_file = file.page + last - first
    if short:
        name = file.path.rpartition("/")[2]
        return text("turn.file_pages_short", name=name, first=file.page, last=last_in_file)
    return text("turn.file_pages", path=file.path, first=file.page, last=last_in_file)
