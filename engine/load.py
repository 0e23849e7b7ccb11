"""From an `EngineConfig` to everything an engine holds: weights, tokenizer, RoPE, decode weights, KV memory."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from engine.cache import PAGE, KvCache, Sequence
from engine.card_weights import pack_for_card, pack_head, pack_layer
from engine.chat_template import ChatTemplate
from engine.config import EngineConfig, ModelConfig, check_layers
from engine.decode import decode_token
from engine.errors import UnsupportedModelError
from engine.evidence import retrieval_weights
from engine.fit import check_weights, weight_bytes, weights_for, workspace_bytes
from engine.kv_memory import EXACT_DTYPES, bytes_per_token
from engine.linear import four_bit_share, load_decoder, pack_layers
from engine.model import Decoder, LayerWeights
from engine.patterns import PatternError, Scorer, named_pattern, pattern_names, resolve_scorer
from engine.prefill import prefill_chunk
from engine.profile_rules import Profile
from engine.profiles import (
    free_memory,
    head_split,
    kv_sizes,
    prefill_chunk_tokens,
    profile_of,
    put_in_force,
)
from engine.rope import Rope, resolve_rope
from engine.tokenizer import Tokenizer
from engine.two_pools import TwoPoolCache
from engine.warm_up import compile_kernels
from engine.weights import open_model
from engine.weights.names import tensor_shapes
from engine.weights.source import ModelSource
from kernels import triton_jit
from kernels.linear import int4_is_available, int8_is_available

if TYPE_CHECKING:
    from engine.cuda.graph_decode import GraphDecoder

log = logging.getLogger(__name__)

LARGEST_LOGIT_ERROR = 0.05  # RMS ratio above which "auto" goes on to the next candidate
_LARGEST_ON_CARD = {"fp8": LARGEST_LOGIT_ERROR, "int4": 0.2}  # 4 bits are chosen where memory is short
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What `Engine` is made from; the fields explain themselves in engine.engine."""

    decoder: Decoder
    cache: KvCache
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    profile: Profile
    context: int
    capacity: int
    chunk: int
    parameters: int
    decode_weights: str
    decode_reason: str
    decode_logit_error: float
    device_name: str
    source_fingerprint: str
    scorers: tuple[Scorer, ...]
    graphs: "GraphDecoder | None" = None


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """Open, read and pack the model. Raises what `Engine.load` says."""
    profile = profile_of(config)
    put_in_force(profile)
    on_cpu = torch.device(profile.device).type == "cpu"
    progress("open", 0.0)
    with open_model(config.model) as source:
        model = source.config
        chunk = config.prefill_chunk or prefill_chunk_tokens(model, profile.device, profile.largest_chunk)
        config = replace(config, prefill_chunk=chunk)
        if config.kv_format not in EXACT_DTYPES and model.head_dim % 8:
            raise UnsupportedModelError(
                f"KV format {config.kv_format} needs heads of a multiple of 8 dimensions; this model's have "
                f"{model.head_dim}.",
                "Use the KV format bf16.",
            )
        check_layers("wide_key_layers", config.wide_key_layers, model.layers)
        context, rope = resolve_context(config, model, profile.device)
        tokenizer = Tokenizer(source.tokenizer_source)
        template = ChatTemplate(source.tokenizer_source.chat_template or "", tokenizer.special_tokens)
        make = _weights_for_cpu if on_cpu else _weights_for_card
        decoder, weights, reason, error = make(config, profile, source, rope, progress)
        parameters = sum(math.prod(shape) for shape in tensor_shapes(model).values())
        fingerprint = source.fingerprint
    if on_cpu:
        progress("kernels", 0.0)
        compile_kernels(decoder, config.kv_format)
    scorers = kept_scorers(config)
    sizes = kv_sizes(config, model, context, profile.device, scorers)
    split, pools = head_split(config), (model, config.kv_format, sizes.pages, sizes.exact, profile.device, scorers)
    wide = config.wide_key_layers
    if split is None:
        cache = KvCache(*pools, sizes.cold, wide=wide)
    else:
        cache = TwoPoolCache(*pools, sizes.cold, split=split, window_pages=sizes.window, wide=wide)
    device_name = "cpu" if on_cpu else torch.cuda.get_device_name(profile.device)
    graphs = None if on_cpu else make_graphs(decoder, cache, config, context, lambda share: progress("kernels", share))
    progress("ready", 1.0)
    return LoadedModel(
        decoder, cache, tokenizer, template, profile, context, sizes.tokens, chunk, parameters, weights, reason, error,
        device_name, fingerprint, scorers, graphs,
    )  # fmt: skip


def make_graphs(
    decoder: Decoder, cache: KvCache, config: EngineConfig, context: int, progress: Callable[[float], None]
) -> "GraphDecoder | None":
    """Decode steps as CUDA graphs; None where Triton does not run or heads have pools of their own."""
    if not triton_jit.available(cache.device) or isinstance(cache, TwoPoolCache):
        log.warning("Decode runs through torch: %s", triton_jit.unavailable_reason() or "two-pool cache")
        return None
    from engine.cuda.graph_decode import GraphDecoder

    evidence = None
    if config.evidence:
        everyone = torch.ones(decoder.config.layers, decoder.config.kv_heads, device=cache.device)
        found = retrieval_weights(config, cache.device)
        evidence = everyone if found is None else found
    graphs = GraphDecoder(decoder, cache, config.sparsity.scorer, context, evidence)
    graphs.capture(progress)
    return graphs


