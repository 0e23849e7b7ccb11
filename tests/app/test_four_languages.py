"""One set of checks over the same handbook in English, Chinese, Japanese and Korean."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import conversations, documents
from app.citations import attribute, verify
from app.documents import document_texts
from app.ingest import read_file
from app.parts.ask import hits_by_window, sources
from app.parts.windows import make_windows
from app.passages import best_passages, condense, rarity
from app.turn_end import pages as stored_pages
from app.wiring import App
from tests.app.four_languages import CHINESE, ENGLISH, HANDBOOKS, JAPANESE, KOREAN, Handbook

EACH = pytest.mark.parametrize("book", HANDBOOKS, ids=lambda book: book.name)
ANSWERS = {
    "english": ("The access code of the lamp room is 7391.", "The tower is painted green every spring."),
    "chinese": ("灯室的门禁密码是7391。", "守塔人的妹妹住在巴黎的一家面包店里。"),
    "japanese": ("灯室の暗証番号は7391である。", "守衛の妹はパリのパン屋に住んでいる。"),
    "korean": ("등실의 출입 비밀번호는 7391이다.", "경비원의 여동생은 파리의 빵집에 산다."),
}
QUOTES = {
    "english": "the access code of the lamp room is 7391",
    "chinese": "灯室的门禁密码是7391",
    "japanese": "灯室の暗証番号は7391である",
    "korean": "등실의 출입 비밀번호는 7391이다",
}


def added(app: App, folder: Path, book: Handbook) -> str:
    conversation = conversations.new(app)
    (file,) = documents.add_files(app, conversation.id, [book.write_pdf(folder)])
    assert file.error is None, file.error
    return conversation.id


@EACH
def test_a_pdf_gives_its_text(tmp_path: Path, book: Handbook) -> None:
    extracted = read_file(book.write_pdf(tmp_path))
    assert len(extracted.pages) == 5
    assert all(page.flag == "" for page in extracted.pages)
    for page, text in zip(extracted.pages, book.sentences, strict=True):
        assert "".join(text.split()) in "".join(page.text.split())


@pytest.mark.parametrize(
    ("book", "encoding"),
    [
        (ENGLISH, "cp1252"),
        (CHINESE, "utf-8"),
        (CHINESE, "gb18030"),
        (JAPANESE, "utf-16"),
        (JAPANESE, "shift_jis"),
        (KOREAN, "utf-8-sig"),
        (KOREAN, "euc-kr"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_text_file_gives_its_text_in_any_usual_encoding(tmp_path: Path, book: Handbook, encoding: str) -> None:
    extracted = read_file(book.write_text(tmp_path, encoding))
    text = "".join(page.text for page in extracted.pages)
    assert all(sentence in text for sentence in book.sentences)


@EACH
def test_search_finds_the_page_first(app: App, tmp_path: Path, book: Handbook) -> None:
    conversation = added(app, tmp_path, book)
    (document,) = app.library.documents(conversation)
    found = best_passages(app.library, book.question, [document.id])
    assert found[0].page == book.page
    assert book.fact in found[0].text


@EACH
def test_a_small_models_sentences_hold_the_fact(app: App, tmp_path: Path, book: Handbook) -> None:
    conversation = added(app, tmp_path, book)
    (document,) = app.library.documents(conversation)
    found = best_passages(app.library, book.question, [document.id])
    weights = rarity(book.question, (page.text for page in app.library.pages(document.id)))
    shortened = condense(found[:4], weights, 60, lambda text: len(text) // 2)
    assert book.fact in shortened[0].text
    assert shortened[0].page == book.page


@EACH
def test_windows_hold_every_page_and_the_right_one_has_the_best_passage(
    app: App, tmp_path: Path, book: Handbook
) -> None:
    conversation = added(app, tmp_path, book)
    (text,) = document_texts(app, conversation, None)
    windows = make_windows([text], lambda document, page: len(page.text), len, 260)
    assert len(windows) > 1
    assert [page for window in windows for page in window.pages] == [1, 2, 3, 4, 5]
    hits = hits_by_window(best_passages(app.library, book.question, [text.id], 4 * len(windows)), windows)
    best = max((hit for own in hits.values() for hit in own), key=lambda hit: hit.score)
    (window,) = [window for window in windows if book.page in window.pages]
    assert best in hits[window.number]
    cited = attribute(ANSWERS[book.name][0], sources(window), book.question)
    assert [citation.page for citation in cited] == [book.page]


@EACH
def test_answers_are_cited_by_page_and_inventions_are_not(app: App, tmp_path: Path, book: Handbook) -> None:
    pages = stored_pages(app.library, added(app, tmp_path, book), None)
    true, invented = ANSWERS[book.name]
    (citation,) = attribute(true, pages, book.question)
    assert (citation.page, citation.status) == (book.page, "attributed")
    assert book.fact in citation.quote
    assert attribute(invented, pages, book.question) == []


@EACH
def test_quotes_are_verified_and_wrong_pages_repaired(app: App, tmp_path: Path, book: Handbook) -> None:
    pages = stored_pages(app.library, added(app, tmp_path, book), None)
    quote = QUOTES[book.name]
    assert (verify(quote, 3, pages).status, verify(quote, 3, pages).page) == ("verified", 3)
    assert verify(quote, 5, pages).page == 3, "a wrong page is repaired"
    (cited,) = attribute(f"“{quote}” (page 5)", pages)
    assert (cited.page, cited.status) == (3, "verified")
    false = quote.replace("7391", "8888") if book.name == "english" else ANSWERS[book.name][1]
    assert verify(false, 3, pages).status != "verified"
