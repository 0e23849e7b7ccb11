"""Which words decide what a sentence says: a quote that differs in one of them is not nearly right, it is wrong.

Figures, units, denials, duties and permissions, quantities, directions, conditions, persons and names. Beside them
stand the words that a slip may drop or swap without harm, and the letters that a scanner mixes up.
"""

from __future__ import annotations

import re
import unicodedata

from app.citations.senses import root, spelled
from app.words import STOP_WORDS, is_dense, stem

_TELLING = frozenset(
    stem(word)
    for line in (
        # figures in words
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen",
        "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million",
        "billion dozen half third quarter double triple twice once first second last fourth fifth single per",
        # denials, duties, permissions, conditions
        "not no never none nor neither nothing nobody nowhere cannot without hardly barely except unless but despite",
        "shall must may should could can might would need required optional mandatory prohibited forbidden permitted",
        "allowed only if or either until",
        # how much, when, where to
        "all any every each some most many few both several less more least fewer over under above below before after",
        "maximum minimum increase decrease rise fall higher lower up down in out from into to by with between within",
        "bit byte kb mb gb tb kib mib gib ms minute hour day week month year decade mm cm km inch inches foot feet",
        "mile kg gram ton percent euro dollar cent pound celsius fahrenheit",
        # conditions, reasons, times, persons
        "when while where because although though since whereas whether will during",
        "i you we they he she me us them him her my your our their his hers yours ours theirs",
        # opposites that are one word apart
        "accept reject include exclude enable disable unable allow deny true false always sometimes often rarely",
        "approve refuse grant revoke open close start stop begin end buy sell lend borrow plaintiff defendant buyer",
        "seller landlord tenant lessor lessee employer employee creditor debtor licensor licensee",
        # the same in German, French, Spanish
        "nicht kein keine keinen keiner nie niemals ohne nur muss darf soll kann alle jede jeder jedes vor nach",
        "über unter pas non sans jamais seulement tout tous toute chaque avant après doit peut sin nunca solo",
        "todos cada antes",
    )
    for word in line.split()
)
_HARMLESS = frozenset(
    word
    for line in (
        "a an the this that these those which who is are was were be been being has have had do does did it its",
        "of also very such so as and at on for der die das den dem des ein eine einer",
        "einem einen ist sind war und le la les un une des du de et est sont el los las y es son",
        "的 了 地 得 着 之 也 の は が を に で と も 은 는 이 가 을 를 의",
    )
    for word in line.split()
)
_ARTICLES = frozenset(
    {"a", "an", "the", "der", "die", "das", "ein", "eine", "le", "la", "les", "un", "une", "el", "los", "las"}
)
_FILLERS = frozenset(
    {"also", "very", "then", "thus", "therefore", "hence", "indeed", "really", "quite", "too", "please", "here"}
)
_DENSE_TELLING = frozenset(
    "〇零一二三四五六七八九十百千万亿萬億两兩半倍第首末不没沒無无非未否勿莫别禁可必须須应應只仅僅全每各或若除前后後上下"
    "多少増减減大小高低内外ずぬんな안못않없만매각全"
)
_KNOWN = _TELLING | {stem(word) for word in STOP_WORDS | _HARMLESS}
_CONFUSED = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("li", "h"), ("ii", "n"))
_CONFUSED_FIGURES = str.maketrans({"1": "l", "|": "l", "!": "l", "0": "o", "5": "s", "8": "b"})
_CONFUSED_SMALL = str.maketrans({"c": "e", "h": "b"})


def is_figure(word: str) -> bool:
    return any(char.isdigit() for char in word) or word[:1] in "€£¥₹$%‰"


def is_telling(word: str, written: str) -> bool:
    """word: folded. written: as it stands in the text, for its capitals: a name is told by them."""
    if is_figure(word) or word.endswith("n't"):
        return True
    if is_dense(word):
        return word in _DENSE_TELLING
    return stem(word) in _TELLING or is_name(word, written)


def is_name(word: str, written: str) -> bool:
    """A word with a capital that is no function word; at a sentence's beginning it counts as one too."""
    return written[:1].isupper() and word not in STOP_WORDS and word not in _HARMLESS and stem(word) not in _TELLING


def is_harmless(word: str) -> bool:
    return word in _HARMLESS


def is_filler(word: str) -> bool:
    """Whether a quote that has this folded word more than the page says no more."""
    return word in _FILLERS


def is_article(word: str) -> bool:
    return word in _ARTICLES


def is_slip(a: str, b: str, *, name: bool = False) -> bool:
    """Whether two folded words are one word, misspelled or misread by a scanner. name: only what scanners misread."""
    if is_figure(a) or is_figure(b) or is_dense(a) or is_dense(b):
        return False
    if name:
        return _plain(a) == _plain(b) or _scanned(a) == _scanned(b)
    if stem(a) in _KNOWN and stem(b) in _KNOWN:  # most and must are two words
        return False
    if is_misread(a, b):
        return True
    longest = max(len(a), len(b))
    if longest < 4 or "a" + a == b or a == "a" + b:  # moral and amoral are two words
        return False
    most = 2 if longest >= 9 and a[:2] == b[:2] else 1  # encrypted and decrypted too
    return distance(a, b, most) <= most


def is_misread(a: str, b: str) -> bool:
    """Whether a scanner may have taken one for the other: 0bjects for objects. One of them has no figure in it."""
    if a.isdigit() or b.isdigit() or (is_figure(a) and is_figure(b)):
        return False
    a, b = _scanned(a), _scanned(b)
    return a == b or a.translate(_CONFUSED_SMALL) == b.translate(_CONFUSED_SMALL)


def is_form(a: str, b: str) -> bool:
    """Whether two folded words are forms of one word: opens and open, entries and entry, colours and color."""
    if is_figure(a):
        return False
    shorter, longer = sorted((a, b), key=len)
    if len(shorter) > 3 and longer in (shorter + "s", shorter + "es", shorter + "ed", shorter + "ing"):  # a string
        return True
    return root(a) == root(b) or root(spelled(a)) == root(spelled(b))


def _plain(word: str) -> str:
    """Without accents."""
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


def _scanned(word: str) -> str:
    """The form in which letters that scanners confuse are one."""
    word = _plain(word).translate(_CONFUSED_FIGURES)
    for several, one in _CONFUSED:
        word = word.replace(several, one)
    return re.sub(r"[^\w]", "", word).replace("i", "l")


def distance(a: str, b: str, most: int) -> int:
    """Edits (insert, drop, change, swap neighbours) from a to b; most + 1 if there are more."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        earlier, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]
