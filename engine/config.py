"""Settings of a model and of an engine: frozen dataclasses that refuse impossible values when they are made.

Every failed check raises `ValueError("field: got X, need Y")`.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engine.patterns import Sparsity, resolve_scorer
from engine.profile_rules import PROFILES

RopeKind = Literal["default", "linear", "dynamic", "ntk", "llama3", "yarn", "factors"]
Family = Literal["llama", "mistral", "qwen2", "qwen3"]
KvFormat = Literal["f32", "bf16", "fp8", "k8v8", "k8v4", "k4v4", "k3v3", "k3v2", "k2v2"]
DecodeWeights = Literal["auto", "f32", "bf16", "fp8", "int8", "int4"]

FAMILIES: tuple[str, ...] = get_args(Family)


def _need(ok: bool, field: str, got: object, need: str) -> None:
    if not ok:
        raise ValueError(f"{field}: got {got!r}, need {need}")


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_layers(field: str, layers: object, count: int | None = None) -> None:
    """ValueError unless `layers` is a tuple of layer numbers, ascending, below `count`; None takes any."""
    need = "layers in ascending order" + (f", from 0 to {count - 1}" if count is not None else ", from 0 on")
    numbers: tuple[Any, ...] = layers if isinstance(layers, tuple) else (None,)
    ok = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers) and list(numbers) == sorted(set(numbers))
    _need(ok and all(n >= 0 and (count is None or n < count) for n in numbers), field, layers, need)


def _finite(value: object, above: float) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > above


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than the model was first trained on.

    `original_context`: tokens of the unstretched model; None means the model's native context.
    `attention_factor`: multiplies cos and sin; None means what the kind prescribes (YaRN: 0.1 ln(factor) + 1).
    `factors`: only for kind "factors", head_dim / 2 numbers that divide the unscaled inverse frequencies one by one.
    """

    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _need(self.kind in get_args(RopeKind), "kind", self.kind, "one of " + ", ".join(get_args(RopeKind)))
        _need(_finite(self.factor, 0) and self.factor >= 1, "factor", self.factor, "a number of at least 1")
        _need(
            self.original_context is None or _positive(self.original_context),
            "original_context",
            self.original_context,
            "a positive number of tokens or None",
        )
        _need(_finite(self.beta_fast, 0), "beta_fast", self.beta_fast, "a positive number")
        _need(_finite(self.beta_slow, 0), "beta_slow", self.beta_slow, "a positive number")
        _need(
            self.attention_factor is None or _finite(self.attention_factor, 0),
            "attention_factor",
            self.attention_factor,
            "a positive number or None",
        )
        if self.kind == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            _need(low is not None and _finite(low, 0), "low_freq_factor", low, "a positive number")
            _need(
                high is not None and low is not None and _finite(high, low),
                "high_freq_factor",
                high,
                "a number above low_freq_factor",
            )
            _need(self.original_context is not None, "original_context", None, "a number of tokens for llama3")
        if self.kind == "factors":
            ok = self.factors is not None and len(self.factors) > 0 and all(_finite(f, 0) for f in self.factors)
            _need(ok, "factors", self.factors, "positive numbers, one for each pair of dimensions")
        else:
            _need(self.factors is None, "factors", self.factors, f"None for kind {self.kind}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder, the same for every file format it may come from.

    `native_context` is in tokens and counts the model's own RoPE scaling; `rope_scaling.original_context` is then
    what the unscaled model was trained on. `eos_ids` may be empty, `bos_id` may be None.
    `qkv_bias`: q, k and v (never o) have a bias. `qk_norm`: RMS norm over head_dim on q and k before RoPE.
    """

    family: Family
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    native_context: int
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None

    def __post_init__(self) -> None:
        _need(self.family in FAMILIES, "family", self.family, "one of " + ", ".join(FAMILIES))
        for name in (
            "hidden_size",
            "layers",
            "heads",
            "kv_heads",
            "head_dim",
            "ffn_size",
            "vocab_size",
            "native_context",
        ):
            _need(_positive(getattr(self, name)), name, getattr(self, name), "a positive whole number")
        _need(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"a divisor of heads ({self.heads})")
        _need(self.head_dim % 2 == 0, "head_dim", self.head_dim, "an even number")
        _need(_finite(self.norm_eps, 0), "norm_eps", self.norm_eps, "a positive number")
        _need(_finite(self.rope_theta, 0), "rope_theta", self.rope_theta, "a positive number")
        factors = self.rope_scaling.factors
        _need(
            factors is None or len(factors) == self.head_dim // 2,
            "rope_scaling.factors",
            len(factors or ()),
            f"{self.head_dim // 2} numbers (head_dim / 2)",
        )
        for id in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            _need(isinstance(id, int) and 0 <= id < self.vocab_size, "eos_ids, bos_id", id, "ids below vocab_size")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and how to run it. None leaves the choice to the engine.

    `context`: tokens of prompt and answer together. `rope_scaling`: replaces the model's own. `device`: cpu, cuda:N,
    or auto for the best one. `profile`: a name of engine.profile_rules, or auto for what fits the device; that of a
    smaller card makes a larger one behave like it.
    `decode_weights`: "auto" takes the fastest packed format whose logit error stays small: on a CPU of f32, int8 and
    int4, for decode alone; on a card of bf16, fp8 and int4, for prefill too. `sparsity`: how sparse the
    modes balanced and fast are. `scorers`: more ways to judge KV pages (names or own scorers) whose summaries are to
    be kept, beside those of `sparsity` and of the named patterns known when the engine is loaded. `gates`: [layers]
    [kv_heads], from 0 to 1 (engine.gates); KV heads whose gate is low stream, except in `exact`. `wide_key_layers`:
    layers, ascending from 0, whose keys keep 8 bits in KV formats that give them fewer, beside the first and last two.
    `evidence`: with each token comes where the model looked (`Token.looked`).
    """

    model: Path
    context: int | None = None
    rope_scaling: RopeScaling | None = None
    kv_format: KvFormat = "bf16"
    decode_weights: DecodeWeights = "auto"
    prefill_chunk: int | None = None
    kv_capacity_tokens: int | None = None
    device: str = "cpu"
    profile: str = "auto"
    threads: int | None = None
    sparsity: Sparsity = field(default_factory=Sparsity)
    scorers: tuple[Any, ...] = ()
    gates: tuple[tuple[float, ...], ...] | None = None
    wide_key_layers: tuple[int, ...] = ()
    evidence: bool = False

    def __post_init__(self) -> None:
        _need(isinstance(self.model, Path), "model", self.model, "a pathlib.Path")
        for name in ("context", "prefill_chunk", "kv_capacity_tokens", "threads"):
            value = getattr(self, name)
            _need(value is None or _positive(value), name, value, "a positive whole number or None")
        for name, choices in (("kv_format", get_args(KvFormat)), ("decode_weights", get_args(DecodeWeights))):
            _need(getattr(self, name) in choices, name, getattr(self, name), "one of " + ", ".join(choices))
        check_layers("wide_key_layers", self.wide_key_layers)
        _need(isinstance(self.evidence, bool), "evidence", self.evidence, "True or False")
        _need(isinstance(self.sparsity, Sparsity), "sparsity", self.sparsity, "a Sparsity")
        for score in self.scorers:
            resolve_scorer(score)
        _need(isinstance(self.device, str) and bool(self.device), "device", self.device, "a torch device name")
        profiles = ("auto", *PROFILES)
        _need(self.profile in profiles, "profile", self.profile, "one of " + ", ".join(profiles))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.

    `seed` None draws a fresh one. `stop`: texts that end the answer and are not part of it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 512
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _need(
            _finite(self.temperature, -1) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "a number of at least 0",
        )
        _need(_finite(self.top_p, 0) and self.top_p <= 1, "top_p", self.top_p, "a number above 0 and at most 1")
        _need(isinstance(self.top_k, int) and self.top_k >= 0, "top_k", self.top_k, "a whole number of at least 0")
        _need(_finite(self.min_p, -1) and 0 <= self.min_p <= 1, "min_p", self.min_p, "a number from 0 to 1")
        _need(_finite(self.repetition_penalty, 0), "repetition_penalty", self.repetition_penalty, "a positive number")
        _need(
            self.seed is None or (isinstance(self.seed, int) and 0 <= self.seed < 2**63),
            "seed",
            self.seed,
            "a whole number from 0 to 2^63 - 1 or None",
        )
        _need(_positive(self.max_tokens), "max_tokens", self.max_tokens, "a positive whole number")
        ok = isinstance(self.stop, tuple) and all(isinstance(s, str) and s for s in self.stop)
        _need(ok, "stop", self.stop, "a tuple of non-empty texts")
