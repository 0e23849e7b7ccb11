"""What `unabridged bench` refuses before it touches a card. What it measures there is in docs/performance.md."""

import pytest
import torch

from app.bench.plan import BenchPlan
from app.cli import main


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("shape", "gpt-2", "shape: got 'gpt-2', need smollm2-135m"),
        ("weights", "int2", "weights: got 'int2', need bf16, fp8, int4"),
        ("what", ("speed",), "what: got 'speed', need tpot, ttft"),
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
