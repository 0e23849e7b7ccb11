"""Text to token ids and back, on the `tokenizers` library.

Two instances of one vocabulary are kept apart. The skeleton instance knows the control tokens and encodes only the
chat template's own text. The contents instance has no control token in its vocabulary at all, nor a merge that makes
one, so text of users and documents cannot yield one, whatever it says.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tokenizers

from engine.errors import EngineError, ModelFileError, UnsupportedModelError
from engine.tokenizer_gguf import special_tokens, tokenizer_json
from engine.weights.json_files import parse_object
from engine.weights.source import TokenizerSource

# Added tokens of this form are control tokens even where the model's author did not mark them (<think>, <tool_call>).
MARKER = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{1,32}\]")
END_OF_TURN = {
    "</s>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
}
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "▁"
SLICE = 1 << 18
# Where a long text may be cut, with texts and places that show whether a tokenizer splits there.
CUTS = (
    (r"(?<=[^\s▁])(?= [A-Za-z])", (("word word", 4), ("word, word", 5), ("12 word", 2))),
    (r"(?<=\n)(?=[^\W\d_])", (("x\nword", 2), (".\n\nword", 3))),
)


def _byte_characters() -> dict[int, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {byte: byte for byte in printable} | {256 + place: byte for place, byte in enumerate(others)}


BYTES_OF_CHARACTERS = _byte_characters()


class Tokenizer:
    """`special_ids`: all control tokens, none of which `encode` can yield. `eos_ids`: those that end an answer.

    `special_tokens`: texts by the names that chat templates use. `vocab_size`: the largest id plus one; a model may
    have more rows than that, which stand for no text.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self.name = source.name
        if source.gguf is not None:
            spec = tokenizer_json(source.gguf, source.name)
            self.special_tokens = special_tokens(source.gguf)
        else:
            spec = parse_object(source.tokenizer_json or b"", f"tokenizer.json of {source.name}")
            self.special_tokens = dict(source.special_tokens)
        _check(spec, source.name)
        added = spec["added_tokens"]
        hidden = {token["id"] for token in added if token["special"]} | set(source.eos_ids)
        hidden |= set() if source.bos_id is None else {source.bos_id}
        control = {token["content"]: token["id"] for token in added if MARKER.fullmatch(token["content"])}
        control |= {token["content"]: token["id"] for token in added if token["id"] in hidden}
        self._skeleton = _build(_without_side_effects(spec), source.name)
        self._contents = _build(_contents_spec(spec, set(control)), source.name)
        self._cuts = _safe_cuts(self._contents)
        vocabulary = self._skeleton.get_vocab(with_added_tokens=True)
        for id in hidden - set(control.values()):
            control |= {text: other for text, other in vocabulary.items() if other == id}
        self.vocab_size = max(vocabulary.values()) + 1
        self.special_ids = frozenset(control.values()) | hidden
        unknown = spec["model"].get("unk_token")
        self._forbidden = self.special_ids - {vocabulary.get(unknown, -1)}
        self._hidden = frozenset(hidden)
        self.bos_id = source.bos_id
        ends = {id for text, id in control.items() if id in hidden and text in END_OF_TURN}
        named = vocabulary.get(self.special_tokens.get("eos_token", ""))
        self.eos_ids = frozenset({*source.eos_ids, *ends, *(() if named is None else (named,))})
        self.chat_template = source.chat_template
        self._pieces = _token_bytes(spec, vocabulary, self.vocab_size, source.name)
        self._leading_space = _adds_leading_space(spec)
        self._prefixes = re.compile(
            "|".join(re.escape(text) for text in sorted(control, key=len, reverse=True)) or "$^"
        )

    def encode(self, text: str) -> list[int]:
        """Ids of contents, without any control token, leading space or begin-of-text of the tokenizer's own making.

        `decode(encode(text)) == text`, unless the model's own tokenizer changes text (Qwen: NFC; SentencePiece: "▁").
        """
        if len(text) > SLICE and self._cuts is not None:
            ids = [id for part in _slices(text, self._cuts) for id in _ids(self._contents, part)]
        else:
            ids = _ids(self._contents, text)
        if not self._forbidden.isdisjoint(ids):
            raise EngineError(
                f"The tokenizer of {self.name} makes control tokens of ordinary text.", "Choose another model."
            )
        return ids

    def encode_skeleton(self, text: str) -> list[int]:
        """Ids of the chat template's own text, in which control tokens are recognised. Never for contents."""
        if not self._leading_space:
            return _ids(self._skeleton, text)
        # A leading space belongs after a control token only; a piece that goes on after contents gets none.
        first = self._prefixes.search(text)
        start = len(text) if first is None else first.start()
        return _ids(self._contents, text[:start]) + _ids(self._skeleton, text[start:])

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of the ids; incomplete characters become U+FFFD. Ids without a text give nothing."""
        return b"".join(self._bytes(id, skip_special) for id in ids).decode("utf-8", errors="replace")

    def stream(self) -> "Detokenizer":
        """A detokenizer for one answer."""
        return Detokenizer(self)

    def count(self, text: str) -> int:
        """Number of tokens that `encode` gives."""
        return len(self.encode(text))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """As `count` of each, on all cores where the library may use them; memory grows with what is given at once."""
        short = [place for place, text in enumerate(texts) if 0 < len(text) <= SLICE]
        given = [_characters(texts[place]) for place in short]
        counts = dict(zip(short, map(len, self._contents.encode_batch_fast(given, add_special_tokens=False))))
        return [counts[place] if place in counts else self.count(text) for place, text in enumerate(texts)]

    def _bytes(self, id: int, skip_special: bool) -> bytes:
        if (skip_special and id in self._hidden) or not 0 <= id < self.vocab_size:
            return b""
        return self._pieces[id]


class Detokenizer:
    """Turns an answer's ids into text one by one, holding back the bytes of an incomplete character.

    Control tokens give no text. The space that SentencePiece puts before the first word is left out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer._leading_space

    def push(self, id: int) -> str:
        """The text that this id completes; may be empty."""
        piece = self._tokenizer._bytes(id, True)
        if self._strip and piece:
            piece, self._strip = piece.removeprefix(b" "), False
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


