"""A model's chat template: Jinja text that turns messages into the prompt's skeleton, run in a sandbox.

The template comes with the model and is not trusted: it cannot reach Python objects, the clock or files, and it stops
after a time and an output size. The same messages and variables always render to the same text.
"""

import datetime
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from jinja2 import TemplateError

from engine.errors import ChatTemplateError
from engine.template_sandbox import HINT, Sandbox

TIME_LIMIT_S = 5.0
SOURCE_LIMIT = 1 << 20
TEXT_LIMIT = 1 << 20


class ChatTemplate:
    """`source`: the Jinja text. `special_tokens`: "bos_token", "eos_token", ... as the template may use them.

    ChatTemplateError where the text is not a valid template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        if len(source) > SOURCE_LIMIT:
            raise ChatTemplateError("The model's chat template is longer than a megabyte.", HINT)
        self.source = source
        self.special_tokens = dict(special_tokens)
        try:
            self._template = Sandbox().from_string(source)
        except (TemplateError, RecursionError, SyntaxError, ValueError, OverflowError) as error:
            raise ChatTemplateError(f"The model's chat template is broken ({_short(error)}).", HINT) from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> str:
        """The prompt's text. `messages`: {"role", "content", ...}, in order.

        `variables` are the template's further variables (tools, enable_thinking, ...). "now" among them, a date, a
        datetime or its ISO text, is what the template's `strftime_now` tells (or give a function "strftime_now");
        without it that function is refused, so that no prompt depends on the clock.
        ChatTemplateError where the template refuses or fails.
        """
        context = {
            **self.special_tokens,
            **variables,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": variables.get("strftime_now") or _clock(variables.get("now")),
            "raise_exception": _refuse,
        }
        limit = TEXT_LIMIT + 8 * sum(len(str(message.get("content", ""))) for message in messages)
        try:
            return _within_time(lambda: _collect(self._template.generate(context), limit), TIME_LIMIT_S)
        except ChatTemplateError:
            raise
        except RecursionError as error:
            raise ChatTemplateError("The model's chat template calls itself without end.", HINT) from error
        except Exception as error:  # a template can raise anything that Python raises
            raise ChatTemplateError(f"The model's chat template failed ({_short(error)}).", HINT) from error


def _clock(now: Any) -> Callable[[str], str]:
    """`strftime_now` at a fixed moment."""

    def strftime_now(form: str) -> str:
        if isinstance(now, str):
            return datetime.datetime.fromisoformat(now).strftime(form)
        if isinstance(now, datetime.date):
            return now.strftime(form)
        raise ChatTemplateError(
            "The model's chat template asks for today's date and none was given.", "Pass the variable 'now'."
        )

    return strftime_now


def _refuse(message: str) -> None:
    """`raise_exception`: how templates refuse messages."""
    raise ChatTemplateError(
        f"The model's chat template refuses these messages: {str(message)[:200]}", "Choose another model."
    )


def _collect(parts: Any, limit: int) -> str:
    """Joins the output, up to a length."""
    kept, length = [], 0
    for part in parts:
        kept.append(part)
        length += len(part)
        if length > limit:
            raise ChatTemplateError("The model's chat template writes far more than the messages hold.", HINT)
    return "".join(kept)


def _within_time(work: Callable[[], str], seconds: float) -> str:
    """Runs `work` in this thread and stops it at its next line of Python once the time is over."""
    deadline = time.monotonic() + seconds

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > deadline:
            raise ChatTemplateError(f"The model's chat template ran for more than {seconds:g} seconds.", HINT)
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        return work()
    finally:
        sys.settrace(before)


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]
