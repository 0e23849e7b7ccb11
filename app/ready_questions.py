"""A few questions worth asking of a conversation's documents, made from their headings without a model.

Headings are found in the text: numbered ones, Markdown, tables of contents, chapters in Chinese, Japanese and Korean,
and questions of an FAQ, which are taken as they are. Documents without any get questions that suit every text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from app.words import tokens

if TYPE_CHECKING:
    from app.wiring import App

Language = Literal["en", "zh", "ja", "ko"]
OFFERED = 4
LOOKED_AT = 400  # pages; headings of longer documents stand in their table of contents, at the front
FRONT_CHARACTERS = 4000
_HEADING = tuple(
    re.compile(pattern)
    for pattern in (
        r"#{1,3}\s+(?P<title>\S.{2,80})",
        r"(?:Chapter|Section|Part|Appendix)\s+(?:\d{1,2}|[A-Z]|[IVX]{1,5})\b[.:]?\s+(?P<title>[A-Z].{2,70})",
        r"(?P<number>\d{1,2}(?:\.\d{1,2}){0,2})\.?\s+(?P<title>[A-Z][^.;]{2,70})",
        r"第\s*[0-90-9一二三四五六七八九十百]+\s*[章节節編部]\s*(?P<title>\S.{1,30})",
        r"제\s*\d+\s*[장절부]\s*(?P<title>\S.{1,30})",
        r"(?P<number>\d{1,2}(?:[.．]\d{1,2}){0,2})[.．、]?\s+(?P<title>[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af].{1,30})",
        r"[一二三四五六七八九十]{1,3}[、．]\s*(?P<title>\S.{1,30})",
    )
)
_CODE_MARKS = re.compile(r"[|\\{}<>=$]")
_LEADER = re.compile(r"\s*(?:\.{2,}|(?:\. ){2,}|…+|·{2,}|\s{3,})[\s.…·]*\d*\s*$|\s+\d{1,4}$")
_FAQ = re.compile(r"(?:\d{1,2}(?:\.\d{1,2}){0,2}\.?\s+)?(?P<title>[A-Z][^.?!\n]{12,90}\?|[^\s。？][^。？\n]{5,40}？)")
_PLAIN = frozenset(
    word
    for line in (
        "introduction contents content index references bibliography preface abstract conclusion conclusions",
        "appendix glossary overview summary acknowledgements acknowledgments license copyright changelog notes",
        "目录 目錄 前言 引言 绪论 結論 结论 参考文献 附录 索引 目次 はじめに 序論 おわりに 付録 まとめ",
        "목차 서론 머리말 결론 부록 참고문헌",
    )
    for word in line.split()
)
_ABOUT: dict[Language, str] = {
    "en": "What does the document say about “{title}”?",
    "zh": "关于“{title}”，文中讲了什么？",
    "ja": "「{title}」について何が書かれていますか？",
    "ko": "‘{title}’에 대해 무엇이 쓰여 있나요?",
}
_SUMMARIZE: dict[Language, str] = {
    "en": "Summarize this document.",
    "zh": "请总结这份文件。",
    "ja": "この文書を要約してください。",
    "ko": "이 문서를 요약해 주세요.",
}
_COMPARE: dict[Language, str] = {
    "en": "Compare these documents.",
    "zh": "比较这些文件。",
    "ja": "これらの文書を比較してください。",
    "ko": "이 문서들을 비교해 주세요.",
}
_ALWAYS: dict[Language, tuple[str, ...]] = {
    "en": ("What are the most important points?", "List all dates and figures."),
    "zh": ("最重要的几点是什么？", "列出所有日期和数字。"),
    "ja": ("最も重要な点は何ですか？", "日付と数値をすべて列挙してください。"),
    "ko": ("가장 중요한 점은 무엇인가요?", "날짜와 숫자를 모두 나열해 주세요."),
}
_CODE = ("What does this code do, and where does it start?", "Which files are the most important ones?")


def ready_questions(app: App, conversation_id: str) -> tuple[str, ...]:
    """Up to four, in the language of the documents; none where no document has text."""
    documents = app.library.documents(conversation_id)
    pages = [[page.text for page in app.library.pages(document.id)[:LOOKED_AT]] for document in documents]
    if not any(text.strip() for texts in pages for text in texts):
        return ()
    kinds = {document.kind for document in documents}
    return questions_for(pages, is_code=kinds <= {"code", "folder", "archive"})


def questions_for(documents: Sequence[Sequence[str]], *, is_code: bool = False) -> tuple[str, ...]:
    """The same for pages of text, by document."""
    language = language_of("\n".join(texts[0][:FRONT_CHARACTERS] for texts in documents if texts))
    first = (_COMPARE if len(documents) > 1 else _SUMMARIZE)[language]
    if is_code:
        return (first, *_CODE)
    asked = [_asked(title, language) for texts in documents for title in _spread(headings(texts), 3)]
    asked = _spread(list(dict.fromkeys(asked)), OFFERED - 1)
    for more in _ALWAYS[language]:
        if len(asked) < 2:
            asked.append(more)
    return (first, *asked)


def language_of(text: str) -> Language:
    """By script; anything without Chinese, Japanese or Korean characters counts as English."""
    letters = sum(c.isalpha() for c in text) or 1
    hangul = sum("\uac00" <= c <= "\ud7af" for c in text)
    kana = sum("\u3040" <= c <= "\u30ff" for c in text)
    han = sum("\u4e00" <= c <= "\u9fff" for c in text)
    if hangul > 0.3 * letters:
        return "ko"
    if kana > 0.1 * letters:
        return "ja"
    return "zh" if han > 0.3 * letters else "en"


def headings(pages: Iterable[str]) -> list[str]:
    """Titles in the order of the text, each once: those of the highest level that has several, questions first."""
    by_level: dict[int, dict[str, str]] = {}
    questions: dict[str, str] = {}
    for page in pages:
        for line in page.splitlines():
            flat = " ".join(_LEADER.sub("", line.strip()).split())
            faq = _FAQ.fullmatch(flat)
            if faq:
                questions.setdefault(faq["title"].casefold(), faq["title"])
                continue
            found = _title(flat)
            if found:
                by_level.setdefault(found[0], {}).setdefault(found[1].casefold(), found[1])
    if len(questions) >= 3:
        return list(questions.values())
    for level in sorted(by_level):
        if len(by_level[level]) >= 2:
            return list(by_level[level].values())
    return [title for level in sorted(by_level) for title in by_level[level].values()]


def _title(line: str) -> tuple[int, str] | None:
    """(level, title) of a line that is a heading and says something."""
    for pattern in _HEADING:
        match = pattern.fullmatch(line)
        if match is None:
            continue
        title = match["title"].strip(" #*:：")
        number = match.groupdict().get("number") or ""
        words = [word for word, _, _ in tokens(title)]
        ends = title.endswith((".", ",", ";", "。", "，", "、", "다"))
        if not words or ends or " ".join(words) in _PLAIN or "".join(words) in _PLAIN or title[-1:].isdigit():
            return None
        lower = [word for word in title.split() if word[:1].islower()]
        if len(lower) > 5 or len(title) < 2 or _CODE_MARKS.search(title):
            return None
        level = line.find(" ") if line.startswith("#") else 1 + len(re.findall(r"[.．]", number))
        return level, title
    return None


def _asked(title: str, language: Language) -> str:
    return title if title.endswith(("?", "？")) else _ABOUT[language].format(title=title)


def _spread(items: Sequence[str], count: int) -> list[str]:
    """At most `count` of them, evenly from first to last."""
    if len(items) <= count:
        return list(items)
    return [items[(2 * number + 1) * len(items) // (2 * count)] for number in range(count)]
