"""Words that say the same in other letters: of one sense, of one amount, drawn together or written out.

A quote that has one plain word for another is taken for nearly right only if both stand in one group here: which of the
others say the opposite, or something else, no list of opposites could tell.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from app.words import stem

_GROUPS = (
    # verbs, with the forms that do not share a stem
    "use employ utilize utilise apply",
    "need require",
    "show display present demonstrate indicate",
    "help aid assist support",
    "give gave given provide supply offer deliver",
    "get got gotten obtain receive acquire gain",
    "buy bought purchase acquire",
    "keep kept retain maintain preserve hold held",
    "make made create build built construct produce form",
    "build built construct assemble",
    "write wrote written compose record",
    "see saw seen observe notice view look",
    "find found locate discover detect",
    "begin began begun start commence",
    "end finish conclude terminate stop",
    "try tried attempt",
    "want wish desire",
    "choose chose chosen select pick",
    "change modify modified alter",
    "fix repair mend correct",
    "ask request inquire query",
    "answer reply replied respond",
    "tell told inform notify notified",
    "say said state declare",
    "describe explain illustrate",
    "call name term",
    "happen occur arise arose arisen",
    "contain include hold held comprise",
    "consist comprise",
    "delete remove erase",
    "permit allow let",
    "forbid forbidden prohibit ban",
    "prevent avoid",
    "ensure guarantee assure",
    "check verify verified examine inspect test",
    "specify specified define state",
    "perform execute run ran",
    "send sent transmit",
    "put place set position",
    "combine merge join unite",
    "split divide separate",
    "collect gather",
    "get become became",
    "grow grew grown increase",
    "shrink shrank shrunk decrease reduce",
    "enlarge expand extend",
    "reduce lower decrease diminish",
    "suggest propose recommend advise",
    "think thought believe consider",
    "understand understood comprehend grasp",
    "know knew known",
    "go went gone",
    "come came",
    "take took taken",
    "do did done",
    "break broke broken",
    "speak spoke spoken",
    "hide hid hidden conceal",
    "draw drew drawn",
    "lead led",
    "leave left",
    "lose lost",
    "mean meant signify signified",
    "meet met",
    "pay paid",
    "bring brought",
    "teach taught",
    "sell sold",
    "stand stood",
    "feel felt",
    "deal dealt",
    "depend rely relied",
    "seem appear",
    "enter type input",
    "handle process treat",
    "manage administer",
    "replace substitute exchange",
    "save store",
    "return yield",
    "follow obey",
    "connect link join attach",
    "convert transform translate",
    "discuss talk",
    "enable activate",
    "disable deactivate",
    "invoke call",
    "continue proceed",
    "improve enhance",
    "damage harm",
    "assume suppose presume",
    "identify identified recognize recognise",
    "wait await",
    "omit skip",
    "generate produce create",
    "decide determine",
    "restrict limit",
    "document describe",
    # nouns
    "example instance",
    "method way manner approach technique",
    "error mistake fault",
    "kind type sort",
    "part piece portion section component",
    "document paper text",
    "documentation manual handbook guide",
    "picture image figure",
    "aim goal purpose objective",
    "result outcome",
    "reason cause",
    "problem issue difficulty",
    "task job",
    "place location position",
    "amount quantity",
    "rule regulation",
    "benefit advantage",
    "drawback disadvantage",
    "choice option",
    "feature characteristic property",
    "people persons",
    "company firm",
    "customer client",
    "area region zone",
    "car automobile",
    "employee worker",
    "directory folder",
    "author writer",
    "beginning start",
    "idea notion",
    "modification alteration change",
    "programmer developer",
    "row line",
    # adjectives
    "big large",
    "small little",
    "whole entire full complete",
    "quick fast rapid swift",
    "main principal chief primary major",
    "important significant essential",
    "different distinct other",
    "same identical equal",
    "similar alike",
    "difficult hard",
    "easy simple",
    "several multiple various",
    "many numerous",
    "additional further extra",
    "necessary required needed",
    "correct right",
    "wrong incorrect",
    "usual normal common ordinary",
    "free gratis",
    "empty blank",
    "suitable appropriate",
    "useful helpful",
    "special particular specific",
    "actual real",
    "available accessible",
    "current present",
    "clear plain obvious",
    "sufficient enough",
    "possible feasible",
    "complicated complex",
    "typical usual",
    # adverbs and connectives
    "often frequently",
    "usually normally generally commonly typically",
    "quickly rapidly fast swiftly",
    "about approximately around roughly",
    "also too additionally",
    "however nevertheless nonetheless",
    "therefore hence thus consequently",
    "immediately instantly directly",
    "currently presently now",
    "perhaps maybe possibly",
    "only solely",
    "nearly almost",
    "mainly mostly chiefly primarily",
    "completely entirely fully totally wholly",
    "sometimes occasionally",
    "rarely seldom",
    "especially particularly",
    "simply just",
    "finally lastly eventually",
    "because since as",
    "although though",
    "while whilst",
    "among amongst",
    "upon on",
    "until till",
    "via through",
    "inside within",
)


def root(word: str) -> str:
    """The stem of a folded word, one for stopped and stop, for entries and entry."""
    known = stem(word)
    if len(known) >= 4 and known[-1] == known[-2]:
        known = known[:-1]
    return known[:-1] + "y" if known.endswith("i") and len(known) > 2 else known


def spelled(word: str) -> str:
    """One form of a folded word for British and American spelling."""
    for british, american in _SPELLINGS:
        word = british.sub(american, word)
    return word


def _by_root() -> dict[str, frozenset[int]]:
    groups: defaultdict[str, set[int]] = defaultdict(set)
    for number, line in enumerate(_GROUPS):
        for word in line.split():
            groups[root(word)].add(number)
    return {word: frozenset(numbers) for word, numbers in groups.items()}


_IN_GROUPS = _by_root()
_AMOUNTS = {
    word: str(number)
    for numbers, line in (
        (range(21), "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
                    "sixteen seventeen eighteen nineteen twenty"),
        (range(30, 101, 10), "thirty forty fifty sixty seventy eighty ninety hundred"),
    )
    for number, word in zip(numbers, line.split(), strict=True)
}  # fmt: skip
_SPELLINGS = [
    (re.compile(british), american)
    for british, american in (
        ("our", "or"), ("ys(?=e|ing)", "yz"), ("is(?=e|ing|ation)", "iz"), ("tre(?=d?s?$)", "ter"), ("ogue", "og"),
        ("ll(?=ed|ing|er)", "l"), ("ence", "ense"), ("ae", "e"), ("mme", "m"),
    )
]  # fmt: skip
_SHORT = {"can't": "cannot", "won't": "willnot", "shan't": "shallnot", "let's": "letus"}
_SHORT_IS = frozenset({"it's", "that's", "there's", "he's", "she's", "what's", "here's", "who's", "where's"})
_ENDINGS = {"n't": "not", "'re": "are", "'ll": "will", "'ve": "have", "'m": "am"}
_ASIDES = frozenset(
    tuple(line.split())
    for line in ("e g", "i e", "for example", "for instance", "in fact", "of course", "in particular", "in general")
)


def same_sense(a: str, b: str) -> bool:
    """Whether two folded words may stand for one another."""
    nothing: frozenset[int] = frozenset()
    return not _IN_GROUPS.get(root(a), nothing).isdisjoint(_IN_GROUPS.get(root(b), nothing))


def same_amount(a: str, b: str) -> bool:
    """Whether two folded words are one figure, written in letters or in digits: two and 2."""
    return _AMOUNTS.get(a, a) == _AMOUNTS.get(b, b)


def written_out(word: str) -> str:
    """The letters of a contraction in full: isnot for isn't; any other folded word as it is."""
    if "'" not in word:
        return word
    if word in _SHORT_IS:
        return word[:-2] + "is"
    if word in _SHORT:
        return _SHORT[word]
    for ending, full in _ENDINGS.items():
        if word.endswith(ending):
            return word.removesuffix(ending) + full
    return word


def is_aside(words: Sequence[str]) -> bool:
    """Whether folded words are an aside that a quote may leave out: e.g., for example."""
    return tuple(words) in _ASIDES
