"""What can be wrong with an attention pattern, said with the pattern's name."""

from engine.errors import EngineError


class PatternError(EngineError):
    """A pattern, or the score that it selects by, did something that attention cannot follow; `pattern` is its name."""

    def __init__(self, pattern: str, message: str, hint: str) -> None:
        super().__init__(f"Pattern {pattern}: {message}", hint)
        self.pattern = pattern


def need(ok: bool, field: str, got: object, wanted: str) -> None:
    """ValueError("field: got X, need Y") unless `ok`."""
    if not ok:
        raise ValueError(f"{field}: got {got!r}, need {wanted}")


def need_tokens(field: str, got: object, least: int) -> None:
    ok = isinstance(got, int) and not isinstance(got, bool) and got >= least
    need(ok, field, got, f"a whole number of tokens, at least {least}")
