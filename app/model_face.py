"""What a prompt needs of a model before its weights are in memory: tokenizer, chat template, fingerprint, context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import AppError, as_app_error
from app.skeleton import CHATML

if TYPE_CHECKING:
    from app.models import ModelInfo
    from engine import ChatTemplate, Tokenizer


@dataclass(frozen=True, slots=True)
class ModelFace:
    """fingerprint: changes whenever token ids or templates could; context: tokens of prompt and answer together."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    fingerprint: str
    context: int


def open_face(model: ModelInfo, context: int | None) -> ModelFace:
    """Reads tokenizer and template of the model's file. Errors: AppError, also when the model has no chat template."""
    from engine import ChatTemplate, Tokenizer
    from engine.weights import open_model

    try:
        source = open_model(model.path)
        try:
            tokenizer = Tokenizer(source.tokenizer_source)
            fingerprint = source.fingerprint
        finally:
            source.close()
        template = ChatTemplate(_template_text(model.label, tokenizer), tokenizer.special_tokens)
    except Exception as error:
        raise as_app_error(error) from error
    return ModelFace(model.label, tokenizer, template, fingerprint, context or model.context)


def _template_text(name: str, tokenizer: Tokenizer) -> str:
    """The model's own template, or ChatML where its two control tokens exist."""
    if tokenizer.chat_template:
        return tokenizer.chat_template
    if all(_is_control(tokenizer, token) for token in ("<|im_start|>", "<|im_end|>")):
        return CHATML
    raise AppError(
        f"{name} has no chat template, so it cannot hold a conversation.",
        "Choose an instruct or chat model; base models only continue texts.",
    )


def _is_control(tokenizer: Tokenizer, token: str) -> bool:
    ids = tokenizer.encode_skeleton(token)
    return len(ids) == 1 and ids[0] in tokenizer.special_ids