def resolve_context(config: EngineConfig, model: ModelConfig, device: str) -> tuple[int, Rope]:
    """The context in tokens, and the RoPE that holds for it."""
    scaling = config.rope_scaling or model.rope_scaling
    context = config.context or int(model.native_context * (scaling.factor if config.rope_scaling else 1))
    return context, resolve_rope(model, scaling, context, device)


def kept_scorers(config: EngineConfig) -> tuple[Scorer, ...]:
    """The scorers whose summaries the KV cache keeps: those of modes, of named patterns, and what was asked for.

    An installed pattern that cannot be loaded is an error only for who asks for it.
    """
    named: list[Scorer] = []
    for name in pattern_names():
        try:
            named += named_pattern(name).scorers()
        except PatternError as error:
            log.warning("%s %s", error.message, error.hint)
    asked = [resolve_scorer(score) for score in config.scorers]
    by_summary = {scorer.summary: scorer for scorer in (config.sparsity.scorer, *named, *asked)}
    return tuple(by_summary.values())


def _weights_for_cpu(
    config: EngineConfig, profile: Profile, source: ModelSource, rope: Rope, progress: Progress
) -> tuple[Decoder, str, str, float]:
    """(decoder, name of its decode weights, reason, logit error). A format that was asked for and cannot be had is an
    error."""
    asked = config.decode_weights
    dense = load_decoder(source, rope, profile.dtype, profile.device, lambda share: progress("weights", share))
    if asked == "f32":
        return dense, "f32", "asked for", 0.0
    missing = {"int8": not int8_is_available(), "int4": not (int4_is_available() and int8_is_available())}
    if asked != "auto":
        if missing[asked]:
            raise UnsupportedModelError(
                f"This build of PyTorch {torch.__version__} has no working packed {asked} product for the CPU.",
                "Use decode weights 'auto' or 'f32'.",
            )
        decoder = pack_layers(source, dense, asked == "int4", lambda share: progress("packing", share))
        progress("kernels", 0.0)
        return decoder, asked, "asked for", logit_error(decoder, dense, config.kv_format)
    # Codes that the file itself holds lose nothing by staying 4 bits wide; rounding wider weights to 4 bits would.
    # Over weights that no cache holds int4 is the faster one too (AVX2: 60 against 77 ms a token at 1k, starter model).
    candidates = ["int4", "int8"] if four_bit_share(source) == 1 else ["int8"]
    refused = []
    for name in candidates:
        if missing[name]:
            refused.append(f"{name}: this PyTorch has no working product")
            continue
        decoder = pack_layers(source, dense, name == "int4", lambda share: progress("packing", share))
        progress("kernels", 0.0)
        error = logit_error(decoder, dense, config.kv_format)
        if error <= LARGEST_LOGIT_ERROR:
            return decoder, name, f"logit error {error:.4f} is within {LARGEST_LOGIT_ERROR}", error
        refused.append(f"{name}: logit error {error:.4f}")
    log.warning("Decode uses float32 weights (%s).", "; ".join(refused))
    return dense, "f32", "; ".join(refused), 0.0


def _weights_for_card(
    config: EngineConfig, profile: Profile, source: ModelSource, rope: Rope, progress: Progress
) -> tuple[Decoder, str, str, float]:
    """As `_weights_for_cpu`, for a card; DoesNotFitError if it does not hold them. The logit error is NaN where packed
    and unpacked weights do not fit at once."""
    model, free = source.config, free_memory(profile.device)
    chunk = config.prefill_chunk or prefill_chunk_tokens(model, profile.device, profile.largest_chunk)
    token = bytes_per_token(model, config.kv_format, kept_scorers(config), wide=config.wide_key_layers)
    name, reason = profile.weights, "asked for"
    if config.decode_weights == "auto":
        name, reason = weights_for(model, profile.weights, profile.memory_limit)
    card = f"{torch.cuda.get_device_name(profile.device)} (profile {profile.name})"
    check_weights(model, name, free, card, token, chunk)

    def load(pack: Callable[[LayerWeights], LayerWeights] = lambda layer: layer) -> Decoder:
        return load_decoder(source, rope, profile.dtype, profile.device, lambda share: progress("weights", share), pack)

    if name == "bf16":
        return load(), name, reason, 0.0
    both = weight_bytes(model, "bf16") + weight_bytes(model, name) + workspace_bytes(model, 16)
    if both > free:
        decoder = load(lambda layer: pack_layer(layer, name))
        return replace(decoder, head=pack_head(decoder.head)), name, f"{reason}; packed layer by layer", math.nan
    dense = load()
    packed = pack_for_card(dense, name, lambda share: progress("packing", share))
    error = logit_error(packed, dense, config.kv_format)
    if config.decode_weights != "auto" or error <= _LARGEST_ON_CARD[name]:
        return packed, name, reason, error
    log.warning("Weights stay in bf16: as %s the logit error is %.4f.", name, error)
    return dense, "bf16", f"{name}: logit error {error:.4f}", 0.0


def logit_error(packed: Decoder, dense: Decoder, kv_format: str, tokens: int = 16) -> float:
    """RMS of the difference of the logits after `tokens` fixed tokens, divided by the RMS of the dense logits."""
    vocab = dense.config.vocab_size
    ids = [(7919 * (i + 1)) % vocab for i in range(tokens)]
    logits = []
    for decoder in (dense, packed):
        pages = -(-tokens // PAGE)
        cache, sequence = KvCache(dense.config, kv_format, pages, pages, str(dense.embed.device)), Sequence()
        cache.prepare(sequence, tokens)
        prefill_chunk(decoder, cache, sequence, ids[:-1], lambda: None)
        logits.append(decode_token(decoder, cache, sequence, ids[-1], lambda: None))
    return float((logits[1] - logits[0]).norm() / logits[0].norm())
