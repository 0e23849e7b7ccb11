"""A third set of quotes with known verdicts, damaged in ways that neither of the two earlier sets has.

Kinds and seed were fixed before any result on it was seen and before the rules were changed for the second time.
"""

from __future__ import annotations

import re
from calendar import day_name, month_name
from collections.abc import Iterator, Mapping

from app.words import STOP_WORDS
from tests.app.citation_cases import DENSE, Case, Change, Maker, _replaced, _words, letters

SEED = 31
_WORD = r"(?<![\w'’-]){}(?![\w'’-])"


def _exchanged(maker: Maker, sentence: str, others: Mapping[str, str]) -> str | None:
    for match in _words(maker, sentence, _WORD.format(f"(?:{'|'.join(map(re.escape, others))})")):
        return _replaced(sentence, match, others[match[0]])
    return None


def commas_lost(_: Maker, sentence: str, __: int) -> str | None:
    bare = re.sub(r",(?=\s)", "", sentence)
    return bare if bare != sentence else None


def hyphens_lost(_: Maker, sentence: str, __: int) -> str | None:
    """A compound in two words: "read only" for "read-only"."""
    apart = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", sentence)
    return apart if apart != sentence else None


def compound_joined(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<=[a-z])-(?=[a-z])"):
        return sentence[: match.start()] + sentence[match.end() :]
    return None


def can_not(_: Maker, sentence: str, __: int) -> str | None:
    return sentence.replace("cannot", "can not", 1) if "cannot" in sentence else None


