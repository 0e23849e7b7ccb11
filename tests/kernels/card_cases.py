"""What the engine launches on a card, at the shapes of Llama-3-8B (head_dim 128) and of Llama-3.2-1B (64): one call
for each kernel and variant, made by the launchers themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from engine.attention import QUERY_BLOCK
from engine.patterns.context import SAMPLED_ROWS
from engine.patterns.policy import RECENT, SINK
from engine.patterns.scorer import LOGICAL
from kernels.append_kv.triton import rope_append
from kernels.block_index import PAGE, BlockIndex, PageLists
from kernels.decode_attention import PagedKv
from kernels.decode_attention.triton import make_scratch, paged_decode
from kernels.kv_codec import FORMATS, PackedFormat
from kernels.kv_codec.formats import empty_pages
from kernels.kv_codec.triton import pack_into, summarize_into, unpack_into
from kernels.kv_codec.triton_coarse import copy_coarsely_into, logical_statistics
from kernels.linear.triton import matvec
from kernels.linear.triton_convert import quantize_rows, unpack_int4_groups
from kernels.page_scores.triton import score_pages
from kernels.page_scores.triton_blocks import largest
from kernels.page_scores.triton_coarse import score_pages_by_coarse_keys
from kernels.page_scores.triton_coarse_blocks import coarse_shares
from kernels.page_selection.triton import select_page_lists
from kernels.prefill_attention.triton import prefill_attention
from kernels.rms_norm.triton import add_rms_norm
from kernels.swiglu.triton import swiglu
from tests.kernels.card_plan import COLD

CONTEXT, CHUNK = 131072, 4096
KV_HEADS, GROUP = 8, 4
HEADS = KV_HEADS * GROUP
HIDDEN = {128: 4096, 64: 2048}  # by head_dim
FFN = {128: 14336, 64: 8192}


@dataclass(frozen=True, slots=True)
class Case:
    """`call` launches, on a device, kernels of which the one named `kernel` is meant."""

    name: str
    kernel: str
    call: Callable[[torch.device], object]


def cases(d: int, formats: tuple[str, ...]) -> list[Case]:
    """All kernels for these KV formats."""
    hidden, ffn = HIDDEN[d], FFN[d]
    found = [
        Case("prefill attention, dense", "_prefill_attention_kernel", partial(_prefill, d, False)),
        Case("prefill attention, block index", "_prefill_attention_kernel", partial(_prefill, d, True)),
    ]
    for fmt in formats:
        found += [
            Case(f"decode attention, lists, {fmt}", "_split", partial(_decode, d, fmt, True)),
            Case(f"decode attention, dense, {fmt}", "_split", partial(_decode, d, fmt, False)),
            Case(f"decode merge, lists, {fmt}", "merge_parts", partial(_decode, d, fmt, True)),
            Case(f"decode merge, dense, {fmt}", "merge_parts", partial(_decode, d, fmt, False)),
        ]
        if fmt != "bf16":
            found.append(Case(f"unpack, {fmt}", "_unpack", partial(_unpack, d, fmt)))
        if fmt in FORMATS:
            found.append(Case(f"pack, {fmt}", "_pack", partial(_pack, d, fmt)))
    found += [
        Case("coarse keys, made", "_copy_coarsely", partial(_copy_coarsely, d)),
        Case("coarse keys, page scores", "_score_coarse", partial(_score_coarse, d)),
        Case("coarse keys, statistics", "_logical_statistics", partial(_logical_statistics, d)),
        Case("summarize", "_summarize", partial(_summarize, d)),
        Case("page scores", "_score", partial(_score, d)),
        Case("page selection", "_select", _select),
        Case("block scores", "_largest", partial(_block_scores, d)),
        Case("coarse keys, block scores", "_logs", partial(_coarse_blocks, d)),
        Case("coarse keys, shares of a block", "_shares", partial(_coarse_blocks, d)),
        Case("RoPE and append, 1 token", "_rope_append_kernel", partial(_rope_append, d, 1)),
        Case("RoPE and append, a chunk", "_rope_append_kernel", partial(_rope_append, d, CHUNK)),
        Case("add and RMS norm", "_add_rms_norm_kernel", partial(_norm, hidden)),
        Case("SwiGLU", "_swiglu_kernel", partial(_swiglu, ffn)),
        Case("4-bit weights to bf16", "_unpack_int4_kernel", partial(_unpack_weights, hidden)),
    ]
    shapes = {"QKV": (6 * hidden // 4, hidden), "down": (hidden, ffn), "head": (128256, hidden)}
    for kind in ("fp8", "bf16"):
        for name, shape in shapes.items():
            for rows in (1, 4):
                label = f"matvec, {kind} {name}, {rows} row{'s'[: rows > 1]}"
                found.append(Case(label, "_matvec_kernel", partial(_matvec, shape, kind, rows, False)))
    for rows in (1, 4):
        label = f"gated matvec, fp8, {rows} row{'s'[: rows > 1]}"
        found.append(Case(label, "_matvec_kernel", partial(_matvec, (2 * ffn, hidden), "fp8", rows, True)))
    found.append(Case("rows to fp8", "_quantize_rows_kernel", partial(_quantize, hidden)))
    return found


def _bf16(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device=device)


def _numbers(device: torch.device, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=device)


def _layer(d: int, fmt: str, device: torch.device) -> PagedKv:
    """One of several layers of a cache: in a packed one most pages are packed."""
    pages = CONTEXT // PAGE
    keys, values = (_bf16(device, 2, KV_HEADS, (pages // 8) * PAGE, d)[1] for _ in range(2))
    if fmt == "bf16":
        return PagedKv(keys, values)
    own = FORMATS[fmt.removesuffix(COLD)]
    packed = empty_pages(own, (KV_HEADS, pages), d, device)
    if not fmt.endswith(COLD):
        return PagedKv(keys, values, packed, own)
    demoted = PackedFormat(own.key_bits, 2)
    return PagedKv(keys, values, packed, own, empty_pages(demoted, (KV_HEADS, pages), d, device), demoted)


def _decode(d: int, fmt: str, listed: bool, device: torch.device) -> None:
    pages = CONTEXT // PAGE
    scratch = make_scratch(1, HEADS, KV_HEADS, d, pages, device, mass=True)
    lists = None
    if listed:
        rows = _numbers(device, 2, KV_HEADS)
        lists = PageLists(rows[0], rows[1], _numbers(device, KV_HEADS * pages))
    paged_decode(
        _bf16(device, 1, HEADS, d), _layer(d, fmt, device), _numbers(device, pages), lists, _numbers(device, 1),
        d**-0.5, _bf16(device, 1, HEADS, d), scratch, torch.empty(KV_HEADS, pages, device=device),
        weights=torch.empty(KV_HEADS, device=device),
    )  # fmt: skip


def _prefill(d: int, sparse: bool, device: torch.device) -> None:
    q = _bf16(device, CHUNK, HEADS, d)
    keys, values = (_bf16(device, KV_HEADS, CONTEXT, d) for _ in range(2))
    index = None
    if sparse:
        blocks = KV_HEADS * (CHUNK // QUERY_BLOCK)
        index = BlockIndex(_numbers(device, blocks + 1), _numbers(device, blocks * CONTEXT // PAGE))
    prefill_attention(q, keys, values, index, d**-0.5, QUERY_BLOCK)


def _pack(d: int, fmt: str, device: torch.device) -> None:
    kv, pages = _layer(d, fmt, device), _numbers(device, CHUNK // PAGE, dtype=torch.int64)
    assert kv.packed is not None
    assert kv.format is not None
    pack_into(kv.keys, kv.values, pages, kv.packed, kv.format, pages)


def _unpack(d: int, fmt: str, device: torch.device) -> None:
    pages = CONTEXT // PAGE
    keys, values = (_bf16(device, KV_HEADS, CONTEXT, d) for _ in range(2))
    unpack_into(_layer(d, fmt, device), _numbers(device, pages), pages, keys, values)


def _summary(d: int, device: torch.device) -> torch.Tensor:
    return torch.empty(KV_HEADS, CONTEXT // PAGE, PAGE // LOGICAL, d, dtype=torch.float16, device=device)


def _summarize(d: int, device: torch.device) -> None:
    keys, pages = _layer(d, "bf16", device).keys, _numbers(device, CHUNK // PAGE, dtype=torch.int64)
    summarize_into(keys, pages, _summary(d, device), _summary(d, device))


def _score(d: int, device: torch.device) -> None:
    pages = CONTEXT // PAGE
    score_pages(
        _bf16(device, HEADS, d), _summary(d, device), _summary(d, device), "mean_std", _numbers(device, pages),
        pages // 8, _numbers(device, 1), _numbers(device, 1), _numbers(device, KV_HEADS, dtype=torch.uint8),
        torch.empty(KV_HEADS, pages, device=device),
    )  # fmt: skip


def _coarse(d: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = 9 * CONTEXT // PAGE // 8
    codes = _numbers(device, KV_HEADS, rows, PAGE, d // 4, dtype=torch.uint8)
    scale, minimum = (torch.empty(KV_HEADS, rows, d, dtype=torch.float16, device=device) for _ in range(2))
    return codes, scale, minimum


def _copy_coarsely(d: int, device: torch.device) -> None:
    pages = _numbers(device, CHUNK // PAGE, dtype=torch.int64)
    copy_coarsely_into(_layer(d, "bf16", device).keys, pages, *_coarse(d, device))


def _score_coarse(d: int, device: torch.device) -> None:
    pages = CONTEXT // PAGE
    score_pages_by_coarse_keys(
        _bf16(device, HEADS, d), *_coarse(d, device), d**-0.5, _numbers(device, pages), pages // 8,
        _numbers(device, 1), _numbers(device, 1), _numbers(device, KV_HEADS, dtype=torch.uint8),
        torch.empty(KV_HEADS, pages, device=device),
    )  # fmt: skip


def _logical_statistics(d: int, device: torch.device) -> None:
    rows = _numbers(device, CONTEXT // PAGE, dtype=torch.int64)
    logical_statistics(*_coarse(d, device), rows, LOGICAL, _summary(d, device), _summary(d, device))


def _select(device: torch.device) -> None:
    pages, rows = CONTEXT // PAGE, _numbers(device, 2, KV_HEADS)
    lists = PageLists(rows[0], rows[1], _numbers(device, KV_HEADS * pages))
    scores, streaming = torch.empty(KV_HEADS, pages, device=device), _numbers(device, KV_HEADS, dtype=torch.uint8)
    select_page_lists(scores, _numbers(device, 1), _numbers(device, 1), SINK, RECENT, streaming, lists)


def _block_scores(d: int, device: torch.device) -> None:
    q = torch.empty(KV_HEADS, CHUNK // QUERY_BLOCK, SAMPLED_ROWS * GROUP, d, device=device)
    largest(q, _summary(d, device), _summary(d, device), "mean_std")


def _coarse_blocks(d: int, device: torch.device) -> None:
    pages, blocks = CONTEXT // PAGE, CHUNK // QUERY_BLOCK
    q = torch.empty(KV_HEADS, blocks, SAMPLED_ROWS * GROUP, d, device=device)
    codes = _numbers(device, KV_HEADS, pages, PAGE, d // 4, dtype=torch.uint8)
    scale, minimum = (torch.empty(KV_HEADS, pages, d, dtype=torch.float16, device=device) for _ in range(2))
    listed, allowed = (
        _numbers(device, KV_HEADS, blocks, 288, dtype=torch.int64),
        torch.empty(blocks, pages, device=device),
    )
    coarse_shares(q, codes, scale, minimum, listed, allowed.bool(), d**-0.5)


def _rope_append(d: int, tokens: int, device: torch.device) -> None:
    kv, slots = _layer(d, "k4v4", device), _numbers(device, tokens, dtype=torch.int64)
    norm, angles = torch.empty(d, device=device), torch.empty(tokens, d, device=device)
    qkv = _bf16(device, tokens, (HEADS + 2 * KV_HEADS) * d)
    rope_append(qkv, norm, norm, 1e-6, angles, angles, kv.keys, kv.values, slots, True, HEADS)


def _norm(hidden: int, device: torch.device) -> None:
    x, weight = torch.empty(1, hidden, device=device), torch.empty(hidden, device=device)
    add_rms_norm(x, _bf16(device, 1, hidden), weight, 1e-6, torch.bfloat16)


def _swiglu(ffn: int, device: torch.device) -> None:
    swiglu(_bf16(device, CHUNK, 2 * ffn))


def _matvec(shape: tuple[int, int], kind: str, rows: int, gated: bool, device: torch.device) -> None:
    weight, scales = _bf16(device, *shape), None
    if kind == "fp8":
        weight, scales = weight.to(torch.float8_e4m3fn), torch.empty(shape[0], device=device)
    matvec(_bf16(device, rows, shape[1]), weight, scales, None, gated)


def _quantize(hidden: int, device: torch.device) -> None:
    quantize_rows(_bf16(device, CHUNK, hidden))


def _unpack_weights(hidden: int, device: torch.device) -> None:
    codes = _numbers(device, hidden // 8, hidden // 128, 32, 4)
    unpack_int4_groups(codes, _bf16(device, hidden // 128, hidden, 2), 128, 0, hidden)
