"""What `unabridged bench` does without a card: what it refuses, and its parts that run anywhere, on small shapes.

What it measures on a card is in docs/performance.md.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from app.bench import plot, restore
from app.bench.context import make_cache
from app.bench.plan import BenchPlan
from app.bench.restore import measure_restore
from app.bench.rows import Row, as_line, as_table, first_token
from app.bench.transformers_peer import make_model
from app.bench.transformers_peer import measure_transformers as measure_peer
from app.cli import main
from engine.random_weights import SHAPES

SMALL = replace(
    SHAPES["qwen3-4b"], hidden_size=64, layers=3, heads=4, kv_heads=2, head_dim=32, ffn_size=96, vocab_size=97
)
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("shape", "gpt-2", "shape: got 'gpt-2', need smollm2-135m"),
        ("weights", "int2", "weights: got 'int2', need bf16, fp8, int4"),
        ("what", ("speed",), "what: got 'speed', need tpot, ttft, restore, torch, transformers"),
        ("modes", ("slow",), "modes: got 'slow', need exact, balanced, fast"),
        ("lengths", (1000,), "lengths: got 1000, need multiples of 64"),
    ],
)
def test_what_cannot_be_measured_is_named(field: str, value: object, message: str) -> None:
    fields = {
        "shape": "llama-3-8b",
        "weights": "fp8",
        "lengths": (8192,),
        "what": ("tpot",),
        "modes": ("exact",),
        "formats": ("bf16",),
    }
    with pytest.raises(ValueError) as caught:
        BenchPlan(**(fields | {field: value}))
    assert str(caught.value).startswith(message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--lengths", "8k"]) == 1
    said = capsys.readouterr()
    assert "There is nothing to measure here" in said.err
    assert said.out == ""


@pytest.mark.parametrize("kv_format", ["bf16", "fp8", "k4v4"])
def test_restored_is_what_was_stored(kv_format: str, tmp_path: Path) -> None:
    cold, warm = measure_restore(SMALL, kv_format, 8192, CPU, tmp_path)
    assert (cold.state, warm.state) == ("cold", "warm")
    assert cold.length == warm.length == 8192
    assert cold.file_bytes > 8192 * 3 * 2 * 2 * 32 * (2 if kv_format == "bf16" else 0.5)
    assert min(cold.seconds, warm.seconds, cold.write_s, cold.plain_gb_per_s) > 0
    assert cold.gb_per_s == pytest.approx(cold.file_bytes / cold.seconds / 1e9)
    assert list(tmp_path.iterdir()) == []


def test_what_was_stored_in_time_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "block_pages", lambda bytes_per_token: 2)
    cache = make_cache(SMALL, "fp8", 4096, CPU)
    with monkeypatch.context() as patched:
        patched.setattr(restore.time, "perf_counter", count(0.0).__next__)
        written = restore.write_random(cache, 4096, tmp_path, 20)
    assert 0 < written.tokens < 4096
    reader = restore.Reader(cache, written)
    assert reader.warm_up() > 0
    assert reader.restore() > 0


def test_other_bytes_than_were_stored_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = restore.restore

    def damaging(cache, sequence, *rest):  # type: ignore[no-untyped-def]
        read = own(cache, sequence, *rest)
        cache.memory.keys[1, 1, sequence.table[0] * 64 + 5] += 1
        return read

    monkeypatch.setattr(restore, "restore", damaging)
    with pytest.raises(RuntimeError, match="other bytes"):
        measure_restore(SMALL, "bf16", 4096, CPU, tmp_path)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_transformers_gets_the_same_shape(family: str) -> None:
    shape = replace(SMALL, family=family, qk_norm=family == "qwen3")
    model = make_model(shape, CPU)
    count = sum(weight.numel() for weight in model.parameters())
    matrices = 64 * 32 * (2 * 4 + 2 * 2) + 3 * 64 * 96
    norms = 2 * 64 + (2 * 32 if family == "qwen3" else 0)
    assert count == 3 * (matrices + norms) + 2 * 97 * 64 + 64
    assert model.config._attn_implementation == "sdpa"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_peer_that_would_take_too_long_is_not_begun() -> None:
    rows = list(measure_peer(SMALL, (128, 1 << 30), 30, lambda text: None, CPU))
    assert [row.length for row in rows] == [128, 1 << 30]
    assert rows[0].ttft_s
    assert rows[0].tpot_ms
    assert rows[1].ttft_s is None
    assert "not run" in rows[1].note


def test_torch_attention_attends_as_ours() -> None:
    pytest.importorskip("triton")
    from app.bench.torch_attention import torch_decode, torch_prefill
    from kernels.decode_attention import PagedKv
    from kernels.prefill_attention import prefill_attention

    made = torch.Generator().manual_seed(0)
    q = torch.randn(70, 4, 32, generator=made)
    k, v = torch.randn(2, 2, 200, 32, generator=made)
    expected = prefill_attention(q, k, v, 0.2)
    torch.testing.assert_close(torch_prefill(q, k, v, 0.2), expected, atol=1e-5, rtol=1e-5)
    out = torch.zeros(1, 4, 32)
    torch_decode(q[-1:], PagedKv(k, v), torch.zeros(0), None, torch.zeros(0), 0.2, out, None, tokens=200)
    torch.testing.assert_close(out, expected[-1:], atol=1e-5, rtol=1e-5)


ROWS = [
    Row("ttft", "exact", "fp8", 8192, 2.5, "s", 0.5, 1.0, peak_gib=3.0, compiles=0),
    Row("tpot", "exact", "fp8", 8192, 3.25, "ms", 0.6, 1.0, 306, 3.0, compiles=0),
    Row("tpot", "exact", "bf16", 8192, None, "ms", by="transformers", note="not installed"),
]


def test_the_table_tells_what_there_is_and_why_there_is_nothing() -> None:
    head, *lines = as_table(ROWS)
    assert dict(zip(head, lines[1]))["VALUE"] == "3.250 ms"
    assert dict(zip(head, lines[1]))["COMPILES"] == "0"
    assert dict(zip(head, lines[2]))["VALUE"] == "-"
    assert dict(zip(head, lines[2]))["NOTE"] == "not installed"
    assert as_line(ROWS[1]) == (
        "tpot unabridged exact fp8 8192 3.250 ms, of limit 60 %, pages read 100.0 %, kernels 306, on device 3.000 ms, "
        "compiles 0"
    )
    assert first_token(ROWS, "exact", "fp8", 8192) == 2.5
    assert first_token(ROWS, "balanced", "fp8", 8192) is None


def test_a_part_that_fails_says_so_and_the_next_is_measured() -> None:
    pytest.importorskip("triton")
    from app.bench.run import _told

    def failing() -> Iterator[Row]:
        yield ROWS[0]
        raise RuntimeError("no room\nat all")

    rows = [*_told("ttft", "fp8", 8192, failing()), *_told("tpot", "fp8", 8192, iter(ROWS[1:2]))]
    assert rows[0] == ROWS[0]
    assert (rows[1].what, rows[1].value, rows[1].note) == ("ttft", None, "FAILED: RuntimeError: no room")
    assert rows[2] == ROWS[1]


def found() -> dict[str, Any]:
    about: dict[str, Any] = {"shape": "small", "weights": "fp8", "device": "a card", "date": "2026-11-30"}
    return about | {"rows": [asdict(row) for row in ROWS]}


def test_lines_of_the_picture() -> None:
    assert plot.lines(found(), "tpot") == {"unabridged, exact, fp8": [(8192, 3.25)]}
    assert plot.lines(found(), "restore") == {}


def test_a_picture_needs_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(found()))
    monkeypatch.setattr(plot, "can_draw", lambda: False)
    assert main(["bench", "--plot", str(file)]) == 1
    assert "matplotlib" in capsys.readouterr().err
    file.write_text("{}")
    monkeypatch.setattr(plot, "can_draw", lambda: True)
    assert main(["bench", "--plot", str(file)]) == 2
    assert "is no result of" in capsys.readouterr().err


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(found(), tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


COMPILE_TWICE = """
import sys, tempfile
import torch, triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton.language as tl
from engine.cuda.counters import counting

