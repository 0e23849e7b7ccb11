"""Words, scripts and stop words: what indexing and searching must agree on."""

import re

# Scripts written without spaces between words: Han, kana, Hangul syllables stay apart (they have spaces), Thai, Lao,
# Myanmar, Khmer.
_SPACELESS = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003ffff"
)
SPACELESS_RUN = re.compile(f"[{_SPACELESS}]+")
_WORD = re.compile(r"[^\W_]+")

# Question words and function words, which say nothing about where an answer stands.
_STOP_WORDS = """
    a about above after again all also am an and any anyone anything are as at be because been before being below
    between both but by can cannot could did do does doing done down during each either else ever every few for
    from further get gets give given go goes got had has have having he help her here hers herself him himself his
    how however i if in into is it its itself just kind know let like list long make many may me mean means might
    mine more most much must my myself need needs no nor not of off often on once one only or other our ours
    ourselves out over own please possible quite rather really same say says shall she should show so some someone
    something sort such take tell than that the their theirs them themselves then there these they thing things
    this those through to too under until up upon us use used using very want wants was way ways we were what
    whatever when where whether which while who whom whose why will with within without would yes yet you your
    yours yourself explain describe called document text page pages passage happen happens der die das den dem des
    ein eine einer eines einem einen und oder ist sind war wie wer wo wann warum welche welcher welches kann wird
    werden mit von zu im auf für nicht le la les un une du de et ou est sont que qui quoi où quand comment
    pourquoi quel quelle quels quelles dans pour avec sur el los las uno una y o es son qué quién dónde cuándo
    cómo cuál cuáles por para con del
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """Runs of letters and digits, as the search index cuts them, lower case, without scripts that have no spaces."""
    return _WORD.findall(SPACELESS_RUN.sub(" ", text).lower())


def character_pairs(text: str) -> str:
    """Overlapping pairs of characters of every run in a script without spaces, separated by blanks.

    Most Chinese and Japanese words have two characters, which a trigram index cannot find.
    """
    pairs = []
    for run in SPACELESS_RUN.findall(text):
        pairs.extend(run[start : start + 2] for start in range(max(len(run) - 1, 1)))
    return " ".join(pairs)


def question_words(question: str) -> list[str]:
    """The question's words in order, each once, without stop words (all of them if nothing else is left)."""
    every = list(dict.fromkeys(words(question)))
    return [word for word in every if word not in STOP_WORDS] or every


def quoted(term: str) -> str:
    """`term` as an FTS5 string: nothing in it can act as query syntax."""
    return '"' + term.replace('"', '""').replace("\0", " ") + '"'
