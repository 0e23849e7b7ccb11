"""What any error looks like on the command line: one sentence, one hint, and DESIGN's exit code."""

from __future__ import annotations

import errno

from app.errors import AppError, as_app_error

_BAD_MODEL_FILE = {"ModelFileError", "UnsupportedModelError"}
_FULL = {errno.ENOSPC, errno.EDQUOT}


def explain(error: BaseException) -> AppError:
    """The sentence and hint for any error, a full disk among them."""
    if isinstance(error, OSError) and error.errno in _FULL:
        place = f" ({error.filename})" if error.filename else ""
        return AppError(
            f"The disk is full{place}.", "Make room and run it again; what was stored before is still there."
        )
    if isinstance(error, ModuleNotFoundError):
        return AppError(f"The installation is not complete: {error}.", "Run `python3 installer setup` again.")
    return as_app_error(error)


def exit_code(error: BaseException) -> int:
    """DESIGN's code for an error: its own, or 4 for a model file that cannot be used."""
    links: BaseException | None = error
    seen: set[int] = set()  # `raise shown from shown` makes a circle
    while links is not None and id(links) not in seen:
        if type(links).__name__ in _BAD_MODEL_FILE:
            return 4
        seen.add(id(links))
        links = links.__cause__
    return explain(error).exit_code
