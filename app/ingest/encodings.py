"""Which encoding bytes are in, when neither a mark nor UTF-8 says it.

Alphabets with one byte a letter are told apart by their languages: under the right encoding nearly all letters beyond
ASCII belong to one language and capitals stand at the beginnings of words. The rest is left to charset-normalizer.
"""

from __future__ import annotations

_LATIN_WEST = (
    "äöüß", "àâæçéèêëîïôœùûüÿ", "áéíñóúü", "àáâãçéêíóôõú", "àèéìòóù", "åäöæøé", "áðéíóúýþæö", "äëïéèöü", "àçèéíïòóúü",
)  # fmt: skip
_CYRILLIC = ("абвгдеёжзийклмнопрстуфхцчшщъыьэюя", "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя", "абвгдђежзијклљмнњопрстћуфхцчџш")
_CENTRAL = ("áäčďéěíňóřšťúůýž", "ąćęłńóśźż", "áéíóöőúüű", "áäčďéíĺľňóôŕšťúýž", "čćđšž", "ăâîșşțţ")
_GREEK = ("αάβγδεέζηήθιίϊΐκλμνξοόπρσςτυύϋΰφχψωώ",)
_HEBREW = ("אבגדהוזחטיךכלםמןנסעףפץצקרשת",)
_ARABIC = ("ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىيپچژگـًٌٍَُِّْ",)
_CANDIDATES = (  # the first of equals is taken
    ("cp1252", _LATIN_WEST),
    ("cp1250", _CENTRAL),
    ("iso8859_2", _CENTRAL),
    ("cp1255", _HEBREW),  # its letters are small Russian ones in cp1251, but never the last five of those
    ("cp1251", _CYRILLIC),
    ("koi8_u", _CYRILLIC),
    ("iso8859_5", _CYRILLIC),
    ("cp866", _CYRILLIC),
    ("cp1253", _GREEK),
    ("iso8859_7", _GREEK),
    ("cp1254", ("çğıöşüâîû",)),
    ("cp1256", _ARABIC),
    ("iso8859_6", _ARABIC),
    ("cp1257", ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž")),
    ("cp850", _LATIN_WEST),
)
_MIXED_WITH_ASCII = frozenset({"cp1252", "cp1250", "iso8859_2", "cp1254", "cp1257", "cp850"})
_PUNCTUATION = frozenset("–—‘’‚“”„…«»‹›°§€£©®™·•№¿¡²³½¼µ ×´")
_SURE = 0.95
_SAMPLE = 64 * 1024
_WIDE = (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2))
_USUAL = (  # blocks of Unicode that texts are made of
    (0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x10A0, 0x10FF),
    (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2100, 0x22FF), (0x2500, 0x25FF), (0x3000, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE30, 0xFE4F), (0xFF00, 0xFFEF), (0x1F300, 0x1FAFF), (0x20000, 0x2FFFF),
)  # fmt: skip


def wide(data: bytes) -> str:
    """UTF-16 or UTF-32 without a mark, by what the bytes would mean; "" if they are neither."""
    best, best_share = "", 0.9
    sample = data[:_SAMPLE]
    if sum(byte == 0x20 or 0x61 <= byte | 0x20 <= 0x7A for byte in sample) > 0.6 * len(sample):
        return ""  # ASCII with some zero bytes in it
    for encoding, width in _WIDE:
        if len(data) % width:
            continue
        try:
            text = data[: _SAMPLE * width].decode(encoding)
        except UnicodeDecodeError:
            if len(data) <= _SAMPLE * width:
                continue
            text = data[: _SAMPLE * width].decode(encoding, "ignore")  # the sample may end inside of a pair
        share = _usual_share(text)
        if share > best_share:
            best, best_share = encoding, share
    return best


def _usual_share(text: str) -> float:
    if len(text) < 3 or "\0" in text:
        return 0.0
    # Latin letters read in the wrong order are ideographs that end in a zero byte
    swapped = sum(1 for char in text if char > "\u2000" and not ord(char) & 0xFF)
    if swapped * 5 > len(text):
        return 0.0
    usual = sum(1 for char in text if char in "\t\n\r" or any(a <= ord(char) <= b for a, b in _USUAL))
    return usual / len(text)


def escaped(data: bytes) -> str:
    """Japanese or Korean in seven bits, which switches alphabets by escape sequences; "" if it is neither."""
    if b"\x1b$B" in data or b"\x1b$@" in data:
        candidate = "iso2022_jp_2"
    elif b"\x1b$)C" in data[:200]:
        candidate = "iso2022_kr"
    else:
        return ""
    try:
        data.decode(candidate)
    except UnicodeDecodeError:
        return ""
    return candidate


def one_byte(data: bytes) -> str:
    """The encoding of a text in an alphabet with one byte a letter; "" if none fits well."""
    sample = data[:_SAMPLE]
    best, best_score = "", _SURE
    for encoding, languages in _CANDIDATES:
        try:
            text = sample.decode(encoding)
        except UnicodeDecodeError:
            continue
        latin = encoding in _MIXED_WITH_ASCII
        score = max(_fit(text, frozenset(language), latin) for language in languages)
        if score > best_score:
            best, best_score = encoding, score
    return best


def _fit(text: str, letters: frozenset[str], latin: bool) -> float:
    """Share of the characters beyond ASCII that fit the language. Only Latin letters share words with ASCII ones."""
    fitting = count = 0
    for before, char in zip(" " + text, text):
        if char <= "\x7f" or char in _PUNCTUATION:
            continue
        count += 1
        is_capital_inside = char.isupper() and before.islower()
        in_latin_word = before.isalpha() and before <= "\x7f"
        fitting += char.lower() in letters and not is_capital_inside and (latin or not in_latin_word)
    return fitting / count if count >= 2 else 0.0