def _characters(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Lone surrogates, which are no characters, count as U+FFFD."""
    if not text:
        return []
    return tokenizer.encode_batch_fast([_characters(text)], add_special_tokens=False)[0].ids


def _slices(text: str, cuts: re.Pattern[str]) -> Iterator[str]:
    """Parts of a long text, cut where a new word begins, since the library needs some 300 bytes a character."""
    start = 0
    while len(text) - start > SLICE and (cut := cuts.search(text, start + SLICE)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _safe_cuts(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """The places over which no token of this tokenizer reaches, so that the parts can be encoded apart."""
    words = tokenizer.pre_tokenizer
    added = tokenizer.get_added_tokens_decoder().values()
    if words is None or any(" " in token.content or "\n" in token.content for token in added):
        return None

    def splits(text: str, place: int) -> bool:
        normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        return any(span[1] == place for _, span in words.pre_tokenize_str(normal))

    safe = [pattern for pattern, shown in CUTS if all(splits(text, place) for text, place in shown)]
    return re.compile("|".join(safe)) if safe else None


def _check(spec: dict[str, Any], name: str) -> None:
    """The parts of a tokenizer.json that the code here relies on."""
    model, added = spec.get("model"), spec.setdefault("added_tokens", [])
    damaged = ModelFileError(f"The tokenizer of {name} is damaged.", "Get the model's files again.")
    if not isinstance(model, dict) or not isinstance(added, list):
        raise damaged
    # Files of before 2021 leave the type out.
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedModelError(
            f"The tokenizer of {name} is of type {str(model.get('type'))[:40]!r}.", "Supported are BPE tokenizers."
        )
    if not isinstance(model.get("vocab"), dict) or not isinstance(model.get("merges"), list):
        raise damaged
    for token in added:
        if not isinstance(token, dict) or type(token.get("id")) is not int or not isinstance(token.get("content"), str):
            raise damaged
        token.setdefault("special", False)


def _without_side_effects(spec: dict[str, Any]) -> dict[str, Any]:
    """Without a stored truncation, padding, begin-of-text or random dropout: nothing is cut or added unasked."""
    # The library numbers added tokens anew unless the vocabulary holds them; so their ids stay those of the file.
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    model = {**spec["model"], "dropout": None, "vocab": spec["model"]["vocab"] | added}
    return {**spec, "truncation": None, "padding": None, "post_processor": None, "model": model}


def _contents_spec(spec: dict[str, Any], control: set[str]) -> dict[str, Any]:
    """The same tokenizer without control tokens and without a space of its own before the text."""
    model = spec["model"]
    kept = {text: id for text, id in model["vocab"].items() if text not in control or text == model.get("unk_token")}
    merges = [pair for pair in model["merges"] if "".join(_pair(pair)) not in control]
    plain = [token for token in spec["added_tokens"] if token["content"] not in control]
    model = {**model, "vocab": kept, "merges": merges}
    contents = _without_side_effects({**spec, "added_tokens": plain, "model": model})
    contents["normalizer"] = _unprefixed(spec.get("normalizer"))
    contents["pre_tokenizer"] = _unprefixed(spec.get("pre_tokenizer"))
    if contents["pre_tokenizer"] is None and not any(SPACE in text.lstrip(SPACE) for text in kept):
        # No piece goes on after a space, so words can be encoded apart: same ids, and time linear in the text.
        pattern = {"Regex": f"{SPACE}*[^{SPACE}]+|{SPACE}+"}
        contents["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return contents


def _pair(merge: str | Sequence[str]) -> Sequence[str]:
    return merge.split(" ", 1) if isinstance(merge, str) else merge


def _unprefixed(step: Any) -> Any:
    """A normalizer or pre-tokenizer that does not put a space before the text."""
    if not isinstance(step, dict):
        return step
    if step.get("type") == "Prepend":
        return None
    step = dict(step)
    for members in ("normalizers", "pretokenizers"):
        if members in step:
            step[members] = [member for member in map(_unprefixed, step[members]) if member is not None]
    if step.get("type") == "Metaspace":
        step["prepend_scheme"] = "never"
        step.pop("add_prefix_space", None)
    elif "add_prefix_space" in step:
        step["add_prefix_space"] = False
    return step


def _adds_leading_space(spec: dict[str, Any]) -> bool:
    """Whether the tokenizer itself puts a space before a text."""
    return any(_unprefixed(spec.get(part)) != spec.get(part) for part in ("normalizer", "pre_tokenizer"))


def _build(spec: dict[str, Any], name: str) -> tokenizers.Tokenizer:
    text = json.dumps(spec)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception for anything wrong in the file
        raise ModelFileError(
            f"The tokenizer of {name} could not be read ({str(error)[:120]}).", "Get the model's files again."
        ) from error


def _token_bytes(spec: dict[str, Any], vocabulary: dict[str, int], size: int, name: str) -> list[bytes]:
    """The UTF-8 bytes that each id stands for."""
    described = json.dumps(spec.get("decoder"), ensure_ascii=False)
    byte_level = '"ByteLevel"' in described
    if not byte_level and SPACE not in described and '"Metaspace"' not in described:
        raise UnsupportedModelError(
            f"The tokenizer of {name} turns tokens into text in a way that this engine does not know.",
            "Supported are byte-level and SentencePiece BPE tokenizers.",
        )
    added = {token["id"] for token in spec["added_tokens"]}
    pieces = [b""] * size
    for text, id in vocabulary.items():
        if id in added:
            pieces[id] = text.encode()
        elif byte_level:
            pieces[id] = text.translate(BYTES_OF_CHARACTERS).encode("latin-1", "replace")
        elif match := BYTE_PIECE.fullmatch(text):
            pieces[id] = bytes([int(match[1], 16)])
        else:
            pieces[id] = text.replace(SPACE, " ").encode()
    return pieces
