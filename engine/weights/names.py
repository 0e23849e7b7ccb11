"""Our own tensor names, their shapes, and what Hugging Face and GGUF call them."""

from engine.config import ModelConfig

TOP = {
    "embed": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm": ("model.norm.weight", "output_norm.weight"),
    "lm_head": ("lm_head.weight", "output.weight"),
}
LAYER = {
    "attn_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "ffn_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
}


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's tensors by short name; matrices are [out, in]."""
    hidden, ffn = config.hidden_size, config.ffn_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "ffn_norm": (hidden,),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    if config.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if config.qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    return shapes


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this config has, by our own name."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, config.hidden_size)}
    one_layer = layer_shapes(config)
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{part}": shape for part, shape in one_layer.items()}
    shapes["norm"] = (config.hidden_size,)
    if not config.tied_embeddings:
        shapes["lm_head"] = (config.vocab_size, config.hidden_size)
    return shapes


def huggingface_name(name: str) -> str:
    """ "layers.3.q" -> "model.layers.3.self_attn.q_proj.weight"."""
    if name in TOP:
        return TOP[name][0]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{LAYER[part][0]}"


def gguf_name(name: str) -> str:
    """ "layers.3.q" -> "blk.3.attn_q.weight"."""
    if name in TOP:
        return TOP[name][1]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{LAYER[part][1]}"
