"""GGUF's tokenizer metadata, rewritten as the contents of a tokenizer.json, which the `tokenizers` library reads.

Two kinds: "gpt2" (byte-level BPE; the rule that splits text into words is named by `tokenizer.ggml.pre`) and "llama"
(SentencePiece BPE: pieces with scores, bytes as a fallback). A rule that is not known for certain is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import ModelFileError, UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
AGAIN = "Get the file again, or another conversion of the model."

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{PUNCTUATION_AND_SPACE}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{PUNCTUATION_AND_SPACE}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(words: bool) -> dict[str, Any]:
    """Bytes as printable characters; `words`: first split by GPT-2's rule."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": words}


SMOLLM = [{"type": "Digits", "individual_digits": True}, _byte_level(words=True)]
# `tokenizer.ggml.pre`: (steps that split text into words, a whole word in the vocabulary needs no merges, normal form)
WORD_RULES: dict[str, tuple[list[dict[str, Any]], bool, str | None]] = {
    "gpt-2": ([_byte_level(words=True)], False, None),
    "smollm": (SMOLLM, False, None),
    "llama-bpe": ([_split(LLAMA3), _byte_level(words=False)], True, None),
    "qwen2": ([_split(QWEN2), _byte_level(words=False)], False, "NFC"),
    "tekken": ([_split(TEKKEN), _byte_level(words=False)], True, None),
}
SAME_RULE = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


def tokenizer_json(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`metadata`: the file's `tokenizer.*` entries. ModelFileError where they are missing or do not fit together."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelFileError(f"{name} has no tokenizer.", AGAIN)
    types = _per_token(metadata, "token_type", len(tokens), name)
    if types is None:
        raise ModelFileError(f"{name} does not say which of its tokens are control tokens.", AGAIN)
    if kind == "gpt2":
        model, around = _byte_level_bpe(metadata, tokens, types, name)
    elif kind == "llama":
        model, around = _sentencepiece_bpe(metadata, tokens, types, name)
    else:
        raise UnsupportedModelError(
            f"{name} has a tokenizer of kind {str(kind)[:40]!r}.", "Supported are the kinds 'gpt2' and 'llama'."
        )
    added = [
        _added_token(id, tokens[id], special=bool(types[id] != USER_DEFINED))
        for id in np.flatnonzero(np.isin(types, (UNKNOWN, CONTROL, USER_DEFINED))).tolist()
        if not (kind == "llama" and types[id] == USER_DEFINED and "▁" in tokens[id])
    ]
    return {"version": "1.0", "added_tokens": added, "model": model, **around}


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens as chat templates know them: bos_token, eos_token, unk_token, pad_token."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    found = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if type(id) is int and id < len(tokens):
            found[f"{name}_token"] = tokens[id]
    return found


def _added_token(id: int, text: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": text, "special": special, **flags}


def _per_token(metadata: Mapping[str, Any], key: str, count: int, name: str) -> np.ndarray | None:
    """One number for each token, or None where the file has none."""
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    if not isinstance(values, np.ndarray) or len(values) != count:
        raise ModelFileError(f"{name} has {count} tokens and another number of entries in {key}.", AGAIN)
    return values


def _vocabulary(tokens: Sequence[str], types: np.ndarray) -> dict[str, int]:
    """Ids by text, without unused places; of two equal texts the first counts."""
    vocabulary: dict[str, int] = {}
    for id, (text, kind) in enumerate(zip(tokens, types.tolist())):
        if kind != UNUSED:
            vocabulary.setdefault(text, id)
    return vocabulary


def _byte_level_bpe(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: np.ndarray, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model, and what stands around it."""
    pre = metadata.get("tokenizer.ggml.pre", "default")
    rule = WORD_RULES.get(SAME_RULE.get(pre, pre)) if isinstance(pre, str) else None
    if rule is None:
        known = ", ".join([*WORD_RULES, *SAME_RULE])
        raise UnsupportedModelError(
            f"{name} splits text by the rule {str(pre)[:40]!r}, which this engine does not know.",
            f"Get a conversion with one of these: {known}; or the model's folder with tokenizer.json.",
        )
    steps, whole_words, form = rule
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelFileError(f"{name} has no merges for its tokenizer.", AGAIN)
    vocabulary = _vocabulary(tokens, types)
    pairs = []
    for merge in merges:
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 1 or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ModelFileError(f"{name} has a merge of its tokenizer that does not fit its tokens.", AGAIN)
        pairs.append((left, right))
    model = {"type": "BPE", "vocab": vocabulary, "merges": pairs, "ignore_merges": whole_words}
    return model, {
        "normalizer": {"type": form} if form else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": _byte_level(words=False),
    }


def _sentencepiece_bpe(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: np.ndarray, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """SentencePiece joins the neighbours whose joint piece has the best score; as merges: every split of every piece,
    in order of the piece's score."""
    scores = _per_token(metadata, "scores", len(tokens), name)
    if scores is None:
        raise ModelFileError(f"{name} has no scores for its tokenizer's pieces.", AGAIN)
    vocabulary = _vocabulary(tokens, types)
    joinable = np.isin(types, (NORMAL, USER_DEFINED))
    pieces = {tokens[id]: id for id in np.flatnonzero(joinable).tolist()}
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, id in pieces.items():
        for cut in range(1, len(piece)):
            left, right = pieces.get(piece[:cut]), pieces.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-float(scores[id]), left, right, (piece[:cut], piece[cut:])))
    ranked.sort(key=lambda entry: entry[:3])
    unknown = np.flatnonzero(types == UNKNOWN)
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": [pair for *_, pair in ranked],
        "unk_token": tokens[int(unknown[0])] if len(unknown) else None,
        "fuse_unk": True,
        "byte_fallback": True,
    }
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    first = [{"type": "Prepend", "prepend": "▁"}] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    return model, {
        "normalizer": {"type": "Sequence", "normalizers": [*first, spaces]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    }
