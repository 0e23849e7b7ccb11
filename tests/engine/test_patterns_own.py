"""Patterns and scorers that are not ours: how short they can be, and what is said when they are wrong."""

import importlib.metadata
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.errors import EngineError
from engine.patterns import (
    BlockContext,
    Dense,
    MeanStd,
    Pattern,
    PatternError,
    QueryBlocks,
    Sinks,
    Streaming,
    TopPages,
    named_pattern,
    pattern_names,
    register,
    resolve_scorer,
    summary_layout,
    unregister,
)
from kernels.block_index import PAGE, check_index

KV_HEADS, GROUP, D = 2, 3, 16


def context(
    pages: int, pattern: Pattern, blocks: QueryBlocks | None = None, keys: torch.Tensor | None = None
) -> BlockContext:
    generator = torch.Generator().manual_seed(5)
    blocks = blocks or QueryBlocks.decode(pages * PAGE + 3)
    keys = torch.randn(KV_HEADS, pages, PAGE, D, generator=generator) if keys is None else keys
    queries = torch.randn(KV_HEADS, blocks.first.shape[0], GROUP, D, generator=generator)
    summaries = {scorer.summary: scorer.summarize(keys) for scorer in pattern.scorers()}
    return BlockContext(blocks, KV_HEADS, queries=queries, summaries=summaries)


@dataclass(frozen=True)
class EveryNth(Pattern):
    """Ten lines that make a pattern."""

    step: int

    def mask(self, context: BlockContext) -> torch.Tensor:
        return context.all_heads(context.blocks.causal & (context.blocks.page % self.step == 0))


class MeanOnly:
    def score(self, query: torch.Tensor, summary) -> torch.Tensor:
        mean, _ = summary
        return torch.einsum("hbrd,hpld->hbrpl", query, mean.float()).amax(dim=(2, 4))


class Norms:
    name, version = "norms", 3

    def summarize(self, keys: torch.Tensor) -> torch.Tensor:
        return keys.norm(dim=-1).amax(dim=-1).half()

    def score(self, query: torch.Tensor, summary) -> torch.Tensor:
        return query.norm(dim=-1).amax(dim=-1)[..., None] * summary[:, None].float()


def test_an_own_pattern_works_alone_and_in_a_union() -> None:
    pattern = EveryNth(3)
    seen = context(20, pattern, QueryBlocks.chunk(1000, 1300, 64))
    listed = pattern.listed(seen)
    assert listed[0, -1].nonzero().flatten().tolist() == [0, 3, 6, 9, 12, 15, 18, 20]  # and its own page
    check_index(pattern.index(seen), KV_HEADS, 5 + 1, seen.pages, (seen.end - 1) // PAGE)
    assert torch.equal((pattern | Sinks(128)).listed(seen)[0, 0, :2], torch.tensor([True, True]))
    assert pattern.key == "EveryNth@1(step=3)"
    assert pattern.key != EveryNth(4).key


def test_an_own_scorer_gets_mean_and_std_unless_it_summarizes() -> None:
    pattern = TopPages(512, score=MeanOnly())
    assert pattern.scorers()[0].summary == MeanStd().summary
    assert repr(pattern) == "TopPages(512, score=MeanOnly, sink=64, recent=256)"
    seen = context(30, pattern)
    scores = pattern.scorer.score(seen.queries, seen.summaries[MeanStd().summary])
    chosen = pattern.listed(seen)[0, 0]
    free = range(1, 26)  # neither sink nor recent
    best = max(free, key=lambda page: float(scores[0, 0, page]))
    assert chosen[best]
    assert chosen.sum() == 8

    own = TopPages(512, score=Norms())
    assert own.scorers()[0].summary == "norms@3()"
    assert summary_layout(own.scorer, D) == [((), torch.float16)]
    assert own.listed(context(30, own)).sum(-1).flatten().tolist() == [8, 8]
    assert own.key == "TopPages@2(512, norms@3(), 64, 256)"


def test_summary_layouts_of_ours() -> None:
    assert summary_layout(MeanStd(), D) == [((4, D), torch.float16)] * 2
    assert summary_layout(resolve_scorer("accumulated"), D) == [((), torch.float32)]


def test_the_class_of_a_scorers_fields_decides_its_key() -> None:
    class Planes:
        def __init__(self, seed: int) -> None:
            self.planes = torch.randn(D, 4, generator=torch.Generator().manual_seed(seed))

        def score(self, query, summary):
            return query.sum(dim=(2, 3))[..., None]

    assert resolve_scorer(Planes(1)).key == resolve_scorer(Planes(1)).key
    assert resolve_scorer(Planes(1)).key != resolve_scorer(Planes(2)).key

    class Opaque(Planes):
        def __init__(self) -> None:
            self.file = open  # nothing that has a text of its own

    with pytest.raises(PatternError, match=r"^Pattern Opaque: file is a builtin_function_or_method, which has no text"):
        resolve_scorer(Opaque())
    Opaque.key = "opaque, version 1"
    assert resolve_scorer(Opaque()).key == "opaque, version 1"


class Wrong(Pattern):
    def __init__(self, make) -> None:
        self.make = make

    def mask(self, context: BlockContext) -> torch.Tensor:
        return self.make(context)


def without_row(context: BlockContext) -> torch.Tensor:
    mask = context.all_heads(context.blocks.causal).clone()
    mask[1, 2] = False
    return mask


def with_later_page(context: BlockContext) -> torch.Tensor:
    mask = context.all_heads(context.blocks.causal).clone()
    mask[1, 0, 18] = True
    return mask


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (without_row, "Pattern Wrong: no page is listed for query block 2 of KV head 1."),
        (with_later_page, "Pattern Wrong: KV page 18 is listed for query block 0 of KV head 1, which ends in page 15."),
        (lambda c: c.blocks.causal, "Pattern Wrong: its mask is bool [6, 21]. Return bool [kv_heads, blocks, pages]"),
        (
            lambda c: torch.ones(KV_HEADS, 6, 22, dtype=torch.bool),  # a page out of range
            "Pattern Wrong: its mask is bool [2, 6, 22]. Return bool [kv_heads, blocks, pages], here [2, 6, 21].",
        ),
        (lambda c: c.all_heads(c.blocks.causal).int(), "Pattern Wrong: its mask is int32 [2, 6, 21]."),
        (lambda c: None, "Pattern Wrong: its mask is NoneType."),
        (lambda c: c.blocks.causal @ 3, "Pattern Wrong: mask failed with TypeError"),
        (lambda c: c.all_heads(c.blocks.causal).to("meta"), "Pattern Wrong: its mask is on meta."),
    ],
)
def test_a_wrong_pattern_is_named_alone_and_inside_others(make, message: str) -> None:
    for pattern in (Wrong(make), Sinks(64) | Wrong(make)):
        with pytest.raises(PatternError) as caught:
            pattern.index(context(20, Dense(), QueryBlocks.chunk(1000, 1300, 64)))
        assert str(caught.value).startswith(message)
        assert isinstance(caught.value, EngineError)
        assert caught.value.pattern == "Wrong"
        assert caught.value.hint


