"""Which kernels compile for which cards, in the tests and in the full matrix. Plain data: no Triton is needed for it.

In the tests a profile's attention compiles for every architecture that it matches, with the profile's first format and
with another; kernels that are configured alike for all cards take turns with two or three of them.
"""

CARDS = {80: "ampere-dc", 86: "ada", 89: "ada", 90: "hopper", 100: "blackwell", 120: "blackwell"}
"""Compute capability to profile."""
COLD = "+2-bit values"  # of a KV format: with a pool of pages whose values were demoted
_PREFILL = ("prefill attention, dense", "prefill attention, block index")

PLAN: dict[int, tuple[str, ...]] = {
    80: (
        *_PREFILL,
        "decode attention, lists, k4v4",
        "decode attention, dense, k8v8",  # the outer layers
        "decode merge, lists, k4v4",
        "pack, k4v4",
        "unpack, k4v4",
        "coarse keys, block scores",
        "RoPE and append, a chunk",
        "matvec, bf16 down, 1 row",
    ),
    86: (
        *_PREFILL,
        "decode attention, lists, k3v3",
        "decode attention, dense, k4v4",
        "decode merge, dense, k4v4",
        "coarse keys, made",
        "block scores",
        "add and RMS norm",
        "matvec, bf16 head, 4 rows",
        "4-bit weights to bf16",
    ),
    89: (
        *_PREFILL,
        f"decode attention, lists, k3v3{COLD}",
        "decode attention, dense, k4v4",
        f"decode merge, lists, k3v3{COLD}",
        "pack, k3v3",
        f"unpack, k3v3{COLD}",
        "page selection",
        "RoPE and append, 1 token",
        "SwiGLU",
        "gated matvec, fp8, 1 row",
    ),
    90: (
        *_PREFILL,
        "decode attention, lists, fp8",
        "decode attention, dense, bf16",
        "decode merge, dense, bf16",
        "pack, fp8",
        "coarse keys, block scores",
        "coarse keys, page scores",
        "matvec, fp8 down, 1 row",
        "rows to fp8",
    ),
    100: (
        *_PREFILL,
        "decode attention, lists, fp8",
        "decode attention, dense, k4v4",
        "decode merge, lists, fp8",
        "coarse keys, statistics",
        "summarize",
        "gated matvec, fp8, 4 rows",
    ),
    120: (
        *_PREFILL,
        "decode attention, lists, fp8",
        "decode attention, dense, k4v4",
        "decode merge, dense, k4v4",
        "unpack, fp8",
        "page scores",
        "coarse keys, page scores",
        "matvec, fp8 head, 4 rows",
    ),
}
REFUSED = {80: ("rows to fp8",), 86: ("decode attention, lists, fp8",)}
"""What these cards have no instructions for: it must not compile."""
MATRIX_FORMATS = ("bf16", "fp8", "k8v8", "k4v4", "k3v3", f"k3v3{COLD}", "k2v2")
MATRIX_DIMS: tuple[int, ...] = (128, 64)
_BY_HEAD_DIM = ("prefill", "decode", "pack", "unpack", "summarize", "page scores", "block scores", "coarse", "RoPE")
MOST = 60  # compiles in the tests


def in_matrix(name: str, d: int) -> bool:
    """Whether the full matrix has it: reading everything, and merging, differ little from one format to the next, and
    head_dim means nothing to many kernels."""
    if d != MATRIX_DIMS[0] and not name.startswith(_BY_HEAD_DIM):
        return False
    if name.startswith(("decode merge", "decode attention, dense")):
        return name.endswith((", bf16", ", k4v4"))
    return not name.startswith("matvec") or "QKV" not in name
