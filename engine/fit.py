"""Will it fit? Bytes of weights and workspaces, before anything is loaded. Estimates, made from shapes alone."""

import math

from engine.cache import PAGE
from engine.card_weights import INT4_GROUP
from engine.config import ModelConfig
from engine.errors import DoesNotFitError
from engine.linear import MATRICES
from engine.weights.names import layer_shapes, tensor_shapes

GIB = 2**30
CARD_WEIGHTS = ("bf16", "fp8", "int4")
LIBRARIES = GIB // 2  # workspaces of matrix products, recorded graphs, gaps between the allocator's blocks
LEAST_CONTEXT = 4096  # a card that holds fewer tokens beside the weights does not fit the model
TINY_SHARE = 1 / 32  # of the memory: a model that is smaller in bf16 stays so, packing it would win nothing


def weight_bytes(model: ModelConfig, weights: str) -> int:
    """Of all weights in one format of engine.profile_rules; on a CPU those of prefill and of packed decode together."""
    shapes = tensor_shapes(model)
    whole, head = sum(map(math.prod, shapes.values())), model.vocab_size * model.hidden_size
    matrices = [shape for shape in _fused(model) for _ in range(model.layers)]
    inside = sum(map(math.prod, matrices))
    if weights == "bf16":
        return 2 * whole
    if weights in ("fp8", "int4"):
        tied = head if model.tied_embeddings else 0  # read as embedding in bf16, multiplied with in fp8
        packed = sum(_fp8(shape) if weights == "fp8" else _int4(shape) for shape in matrices)
        return packed + _fp8((model.vocab_size, model.hidden_size)) + 2 * (whole - inside - head + tied)
    decode = {"f32": 0.0, "f32+int4": 0.625}.get(weights, 1.0)
    return 4 * whole + int(decode * (inside + head))


def weights_for(model: ModelConfig, weights: str, memory_limit: int) -> tuple[str, str]:
    """(format, why) of a model's weights on a card whose profile says `weights`."""
    if weights != "bf16" and weight_bytes(model, "bf16") <= TINY_SHARE * memory_limit:
        return "bf16", "so small a model is not worth packing here"
    return weights, "by the profile"


def workspace_bytes(model: ModelConfig, chunk: int) -> int:
    """On a card, whatever the context: activations of one chunk, logits, libraries."""
    widest = 3 * model.ffn_size + 4 * model.hidden_size + 2 * model.head_dim * (model.heads + 2 * model.kv_heads)
    return chunk * (2 * widest + 8 * model.hidden_size) + 8 * model.vocab_size + LIBRARIES


def workspace_bytes_per_token(model: ModelConfig) -> int:
    """On a card, for each token of context: one layer's keys and values in bf16, and what selection works with."""
    return 4 * model.kv_heads * model.head_dim + 16 * model.layers * model.kv_heads // PAGE + model.kv_heads * 32


def check_weights(model: ModelConfig, weights: str, available: int, place: str, kv_bytes: int, chunk: int) -> None:
    """DoesNotFitError unless `available` bytes hold the weights beside the shortest useful context. `place`: who has
    these bytes; `kv_bytes`: of one token."""
    beside = workspace_bytes(model, chunk) + LEAST_CONTEXT * (kv_bytes + workspace_bytes_per_token(model))
    needed = weight_bytes(model, weights) + beside
    if needed <= available:
        return
    on_card = weights in CARD_WEIGHTS
    others = {name: weight_bytes(model, name) + beside for name in CARD_WEIGHTS} if on_card else {}
    smaller = {name: size for name, size in others.items() if size < needed}
    fitting = [f"decode weights {name} ({_gib(size)})" for name, size in smaller.items() if size <= available]
    tried = "".join(f"; as {name} {_gib(size)}" for name, size in smaller.items() if size > available)
    if not fitting:
        narrowest = "int4" if on_card else weights
        parameters = sum(map(math.prod, tensor_shapes(model).values()))
        largest = (available - beside) * parameters / weight_bytes(model, narrowest) / 1e9
        if largest >= 0.1:
            fitting = [f"models of up to some {largest:.1f}B parameters" + (" as int4" if on_card else "")]
        fitting += ["the CPU (device cpu), slowly"] if on_card else []
    raise DoesNotFitError(
        f"The model's weights as {weights} with room for {LEAST_CONTEXT:,} tokens need {_gib(needed)}, and {place} has "
        f"{_gib(max(0, available))}{tried}.",
        f"What fits: {', or '.join(fitting) if fitting else 'a smaller model'}.",
        needed_tokens=LEAST_CONTEXT,
        available_tokens=0,
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _fused(model: ModelConfig) -> list[tuple[int, int]]:
    """(rows, columns) of one layer's matrices as they are multiplied with."""
    shapes = layer_shapes(model)
    return [(sum(shapes[part][0] for part in parts), shapes[parts[0]][1]) for parts in MATRICES.values()]


def _fp8(shape: tuple[int, int]) -> int:
    return shape[0] * (shape[1] + 4)


def _int4(shape: tuple[int, int]) -> int:
    """Two codes a byte, and scale and zero point in bf16 for each group."""
    rows, columns = shape
    fits = rows % 8 == 0 and columns % INT4_GROUP == 0
    return rows * (columns // 2 + 4 * columns // INT4_GROUP) if fits else _fp8(shape)