class WrongScore:
    name = "wrong-score"

    def __init__(self, make) -> None:
        self.make = make
        self.key = "for tests"

    def score(self, query: torch.Tensor, summary) -> torch.Tensor:
        return self.make(torch.zeros(KV_HEADS, 1, 30))


def spoiled(scores: torch.Tensor, value: float) -> torch.Tensor:
    scores[1, 0, 7] = value
    return scores


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: spoiled(s, math.nan), "Pattern wrong-score: the score of KV page 7 is nan for KV head 1."),
        (lambda s: spoiled(s, math.inf), "Pattern wrong-score: the score of KV page 7 is inf for KV head 1."),
        (lambda s: spoiled(s, -math.inf), "Pattern wrong-score: the score of KV page 7 is -inf for KV head 1."),
        (lambda s: s[..., :9], "Pattern wrong-score: score returned float32 [2, 1, 9]."),
        (lambda s: s[0], "Pattern wrong-score: score returned float32 [1, 30]."),
        (lambda s: s.int(), "Pattern wrong-score: score returned int32 [2, 1, 30]."),
        (lambda s: [1.0], "Pattern wrong-score: score returned list."),
        (lambda s: 1 / 0, "Pattern wrong-score: score failed with ZeroDivisionError: division by zero. It was given"),
    ],
)
def test_a_wrong_score_is_named(make, message: str) -> None:
    pattern = TopPages(512, score=WrongScore(make)) | Sinks(64)
    with pytest.raises(PatternError) as caught:
        pattern.index(context(30, pattern))
    assert str(caught.value).startswith(message)


def test_scores_of_later_pages_may_be_anything() -> None:
    class Poisoned:
        def score(self, query: torch.Tensor, summary) -> torch.Tensor:
            scores = torch.arange(20.0).expand(KV_HEADS, query.shape[1], -1).clone()
            scores[..., 17:] = math.nan
            return scores

    pattern = TopPages(384, score=Poisoned(), sink=64, recent=128)
    seen = context(20, pattern, QueryBlocks.chunk(1024, 1088, 64), torch.randn(KV_HEADS, 17, PAGE, D))
    seen = BlockContext(
        QueryBlocks(seen.first, seen.end, 20 * PAGE), KV_HEADS, queries=seen.queries, summaries=seen.summaries
    )
    with pytest.raises(PatternError, match="score returned"):  # twenty scores for seventeen summaries
        pattern.listed(seen)
    seen = context(20, pattern, QueryBlocks(seen.first, seen.end, 20 * PAGE))
    assert not pattern.listed(seen)[..., 17:].any()


