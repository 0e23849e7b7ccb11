"""Errors that a user sees: one sentence on what happened, one hint on what to do next, and an exit code.

Nothing here knows the engine, the database or the screen; the command line prints `message` and `hint` on stderr and
leaves with `exit_code`, the page shows both under the question.
"""

from __future__ import annotations


class AppError(Exception):
    """Anything that went wrong and that a user can act on. exit_code 1 unless a subclass says otherwise."""

    exit_code: int = 1

    def __init__(self, message: str, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class WrongUse(AppError):
    """The request itself makes no sense: an unknown option, a page that the document does not have."""

    exit_code = 2


class DoesNotFit(AppError):
    """The prompt and the room for an answer are longer than the model's context. All numbers are tokens.

    choices: what would work, each a short phrase ("read from the best passages", "pages 1-12").
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        needed_tokens: int = 0,
        available_tokens: int = 0,
        choices: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint)
        self.needed_tokens = needed_tokens
        self.available_tokens = available_tokens
        self.choices = choices


class BadInput(AppError):
    """A file that cannot be read: missing, empty, damaged, too large, of an unknown kind."""

    exit_code = 4


class PasswordNeeded(BadInput):
    """The document is encrypted and no password, or a wrong one, was given."""


class NeedsOcr(BadInput):
    """Nothing of the file can be read, because its pages are pictures. pages: how many of them are."""

    def __init__(self, message: str, hint: str = "", *, pages: int = 0) -> None:
        super().__init__(message, hint)
        self.pages = pages


class Cancelled(AppError):
    """The user stopped the work before it was done."""


def as_app_error(error: BaseException) -> AppError:
    """Any exception as one that can be shown: errors of engine and storage keep their sentence and hint."""
    if isinstance(error, AppError):
        return error
    message, hint = getattr(error, "message", None), getattr(error, "hint", "")
    if isinstance(message, str) and message:
        needed, available = getattr(error, "needed_tokens", None), getattr(error, "available_tokens", None)
        if isinstance(needed, int) and isinstance(available, int):
            shown: AppError = DoesNotFit(message, hint, needed_tokens=needed, available_tokens=available)
        else:
            shown = (WrongUse if type(error).__name__ == "PatternError" else AppError)(message, hint)
    elif isinstance(error, MemoryError):
        shown = AppError("The machine ran out of memory.", "Close other programs, or choose fewer pages.")
    else:
        shown = AppError(
            f"Something went wrong inside the app: {type(error).__name__}: {error}.",
            "Try again; if it stays, please report it with the log.",
        )
    shown.__cause__ = error
    return shown