def last_part(_: Maker, sentence: str, __: int) -> str | None:
    words = sentence.split()
    return " ".join(words[len(words) // 3 :]) if len(words) >= 12 else None


def middle_part(_: Maker, sentence: str, __: int) -> str | None:
    words = sentence.split()
    return " ".join(words[len(words) // 5 : 4 * len(words) // 5]) if len(words) >= 14 else None


def code_marked(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{5,}(?![\w-])"):
        return f"{sentence[: match.start()]}`{match[0]}`{sentence[match.end() :]}"
    return None


def soft_hyphens(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{8,}(?![\w-])"):
        return f"{sentence[: match.start() + 4]}\u00ad{sentence[match.start() + 4 :]}"
    return None


def singular(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, _WORD.format("[a-z]{3,}[bdfgklmnprt]s")):
        return _replaced(sentence, match, match[0][:-1])
    return None


# fmt: off
_SHORT = {"is not": "isn't", "are not": "aren't", "do not": "don't", "does not": "doesn't", "cannot": "can't",
          "will not": "won't", "was not": "wasn't", "did not": "didn't", "it is": "it's", "there is": "there's",
          "you are": "you're", "you can not": "you can't", "has not": "hasn't", "have not": "haven't",
          "should not": "shouldn't", "would not": "wouldn't", "that is": "that's", "you will": "you'll"}
# fmt: on


def contraction(maker: Maker, sentence: str, _: int) -> str | None:
    """Drawn together, or written out again."""
    both = _SHORT | {short: long for long, short in _SHORT.items()}
    return _exchanged(maker, sentence.replace("’", "'"), both)


def example_mark(maker: Maker, sentence: str, _: int) -> str | None:
    marks = r"e\.\s?g\.|i\.\s?e\.|for example|for instance|etc\.|of course|in fact|in particular"
    for match in _words(maker, sentence, rf"(?<=[ (])(?:{marks}),? "):
        return _replaced(sentence, match, "")
    return None


def figure_or_word(maker: Maker, sentence: str, _: int) -> str | None:
    """Two for 2, and 2 for two, behind which a plural follows."""
    order = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    both = {word: str(n) for n, word in enumerate(order, 2)} | {str(n): word for n, word in enumerate(order, 2)}
    for match in _words(maker, sentence, rf"(?<= )(?:{'|'.join(both)})(?= [a-z]{{2,}}s\b)"):
        return _replaced(sentence, match, both[match[0]])
    return None


def other_article(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<= )(the|an?)(?= [a-z])"):
        new = "the" if match[0] != "the" else "an" if sentence[match.end() + 1] in "aeiou" else "a"
        return _replaced(sentence, match, new)
    return None


def relative(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<=[a-z] )(?:that|which)(?= [a-z])"):
        return _replaced(sentence, match, "which" if match[0] == "that" else "that")
    return None


def two_slips(maker: Maker, sentence: str, _: int) -> str | None:
    """A letter lost in one word, an ending in another."""
    if len(sentence.split()) < 12:
        return None
    found = _words(maker, sentence, r"(?<![\w-])[a-z]{8,}(?![\w-])")
    if len(found) < 2:
        return None
    first, second = sorted(found[:2], key=lambda m: m.start())
    ending = second[0][:-1] if second[0].endswith("s") else second[0] + "s"
    kept = first[0][:4] + first[0][5:]
    return (
        f"{sentence[: first.start()]}{kept}{sentence[first.end() : second.start()]}{ending}{sentence[second.end() :]}"
    )


def wrong_key(maker: Maker, sentence: str, _: int) -> str | None:
    """The key beside the right one."""
    beside = dict(zip("qwertyuiopasdfghjklzxcvbnm", "wertyuioposdfghjklkxcvbnmn", strict=True))
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{6,}(?![\w-])"):
        at = maker.random.randrange(1, len(match[0]) - 1)
        return _replaced(sentence, match, match[0][:at] + beside[match[0][at]] + match[0][at + 1 :])
    return None


# fmt: off
_WORDS_OF_ONE_SENSE = {
    "contains": "holds", "obtain": "get", "receive": "get", "usually": "normally", "example": "instance",
    "method": "way", "error": "mistake", "allows": "lets", "allow": "let", "help": "assist", "find": "locate",
    "choose": "select", "selected": "chosen", "change": "modify", "changed": "altered", "changes": "modifications",
    "create": "make", "creates": "makes", "built": "constructed", "show": "display", "called": "named",
    "ask": "request", "fix": "repair", "happens": "occurs", "occurs": "happens", "perform": "carry out",
    "important": "significant", "several": "multiple", "different": "distinct", "difficult": "hard",
    "kind": "type", "kinds": "types", "type": "kind", "specify": "state", "ensure": "make sure",
    "additional": "further", "similar": "alike", "currently": "presently", "entire": "complete",
    "purchase": "buy", "documentation": "manual", "main": "principal", "try": "attempt", "wish": "want",
    "want": "wish", "provide": "supply", "provides": "supplies", "remove": "delete", "removed": "deleted",
}
# fmt: on


def other_word(maker: Maker, sentence: str, _: int) -> str | None:
    return _exchanged(maker, sentence, _WORDS_OF_ONE_SENSE)


def very(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<= )(?:very|quite|really|rather|already|still|actually|even) "):
        return _replaced(sentence, match, "")
    return None


def ampersand(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<=[a-z] )and(?= [a-z])"):
        return _replaced(sentence, match, "&")
    return None


def exchanged_nouns(maker: Maker, sentence: str, _: int) -> str | None:
    """The subject for the object: both behind an article, nothing like "and" between them."""
    found = list(re.finditer(r"(?<=\b[Tt]he )[a-z]{4,}(?= )|(?<=\ba )[a-z]{4,}(?= )", sentence))
    pairs = [
        (a, b)
        for a in found
        for b in found
        if a.start() < b.start()
        and letters(a[0])[:4] != letters(b[0])[:4]
        and not re.search(r"\b(?:and|or|nor|as|between|with)\b", sentence[a.end() : b.start()])
    ]
    if not pairs:
        return None
    a, b = maker.random.choice(pairs)
    return f"{sentence[: a.start()]}{b[0]}{sentence[a.end() : b.start()]}{a[0]}{sentence[b.end() :]}"


_MONTHS = [*month_name[1:], *day_name]


def date_shifted(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, rf"\b(?:(?:19|20)\d\d|{'|'.join(_MONTHS)})\b"):
        if match[0].isdigit():
            return _replaced(sentence, match, str(int(match[0]) - maker.random.choice((1, 2, 10))))
        return _replaced(sentence, match, _MONTHS[(_MONTHS.index(match[0]) + 2) % len(_MONTHS)])
    return None


# fmt: off
_COMPARED = {"more": "less", "better": "worse", "greater": "smaller", "larger": "smaller", "earlier": "later",
             "later": "earlier", "newer": "older", "older": "newer", "longer": "shorter", "shorter": "longer",
             "easier": "harder", "simpler": "more complicated", "smaller": "larger", "bigger": "smaller",
             "cheaper": "dearer", "safer": "riskier", "stronger": "weaker", "closer": "further", "worse": "better",
             "lighter": "heavier", "best": "worst", "highest": "lowest", "latest": "oldest", "largest": "smallest"}
_CONDITIONS = {"if": "unless", "when": "unless", "until": "after", "with": "without", "before": "after",
               "because": "although", "although": "because", "therefore": "nevertheless", "since": "although",
               "unless": "if", "without": "with", "while": "until"}
_OPPOSITES = {"success": "failure", "succeeds": "fails", "simple": "complicated", "useful": "useless",
              "visible": "hidden", "static": "dynamic", "automatic": "manual", "automatically": "manually",
              "common": "rare", "create": "destroy", "installed": "removed", "install": "uninstall", "show": "hide",
              "source": "target", "beginning": "end", "server": "client", "client": "server", "parent": "child",
              "stable": "experimental", "easy": "difficult", "easily": "hardly", "good": "bad", "free": "paid",
              "general": "particular", "global": "local", "strict": "loose", "normal": "unusual", "safe": "dangerous",
              "horizontal": "vertical", "single": "double", "multiple": "single", "complete": "partial",
              "optional": "compulsory", "formal": "informal", "official": "unofficial", "regular": "irregular",
              "increase": "reduce", "connect": "disconnect", "write": "read", "reading": "writing", "send": "receive",
              "current": "previous", "previous": "next", "next": "previous", "major": "minor", "basic": "advanced",
              "ascending": "descending", "sorted": "unsorted", "supported": "dropped", "appear": "vanish",
              "contains": "lacks", "accepts": "rejects", "recommended": "discouraged", "correct": "wrong",
              "possible": "unthinkable", "important": "trivial", "user": "developer", "users": "developers"}
_PERSONS = {"you": "we", "we": "they", "they": "we", "your": "their", "their": "your", "our": "your", "he": "she",
            "his": "her", "us": "them", "them": "us", "I": "you", "my": "your"}
# fmt: on


def comparative(maker: Maker, sentence: str, _: int) -> str | None:
    return _exchanged(maker, sentence, _COMPARED)


def condition(maker: Maker, sentence: str, _: int) -> str | None:
    return _exchanged(maker, sentence, _CONDITIONS)


def other_opposite(maker: Maker, sentence: str, _: int) -> str | None:
    return _exchanged(maker, sentence, _OPPOSITES)


def other_person(maker: Maker, sentence: str, _: int) -> str | None:
    return _exchanged(maker, sentence, _PERSONS)


def neighbours_word(maker: Maker, sentence: str, place: int) -> str | None:
    """A word that carries sense, of a sentence beside this one, in place of one of the same length or so."""
    at = maker.sentences.index((place, sentence))
    near = [s for p, s in maker.sentences[max(0, at - 2) : at + 3] if p == place and s != sentence]
    words = re.findall(_WORD.format("[a-z]{5,}"), " ".join(near))
    for match in _words(maker, sentence, _WORD.format("[a-z]{5,}")):
        fit = [w for w in words if w[:3] != match[0][:3] and w[-2:] == match[0][-2:]]
        if fit:
            return _replaced(sentence, match, maker.random.choice(fit))
    return None


def rounded(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w.,-])\d+\.\d+(?![\w.-]*\d)|(?<![\w.,-])\d{2,}(?![\w.,-]*\d)"):
        if "." in match[0]:
            new = str(round(float(match[0])))
        else:
            new = str(round(int(match[0]), -1 if len(match[0]) < 4 else -2))
        if new != match[0]:
            return _replaced(sentence, match, new)
    return None


def list_item(maker: Maker, sentence: str, place: int) -> str | None:
    """One more item before the "and" of a list."""
    words = re.findall(_WORD.format("[a-z]{5,}"), maker.pages[place].text)
    for match in _words(maker, sentence, r"(?<=[a-z]),? (?:and|or) (?=[a-z])"):
        other = [w for w in words if w not in sentence and w not in STOP_WORDS and not w.endswith("ly")]
        if other:
            return f"{sentence[: match.start()]}, {maker.random.choice(other)}{sentence[match.start() :]}"
    return None


def negation_moved(maker: Maker, sentence: str, _: int) -> str | None:
    """From one verb to another one."""
    for match in _words(maker, sentence, r"(?<= )(?:not|never) "):
        rest = sentence[: match.start()] + sentence[match.end() :]
        for verb in _words(maker, rest, r"\b(?:is|are|was|were|can|should|must|will|may|to|has|have) "):
            if abs(verb.end() - match.start()) > 8:
                return rest[: verb.end()] + match[0] + rest[verb.end() :]
    return None


def future(maker: Maker, sentence: str, _: int) -> str | None:
    return _exchanged(maker, sentence, {"is": "will be", "are": "will be", "was": "will be", "were": "would be"})


def quantified(maker: Maker, sentence: str, _: int) -> str | None:
    """Of some, what was said of all."""
    for match in _words(
        maker, sentence, r"(?<= )(?:the |all )?(?=[a-z]{3,}[bdgklmnprt]s (?:are|were|have|can|must|may)\b)"
    ):
        return f"{sentence[: match.start()]}{maker.random.choice(('most ', 'few ', 'some '))}{sentence[match.end() :]}"
    return None


def detail_added(maker: Maker, sentence: str, place: int) -> str | None:
    """An adjective that the page does not have there."""
    for match in _words(maker, sentence, r"(?<=\b(?:the|The) )(?=[a-z]{5,} )"):
        added = maker.random.choice(("temporary ", "encrypted ", "monthly ", "wooden ", "unofficial ", "yellow "))
        return f"{sentence[: match.start()]}{added}{sentence[match.start() :]}"
    return None


THIRD_RIGHT: dict[str, Change] = {
    "commas lost": commas_lost, "hyphens lost": hyphens_lost, "compound joined": compound_joined, "can not": can_not,
    "last part": last_part, "middle part": middle_part, "code marked": code_marked, "soft hyphens": soft_hyphens,
}  # fmt: skip
THIRD_NEAR: dict[str, Change] = {
    "singular": singular, "contraction": contraction, "example mark": example_mark, "figure or word": figure_or_word,
    "other article": other_article, "relative": relative, "two slips": two_slips, "wrong key": wrong_key,
    "other word": other_word, "very": very, "ampersand": ampersand,
}  # fmt: skip
THIRD_INVENTED: dict[str, Change] = {
    "exchanged nouns": exchanged_nouns, "date shifted": date_shifted, "comparative": comparative,
    "condition": condition, "other opposite": other_opposite, "other person": other_person,
    "neighbour's word": neighbours_word, "rounded": rounded, "list item": list_item, "negation moved": negation_moved,
    "future": future, "quantified": quantified, "detail added": detail_added,
}  # fmt: skip


class ThirdMaker(Maker):
    def cases(self) -> Iterator[Case]:
        for place, sentence in self.sentences:
            if DENSE.search(sentence) or sum(letters(sentence) in bare for bare in self.bare) != 1:
                continue
            for kind, change in THIRD_RIGHT.items():
                quote = change(self, sentence, place)
                if quote is not None and sum(letters(quote) in bare for bare in self.bare) == 1:
                    yield self._case("right", kind, quote, place, place)
                    if self.random.random() < 0.2:
                        yield self._case("wrong_page", kind, quote, place, self._elsewhere(place))
            for kind, change in THIRD_NEAR.items():
                yield from self._changed("near", kind, change, sentence, place, False)
                if self.random.random() < 0.1:
                    yield from self._changed("wrong_page", kind, change, sentence, place, False)
            for kind, change in THIRD_INVENTED.items():
                yield from self._changed("invented", kind, change, sentence, place, False)
