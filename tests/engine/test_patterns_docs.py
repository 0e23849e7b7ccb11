"""The examples of docs/patterns.md run as they are printed, and are as short as the page says."""

import ast
import re
import runpy
from pathlib import Path

import pytest

from engine.patterns import Pattern, pattern_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "patterns.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_examples_run_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) >= 7
    script, before = tmp_path / "examples.py", pattern_names()
    script.write_text("\n".join(BLOCKS), encoding="utf-8")
    runpy.run_path(str(script), run_name="docs_patterns")
    assert pattern_names() == before
    printed = capsys.readouterr().out
    for word in ("dense", "window", "top pages", "dilated", "mean only", "sign bits"):
        assert re.search(rf"{word}\n  [\d.]+% of the attention in [\d.]+% of the pages", printed), word


def test_a_new_pattern_takes_at_most_ten_lines() -> None:
    own = [
        node
        for block in BLOCKS
        for node in ast.parse(block).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("Sign")
    ]
    assert {node.name for node in own} == {"Dilated", "MeanOnly", "Ahead"}
    for node in own:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        assert (node.end_lineno or 0) - first + 1 <= 10


def test_every_pattern_is_in_the_table() -> None:
    import engine.patterns

    table = "\n".join(re.findall(r"^\| .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for name in engine.patterns.__all__:
        item = getattr(engine.patterns, name)
        if isinstance(item, type) and issubclass(item, Pattern) and name not in ("Pattern", "Union"):
            assert f"`{name}(" in table, name
