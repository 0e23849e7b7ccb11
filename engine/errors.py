"""What can go wrong inside the engine, in words for the person at the keyboard.

Every error carries one sentence that says what happened (`message`) and one that says what to do next (`hint`).
"""


class EngineError(Exception):
    """Base of all errors that the engine raises for reasons outside its own code."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ModelFileError(EngineError):
    """A model file is missing, damaged or does not hold what its header promises."""


class UnsupportedModelError(EngineError):
    """The model is well-formed, but asks for something that this engine does not compute."""


class DoesNotFitError(EngineError):
    """The prompt needs more tokens than the context or the memory holds; nothing was cut."""

    def __init__(self, message: str, hint: str = "", *, needed_tokens: int, available_tokens: int) -> None:
        super().__init__(message, hint)
        self.needed_tokens = needed_tokens
        self.available_tokens = available_tokens


class SnapshotMismatchError(EngineError):
    """A snapshot was made by another model, tokenizer, KV format or kernel version."""


class ChatTemplateError(EngineError):
    """The model's chat template is broken, or refuses these messages."""