@triton.jit
def double(x, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(x + at, 2 * tl.load(x + at))

source = ASTSource(double, {"x": "*fp32", "n": "constexpr"}, {(1,): 64}, {})
begun = []
torch.cuda.CUDAGraph.capture_begin = lambda graph: begun.append(graph)
own = torch.cuda.CUDAGraph.capture_begin
with tempfile.TemporaryDirectory() as knobs.cache.dir, counting() as outer:
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
    with counting() as inner:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        knobs.runtime.kernel_load_end_hook(None, None, "double", {}, "")
        torch.cuda.CUDAGraph.capture_begin("graph")
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
torch.cuda.CUDAGraph.capture_begin("later")
assert begun == ["graph", "later"] and torch.cuda.CUDAGraph.capture_begin is own
assert knobs.compilation.listener is None and not knobs.runtime.kernel_load_end_hook.calls
for counts in (outer, inner):
    print(counts.compiled, counts.cached, counts.loaded, counts.recorded, counts.any)
print(inner)
"""


def test_compilations_and_captures_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    script = tmp_path / "twice.py"  # Triton reads a kernel's source
    script.write_text(COMPILE_TWICE)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 2 1 1 5",
        "0 1 1 1 3",
        "0 compiled, 1 from the cache, 1 loaded, 1 recorded (double)",
    ]
