"""Citation verification on synthetic sets with known verdicts: precision and recall of every class.

The English text is a copy that does not change, so the figures depend on nothing but the checker: the sample handbook
and this project's own documentation of 2026-11-30 (`citation_prose.txt`, pages divided by form feeds).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from app import ingest
from app.citations import Citation, PageSource, attribute
from app.sample import SAMPLE_PDF
from tests.app.citation_cases import Case, Maker
from tests.app.citation_cases_fresh import FreshMaker
from tests.app.citation_cases_third import SEED, ThirdMaker
from tests.app.cjk_text import CHINESE, JAPANESE

PROSE = Path(__file__).with_name("citation_prose.txt")
FILES = "UNABRIDGED_CITATION_FILES"
"""Other files (paths, separated by colons) to take quotes from, instead of the English text."""
OF_A_KIND = "UNABRIDGED_CITATION_CASES"
"""So many quotes at most of each kind of damage."""
LEAST = 0.98
VERDICTS = ("right", "near", "wrong_page", "invented")


def english_pages() -> list[PageSource]:
    named = [Path(name) for name in os.environ.get(FILES, "").split(":") if name]
    pages: list[PageSource] = []
    for path in named or [SAMPLE_PDF]:
        read = ingest.read_file(path)
        pages += [PageSource(read.sha256, read.name, page.index, page.label, page.text) for page in read.pages]
    prose = [] if named else PROSE.read_text().split("\f")
    return pages + [PageSource("prose", "prose.txt", n, str(n), text) for n, text in enumerate(prose, 1)]


def dense_pages() -> list[PageSource]:
    chinese = [PageSource("zh", "灯塔.pdf", n, str(n), text) for n, text in enumerate(CHINESE, 1)]
    return chinese + [PageSource("ja", "灯台.pdf", n, str(n), text) for n, text in enumerate(JAPANESE, 1)]


def verdict(found: list[Citation], case: Case, pages: list[PageSource]) -> str:
    """What the app says of the one quote; "lost" if it puts it on a page that does not have it."""
    if len(found) != 1:
        return f"{len(found)} citations"
    (citation,) = found
    if citation.status == "not_found":
        return "invented"
    page = pages[case.page]
    if case.page >= 0 and (citation.document_id, citation.page) != (page.document_id, page.page):
        return "lost"
    if citation.said:
        return "wrong_page"
    return {"verified": "right", "near": "near"}.get(citation.status, citation.status)


def some_of_each_kind(cases: Iterable[Case], most: int) -> list[Case]:
    """At most so many of each kind, spread evenly over the text."""
    kinds: defaultdict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        kinds[case.verdict, case.kind].append(case)
    return [
        of[k * len(of) // most] if len(of) > most else of[k] for of in kinds.values() for k in range(min(most, len(of)))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maker", "seed", "pages", "most", "least"),
    [
        (Maker, 20261130, english_pages, 25, 450),
        (Maker, 20261130, dense_pages, 100, 400),
        (FreshMaker, 7, english_pages, 30, 400),
        (ThirdMaker, SEED, english_pages, 25, 600),
    ],
    ids=["first", "cjk", "second", "third"],
)
def test_precision_and_recall_of_every_verdict(
    maker: type[Maker],
    seed: int,
    pages: Callable[[], list[PageSource]],
    most: int,
    least: int,
    record_property: Callable[[str, object], None],
) -> None:
    """least: cases of which the figures are; far fewer would say little."""
    sources = pages()
    cases = some_of_each_kind(maker(sources, seed).cases(), int(os.environ.get(OF_A_KIND, most)))
    assert len(cases) >= least
    told: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    for case in cases:
        said = verdict(attribute(case.answer, sources), case, sources)
        told[case.verdict, said] += 1
        if said != case.verdict:
            wrong.append(f"{case.verdict} ({case.kind}) told {said}: {case.quote}")
    figures = {}
    for name in VERDICTS:
        hit = told[name, name]
        recall = hit / sum(n for (true, _), n in told.items() if true == name)
        precision = hit / sum(n for (_, said), n in told.items() if said == name)
        figures[name] = min(precision, recall)
        record_property(name, f"precision {precision:.4f}, recall {recall:.4f}")
        print(f"{name}: precision {precision:.4f}, recall {recall:.4f} over {len(cases)} quotes")
    assert min(figures.values()) >= LEAST, "\n".join([str(figures), *wrong])
