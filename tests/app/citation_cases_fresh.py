"""A second set of quotes with known verdicts, damaged in other ways than those of `citation_cases`.

Written before any result on it was seen, and after the rules of the checker were settled.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.app.citation_cases import DENSE, Case, Change, Maker, _replaced, _words, letters


def bracketed(_: Maker, sentence: str, __: int) -> str:
    return f"[{sentence[0].lower()}]{sentence[1:]}"


def shouted(_: Maker, sentence: str, __: int) -> str:
    return sentence.upper()


def emphasised(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{4,}(?![\w-])"):
        return f"{sentence[: match.start()]}**{match[0]}**{sentence[match.end() :]}"
    return None


def wrapped(_: Maker, sentence: str, __: int) -> str:
    words = sentence.split()
    return "\n".join(" ".join(words[k : k + 5]) for k in range(0, len(words), 5))


def first_part(_: Maker, sentence: str, __: int) -> str | None:
    words = sentence.split()
    return " ".join(words[: 2 * len(words) // 3]) if len(words) >= 12 else None


def doubled_letter(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{7,}(?![\w-])"):
        at = maker.random.randrange(2, len(match[0]) - 2)
        return _replaced(sentence, match, match[0][:at] + match[0][at] + match[0][at:])
    return None


def dropped_letter(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{8,}(?![\w-])"):
        at = maker.random.randrange(2, len(match[0]) - 2)
        return _replaced(sentence, match, match[0][:at] + match[0][at + 1 :])
    return None


def said_twice(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<= )(?:the|of|to|is|a|in|and) "):
        return f"{sentence[: match.end()]}{match[0]}{sentence[match.end() :]}"
    return None


def across_the_sea(maker: Maker, sentence: str, _: int) -> str | None:
    pairs = (
        ("ize", "ise"),
        ("izing", "ising"),
        ("ization", "isation"),
        ("olor", "olour"),
        ("enter", "entre"),
        ("avior", "aviour"),
    )
    for old, new in maker.random.sample(pairs, len(pairs)):
        for match in _words(maker, sentence, rf"(?<![\w-])[a-z]{{3,}}{old}[ds]?(?![\w-])"):
            return _replaced(sentence, match, match[0].replace(old, new))
    return None


def filler(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<= )(?:also|then|therefore|thus|just|simply|therefore|however,|indeed) "):
        return _replaced(sentence, match, "")
    return None


# fmt: off
_SAME = {"shows": "displays", "large": "big", "begin": "start", "begins": "starts", "helps": "aids",
         "use": "employ",
         "whole": "entire", "needs": "requires", "need": "require", "often": "frequently", "quickly": "rapidly",
         "gives": "provides", "kept": "retained", "made": "created", "written": "composed", "seen": "observed"}
# fmt: on


def same_sense(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, rf"(?<![\w-])(?:{'|'.join(_SAME)})(?![\w-])"):
        return _replaced(sentence, match, _SAME[match[0]])
    return None


def other_unit(maker: Maker, sentence: str, _: int) -> str | None:
    units = {"bytes": "bits", "seconds": "minutes", "minutes": "hours", "days": "weeks", "months": "years", "MB": "GB",
             "KB": "MB", "GB": "TB", "ms": "s", "points": "inches", "pages": "chapters", "percent": "points",
             "hours": "days", "years": "decades", "tokens": "bytes"}  # fmt: skip
    for match in _words(maker, sentence, rf"(?<=\d )(?:{'|'.join(units)})\b"):
        return _replaced(sentence, match, units[match[0]])
    return None


def number_word(maker: Maker, sentence: str, _: int) -> str | None:
    order = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    for match in _words(maker, sentence, rf"(?<= )(?:{'|'.join(order[1:])})(?= )"):
        return _replaced(sentence, match, order[(order.index(match[0]) + 2) % 10])
    return None


# fmt: off
_OPPOSITE = {"large": "small", "high": "low", "new": "old", "read": "written", "left": "right", "true": "false",
             "same": "other",
             "fast": "slow", "faster": "slower", "best": "worst", "longer": "shorter", "long": "short",
             "above": "below",
             "open": "closed", "begins": "ends", "added": "removed", "allowed": "forbidden", "enabled": "disabled",
             "public": "private", "never": "always", "inside": "outside", "most": "fewest", "higher": "lower"}
# fmt: on


def opposite(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, rf"(?<![\w-])(?:{'|'.join(_OPPOSITE)})(?![\w-])"):
        return _replaced(sentence, match, _OPPOSITE[match[0]])
    return None


def negating_prefix(maker: Maker, sentence: str, _: int) -> str | None:
    # fmt: off
    prefixes = {"possible": "impossible", "able": "unable", "valid": "invalid", "known": "unknown", "used": "unused",
                "changed": "unchanged", "necessary": "unnecessary", "complete": "incomplete",
                "available": "unavailable",
                "correct": "incorrect", "visible": "invisible", "equal": "unequal", "safe": "unsafe", "read": "unread"}
    # fmt: on
    for match in _words(maker, sentence, rf"(?<![\w-])(?:{'|'.join(prefixes)})(?![\w-])"):
        return _replaced(sentence, match, prefixes[match[0]])
    return None


def turned_around(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<= )([a-z]{3,}) (to|of|from|by|with) ([a-z]{3,})(?=[ ,.])"):
        if match[1] != match[3]:
            return _replaced(sentence, match, f"{match[3]} {match[2]} {match[1]}")
    return None


def added_clause(maker: Maker, sentence: str, _: int) -> str:
    clause = maker.random.choice(
        (", except on public holidays", ", but only for paying customers", " within thirty days of delivery",
         ", unless the manager objects", " and nobody else")
    )  # fmt: skip
    return sentence.rstrip(".") + clause + "."


def chained(maker: Maker, sentence: str, place: int) -> str | None:
    """Words of the page one after another as they follow each other there, so that each pair of words stands there."""
    words = maker.pages[place].text.split()
    after: dict[str, list[str]] = defaultdict(list)
    for one, other in pairwise(words):
        after[one].append(other)
    chain = [sentence.split()[0]]
    while len(chain) < 16 and after[chain[-1]]:
        chain.append(maker.random.choice(after[chain[-1]]))
    text = " ".join(chain)
    plain = len(chain) >= 12 and not re.search(r"[\"“”|`*#<>\[\]{}]|\.\.\.|…", text)
    longest = max((size for size in range(1, len(chain) + 1) for k in range(len(chain) - size + 1)
                   if letters(" ".join(chain[k : k + size])) in maker.bare[place]), default=0)  # fmt: skip
    return text if plain and longest * 3 < len(chain) * 2 else None


FRESH_RIGHT: dict[str, Change] = {
    "bracketed": bracketed, "shouted": shouted, "emphasised": emphasised, "wrapped": wrapped, "first part": first_part,
}  # fmt: skip
FRESH_NEAR: dict[str, Change] = {
    "doubled letter": doubled_letter, "dropped letter": dropped_letter, "said twice": said_twice,
    "across the sea": across_the_sea, "filler": filler, "same sense": same_sense,
}  # fmt: skip
FRESH_INVENTED: dict[str, Change] = {
    "other unit": other_unit, "number word": number_word, "opposite": opposite, "negating prefix": negating_prefix,
    "turned around": turned_around, "added clause": added_clause, "chained": chained,
}  # fmt: skip


class FreshMaker(Maker):
    def cases(self) -> Iterator[Case]:
        for place, sentence in self.sentences:
            if DENSE.search(sentence) or sum(letters(sentence) in bare for bare in self.bare) != 1:
                continue
            for kind, change in FRESH_RIGHT.items():
                quote = change(self, sentence, place)
                if quote is not None and sum(letters(quote) in bare for bare in self.bare) == 1:
                    yield self._case("right", kind, quote, place, place)
                    if self.random.random() < 0.3:
                        yield self._case("wrong_page", kind, quote, place, self._elsewhere(place))
            for kind, change in FRESH_NEAR.items():
                yield from self._changed("near", kind, change, sentence, place, False)
            for kind, change in FRESH_INVENTED.items():
                yield from self._changed("invented", kind, change, sentence, place, False)
