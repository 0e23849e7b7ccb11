"""Tiny random models of every family, as a Hugging Face folder and as GGUF, with a small trained tokenizer.

    model = make_model("qwen2", rope={"rope_type": "yarn", "factor": 4.0})  # a transformers model, eval mode, float32
    save_folder(model, tmp_path / "hf")  # config, safetensors, tokenizer, template
    write_gguf(model, tmp_path / "model.gguf", tensor_type="Q4_0")  # llama and mistral: Q and K rows permuted

Weights are scaled by fan-in, so logits are far from constant and a wrong layer shows. The models' words are those of
`TEXT`; vocab_size is the tokenizer's.
"""

import functools
import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 480
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEXT = (
    "The lighthouse keeper wrote down the weather every evening, in a book with 365 numbered pages.",
    "In 1912 the lamp was changed; the new one burned 24 litres of oil a night and was seen 18 miles away.",
    "def largest(values):\n    best = values[0]\n    for value in values[1:]:\n"
    "        if value > best:\n            best = value\n"
    "    return best\n",
    "Größe, café, naïve, 東京都の天気は晴れ, Привет мир, مرحبا, 👩‍🚀🚀 and — dashes … too.",
    "The contract ends on 31 December 2027, unless either party gives notice (section 4.2, page 17).",
    "\tTabs,   runs of spaces,\r\nand \u00a0 odd\u2028breaks aren't lost; they'll stay.",
)


@functools.cache
def train_byte_bpe(pre: str = "smollm") -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer with SPECIAL_TOKENS as its first ids. `pre`: "smollm" (digits alone) or "gpt-2"."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