class Mixing:
    def __init__(self, make) -> None:
        self.make = make
        self.key = "for tests"

    def summarize(self, keys: torch.Tensor):
        return self.make(keys)

    def score(self, query: torch.Tensor, summary) -> torch.Tensor:
        return query.sum(dim=(2, 3))[..., None] * summary[:, None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda k: k.mean(dim=(2, 3)) - k.mean(),
            "Pattern Mixing: summarize lets the summary of a page depend on other",
        ),
        (lambda k: k.mean(), "Pattern Mixing: summarize returned []."),
        (lambda k: (k.mean(dim=1), k), "Pattern Mixing: summarize returned [1, 64, 16]."),
        (lambda k: {"mean": k}, "Pattern Mixing: summarize returned dict."),
        (lambda k: k @ k, "Pattern Mixing: summarize failed with RuntimeError"),
    ],
)
def test_a_wrong_summary_is_named(make, message: str) -> None:
    with pytest.raises(PatternError) as caught:
        summary_layout(resolve_scorer(Mixing(make)), D)
    assert str(caught.value).startswith(message)


def test_what_a_pattern_needs_and_does_not_get_is_said() -> None:
    pattern = TopPages(512)
    blocks = QueryBlocks.decode(30 * PAGE)
    with pytest.raises(PatternError, match=r"^Pattern TopPages: there are no summaries 'coarse_keys' of the KV pages"):
        pattern.index(BlockContext(blocks, KV_HEADS))
    seen = context(30, pattern)
    with pytest.raises(PatternError, match="there are no queries here"):
        pattern.index(BlockContext(blocks, KV_HEADS, summaries=seen.summaries))
    with pytest.raises(PatternError, match="there are summaries of 30 KV pages"):
        pattern.index(
            BlockContext(QueryBlocks.decode(20 * PAGE), KV_HEADS, queries=seen.queries, summaries=seen.summaries)
        )


def test_scorers_cannot_take_our_names() -> None:
    scorer = Norms()
    scorer.name = "mean_std"  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"^score\.name: got 'mean_std', need a name that no built-in scorer has"):
        TopPages(512, score=scorer)


# By name


@pytest.fixture
def forget():
    yield
    unregister("mine")


@pytest.mark.usefixtures("forget")
def test_registered_patterns_are_found_and_replaced() -> None:
    register("mine", EveryNth(3))
    assert named_pattern("mine") == EveryNth(3)
    register("mine", EveryNth(4))
    assert named_pattern("mine") == EveryNth(4)
    assert "mine" in pattern_names()
    with pytest.raises(
        PatternError, match=r"^Pattern min: no attention pattern or mode has this name\. Did you mean mine\?"
    ):
        named_pattern("min")
    with pytest.raises(PatternError, match="Known are exact, balanced, fast, mine"):
        named_pattern("zzz")


@pytest.mark.parametrize("name", ["exact", "balanced", "fast", "auto", "dense", "", "My Pattern", "-x", "a/b"])
def test_names_of_ours_and_odd_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^name: got"):
        register(name, EveryNth(3))


def test_a_bare_scorer_is_no_pattern() -> None:
    with pytest.raises(ValueError, match="need a Pattern; wrap a scorer"):
        register("mine", Norms())  # type: ignore[arg-type]


THEIRS = """
from engine.patterns import Streaming, TopPages

WINDOW = Streaming(64, 512)


def wide():
    return TopPages(8192)


def broken():
    raise RuntimeError("no luck")


def odd():
    return 3
"""
ENTRY_POINTS = {
    "first": ["window = theirs:WINDOW", "wide = theirs:wide", "balanced = theirs:WINDOW", "twice = theirs:WINDOW"],
    "second": [
        "cls = engine.patterns:Dense",
        "broken = theirs:broken",
        "odd = theirs:odd",
        "missing = nowhere_at_all:x",
        "twice = theirs:wide",
    ],
}


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two installed packages with entry points, as pip leaves them."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    for package, lines in ENTRY_POINTS.items():
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("\n".join(["[unabridged.patterns]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    assert importlib.metadata.version("first") == "1.0"


@pytest.mark.usefixtures("packages")
def test_installed_packages_bring_patterns() -> None:
    assert named_pattern("window") == Streaming(64, 512)
    assert named_pattern("wide") == TopPages(8192)
    assert named_pattern("cls") == Dense()
    assert {"window", "wide", "twice"} <= set(pattern_names())
    assert "balanced" not in pattern_names()
    with pytest.raises(PatternError, match=r"Did you mean window\?"):
        named_pattern("windwo")


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "Pattern broken: package second failed to load it with RuntimeError: no luck."),
        ("missing", "Pattern missing: package second failed to load it with ModuleNotFoundError: No module named"),
        ("odd", "Pattern odd: package second gives an object of type int, not a Pattern."),
        ("twice", "Pattern twice: package first and package second both bring a pattern of this name."),
    ],
)
def test_packages_that_fail_are_named(name: str, message: str) -> None:
    with pytest.raises(PatternError) as caught:
        named_pattern(name)
    assert str(caught.value).startswith(message)
