"""Citation verification on a synthetic set with known verdicts: precision and recall of every class."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from app import ingest
from app.citations import Citation, PageSource, attribute
from app.sample import SAMPLE_PDF
from tests.app.citation_cases import Case, Maker
from tests.app.citation_cases_fresh import FreshMaker
from tests.app.cjk_text import CHINESE, JAPANESE

ROOT = Path(__file__).resolve().parents[2]
FILES = "UNABRIDGED_CITATION_FILES"
"""Further files (paths, separated by colons) to take quotes from."""
EVERY = "UNABRIDGED_CITATION_EVERY"
"""Of the many English quotes every so-manyth is checked; 1 checks them all."""
LEAST = 0.98
LEAST_FRESH = {"right": 0.98, "near": 0.9, "wrong_page": 0.98, "invented": 0.9}
FRESH_CASES = 300


def english_pages() -> list[PageSource]:
    """The sample handbook and this project's own documentation: real prose with figures, names and denials."""
    pages: list[PageSource] = []
    named = [Path(name) for name in os.environ.get(FILES, "").split(":") if name]
    for path in [
        SAMPLE_PDF,
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/decisions").glob("*.md")),
        *named,
    ]:
        read = ingest.read_file(path)
        pages += [PageSource(read.sha256, read.name, page.index, page.label, page.text) for page in read.pages]
    return pages


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


def measure(pages: list[PageSource], seed: int) -> tuple[Counter[tuple[str, str]], list[tuple[Case, str]], int]:
    """(how often each verdict was told for each true one, the wrong ones, how many cases)."""
    cases = list(Maker(pages, seed).cases())[:: int(os.environ.get(EVERY, "4")) if len(pages) > 20 else 1]
    return _judged(cases, pages)


def _judged(cases: list[Case], pages: list[PageSource]) -> tuple[Counter[tuple[str, str]], list[tuple[Case, str]], int]:
    told: Counter[tuple[str, str]] = Counter()
    wrong: list[tuple[Case, str]] = []
    for case in cases:
        said = verdict(attribute(case.answer, pages), case, pages)
        told[case.verdict, said] += 1
        if said != case.verdict:
            wrong.append((case, said))
    return told, wrong, len(cases)


@pytest.mark.slow
@pytest.mark.parametrize(("pages", "least"), [(english_pages, 600), (dense_pages, 150)], ids=["english", "cjk"])
def test_precision_and_recall_of_every_verdict(pages, least: int, record_property) -> None:
    told, wrong, count = measure(pages(), seed=20261130)
    assert count >= least
    lines = [f"{case.verdict} ({case.kind}) told {said}: {case.quote}" for case, said in wrong[:40]]
    for name in ("right", "near", "wrong_page", "invented"):
        hit = told[name, name]
        recall = hit / sum(n for (true, _), n in told.items() if true == name)
        precision = hit / sum(n for (_, said), n in told.items() if said == name)
        record_property(name, f"precision {precision:.4f}, recall {recall:.4f}")
        print(f"{name}: precision {precision:.4f}, recall {recall:.4f} over {count} quotes")
        assert min(precision, recall) >= LEAST, "\n".join([f"{name}: {precision:.4f} {recall:.4f}", *lines])


@pytest.mark.slow
def test_damage_that_the_rules_were_not_made_for() -> None:
    """Its own floor: what the checker cannot see (words in another order, a plain word for another) is part of it."""
    pages = english_pages()
    cases = list(FreshMaker(pages, seed=7).cases())
    told, wrong, count = _judged(cases[:: max(1, len(cases) // FRESH_CASES)], pages)
    assert count >= FRESH_CASES
    for name, least in LEAST_FRESH.items():
        recall = told[name, name] / sum(n for (true, _), n in told.items() if true == name)
        precision = told[name, name] / sum(n for (_, said), n in told.items() if said == name)
        print(f"{name}: precision {precision:.4f}, recall {recall:.4f} over {count} quotes")
        assert min(precision, recall) >= least, [(case.verdict, case.kind, said, case.quote) for case, said in wrong][
            :20
        ]