@functools.cache
def train_spm_bpe() -> tokenizers.Tokenizer:
    """A tokenizer in the manner of Llama 2: spaces as "▁", one in front, byte fallback, ids 0-2 <unk> <s> </s>."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # type: ignore[assignment]
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    # As SentencePiece does, pieces are learned within words; the finished tokenizer has no splitting step.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # type: ignore[assignment]
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(TEXT[:3] + TEXT[4:5], trainer)
    # The byte pieces are ordinary vocabulary, not special tokens: rebuild with only the three control tokens added.
    trained = json.loads(tokenizer.to_str())
    trained["added_tokens"] = trained["added_tokens"][:3]
    trained["pre_tokenizer"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(trained))


def make_model(
    family: str,
    *,
    rope: dict[str, Any] | None = None,
    rope_theta: float = 10000.0,
    tied: bool = False,
    layers: int = 2,
    hidden_size: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn_size: int = 96,
    vocab_size: int | None = None,
    max_position: int = 256,
    seed: int = 0,
    **extra: Any,
) -> Any:
    """A random `*ForCausalLM` of transformers, float32, eval mode.

    `rope`: transformers' rope parameters without rope_theta, e.g. {"rope_type": "linear", "factor": 2.0}.
    `head_dim`: default hidden_size / heads, for qwen3 twice that, so that the two are told apart.
    `extra`: further fields of the transformers config.
    """
    import transformers

    config_class = getattr(transformers, f"{family.capitalize()}Config")
    if head_dim is None:
        head_dim = hidden_size // heads * (2 if family == "qwen3" else 1)
    if family == "mistral":
        extra.setdefault("sliding_window", None)
    if head_dim != hidden_size // heads or family == "qwen3":
        extra["head_dim"] = head_dim
    config = config_class(
        vocab_size=vocab_size or train_byte_bpe().get_vocab_size(),
        hidden_size=hidden_size,
        intermediate_size=ffn_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_position,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", **(rope or {}), "rope_theta": rope_theta},
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        attn_implementation="eager",
        **extra,
    )
    generator = torch.Generator().manual_seed(seed)
    model = getattr(transformers, f"{family.capitalize()}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("bias"):
                weight.copy_(0.2 * noise)
            elif weight.dim() == 1:
                weight.copy_(1 + 0.2 * noise)
            else:
                weight.copy_(noise / (1 if "embed" in name and not tied else math.sqrt(weight.shape[1])))
    return model


def save_folder(
    model: Any,
    folder: Path,
    *,
    tokenizer: tokenizers.Tokenizer | None = None,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
) -> Path:
    """Saves model, tokenizer and chat template in Hugging Face layout; `shards` > 1: in several safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    size = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    limit = f"{math.ceil(size / shards / 1000)}KB" if shards > 1 else "50GB"
    saved = model if dtype == torch.float32 else type(model)(model.config).eval()
    if saved is not model:
        saved.load_state_dict(model.state_dict())
        saved.to(dtype)
    saved.save_pretrained(folder, max_shard_size=limit)
    (tokenizer or train_byte_bpe()).save(str(folder / "tokenizer.json"))
    spm = tokenizer is not None and tokenizer.token_to_id("<s>") is not None
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>" if spm else "<|im_start|>",
        "eos_token": "</s>" if spm else "<|im_end|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def permute_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a Q or K weight from half-split to interleaved RoPE, as GGUF stores the llama architecture."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a transformers parameter."""
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, kind = name.rsplit(".", 1)
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def llama3_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """The divisors of the inverse frequencies that llama3 scaling stands for, as `rope_freqs.weight` holds them."""
    inverse = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    wavelength = 2 * math.pi / inverse
    original, low, high = (
        rope["original_max_position_embeddings"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
    )
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def random_blocks(shape: tuple[int, int], tensor_type: gguf.GGMLQuantizationType, seed: int) -> np.ndarray:
    """Random bytes of a quantized tensor whose float16 scales are all small and finite; uint8 [rows, bytes]."""
    block, size = gguf.GGML_QUANT_SIZES[tensor_type]
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[tensor_type.name]
    for offset in halves:
        scale = generator.uniform(0.001, 0.01, data.shape[:2]).astype(np.float16)
        data[:, :, offset : offset + 2] = scale[..., None].view(np.uint8)
    return data.reshape(shape[0], -1)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: tokenizers.Tokenizer, pre: str) -> None:
    """Writes a trained tokenizer as GGUF metadata: byte-level BPE, or SPM style when it has <s>."""
    trained = json.loads(tokenizer.to_str())
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]
    special = {token["content"] for token in trained["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in trained["model"]["merges"]]
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    if "<s>" in special:
        order = {merge.replace(" ", ""): -float(rank) for rank, merge in reversed(list(enumerate(merges)))}
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([order.get(token, -1e4 if len(token) == 1 else 0.0) for token in tokens])
        bytes_ = {f"<0x{byte:02X}>" for byte in range(256)}
        types = [gguf.TokenType.BYTE if token in bytes_ else kind for token, kind in zip(tokens, types)]
        types[0] = gguf.TokenType.UNKNOWN
        bos, eos, unknown = "<s>", "</s>", "<unk>"
        writer.add_add_bos_token(True)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(merges)
        bos, eos, unknown = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
        writer.add_add_bos_token(False)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(tokens.index(bos))
    writer.add_eos_token_id(tokens.index(eos))
    writer.add_unk_token_id(tokens.index(unknown))
    writer.add_chat_template(CHAT_TEMPLATE)


def write_gguf(
    model: Any,
    path: Path,
    *,
    tensor_type: str = "F32",
    tokenizer: tokenizers.Tokenizer | None = None,
    pre: str = "smollm",
    arrange: Any = None,
) -> Path:
    """Writes the model as a GGUF file.

    `tensor_type`: of all matrices (F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, and Q2_K to Q6_K with random contents);
    vectors stay F32. `arrange(writer)`: called before writing, to add or spoil metadata.
    """
    config = model.config
    family = config.model_type
    arch = "llama" if family in ("llama", "mistral") else family
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if head_dim != config.hidden_size // config.num_attention_heads:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch == "llama":
        writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))
    elif rope["rope_type"] != "default":
        raise ValueError(f"GGUF has no rope type {rope['rope_type']}")
    add_tokenizer(writer, tokenizer or train_byte_bpe(), pre)
    if arrange is not None:
        arrange(writer)
    kind = gguf.GGMLQuantizationType[tensor_type]
    for index, (name, weight) in enumerate(model.state_dict().items()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = weight.detach().float().numpy()
        if arch == "llama" and ".q_proj." in name:
            array = permute_rows(array, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            array = permute_rows(array, config.num_key_value_heads)
        if array.ndim == 1 or tensor_type == "F32":
            writer.add_tensor(gguf_name(name), array)
        elif tensor_type.endswith("_K"):
            writer.add_tensor(gguf_name(name), random_blocks(array.shape, kind, index), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
