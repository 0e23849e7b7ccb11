"""Signs that stand on, above or beside a letter: accents drawn over it, and raised signs (exponents, notes).

Both are told by places, since a PDF draws them as characters of their own.
"""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
import pypdfium2
import pypdfium2.raw as pdfium

ACCENTS = {  # drawn alone: which mark it is on a letter
    0x60: 0x300,
    0xB4: 0x301,
    0x5E: 0x302,
    0x2C6: 0x302,
    0x7E: 0x303,
    0x2DC: 0x303,
    0xAF: 0x304,
    0x2D8: 0x306,
    0x2D9: 0x307,
    0xA8: 0x308,
    0xB0: 0x30A,
    0x2DA: 0x30A,
    0x2DD: 0x30B,
    0x2C7: 0x30C,
    0xB8: 0x327,
    0x2DB: 0x328,
}
_DOTLESS = {0x131: "i", 0x237: "j"}
REACH = 60  # characters between an accent and its letter: pdfium sorts those of a line anew
MOST_ACCENTS = 2_000  # on a page
OVER = 0.6  # an accent shares so much of its width, or the letter's, with the letter
RAISED = 0.15  # heights of the base, from its foot to that of the raised sign
FAR_RAISED = 0.5  # behind a lowered sign
SMALLER = 0.95
LEAST_SIZE = 2.0
# the encoding of TeX's symbol fonts (OMS), where it differs from ASCII in what texts use
_TEX_SYMBOLS = dict(zip(b"bcdefghijkp", "⌊⌋⌈⌉{}⟨⟩|∥√", strict=True))
_TEX_FONT = re.compile(rb"(?:[A-Z]{6}\+)?CMB?SY\d")
_ORDINALS = frozenset(("st", "nd", "rd", "th", "e", "er", "re", "o", "a"))
_TEX = ("L", "A", "T")  # whose letters stand high and low


_KNOWN = 0x400  # codes from here on are neither accents nor signs of TeX's fonts


def _table(codes: Iterable[int]) -> np.ndarray:
    table = np.zeros(_KNOWN + 1, dtype=bool)
    table[list(codes)] = True
    return table


_IS_ACCENT, _IS_TEX_SYMBOL = _table(ACCENTS), _table(_TEX_SYMBOLS)

# Called often, so without checks and conversions of arguments.
_origin_of = ctypes.PYFUNCTYPE(ctypes.c_int)(ctypes.cast(pdfium.FPDFText_GetCharOrigin, ctypes.c_void_p).value or 0)
_size_of = ctypes.PYFUNCTYPE(ctypes.c_double)(ctypes.cast(pdfium.FPDFText_GetFontSize, ctypes.c_void_p).value or 0)


def compose_accents(codes: np.ndarray, boxes: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Which places of `visible` are accents that were put onto the letter below them; `codes` then has that letter."""
    gone = np.zeros(visible.size, dtype=bool)
    accents = np.flatnonzero(_IS_ACCENT[np.minimum(codes[visible], _KNOWN)])
    for place in accents[:MOST_ACCENTS].tolist():
        low = max(0, place - REACH)
        near = visible[low : place + REACH + 1]
        below = np.flatnonzero(_over(boxes[visible[place]], boxes[near]) & ~gone[low : place + REACH + 1]) + low
        for letter in sorted(below.tolist(), key=lambda other, place=place: abs(other - place)):
            code = int(codes[visible[letter]])
            base = _DOTLESS.get(code) or chr(code)
            whole = unicodedata.normalize("NFC", base + chr(ACCENTS[int(codes[visible[place]])]))
            if letter != place and base.isalpha() and len(whole) == 1:
                codes[visible[letter]] = ord(whole)
                gone[place] = True
                break
    return gone


def _over(accent: np.ndarray, letters: np.ndarray) -> np.ndarray:
    """Of boxes (left, top, right, bottom) in PDF points, y upwards: which stand below the accent."""
    wide = np.minimum(accent[2], letters[:, 2]) - np.maximum(accent[0], letters[:, 0])
    high = np.minimum(accent[1], letters[:, 1]) - np.maximum(accent[3], letters[:, 3])
    return (wide > OVER * np.minimum(accent[2] - accent[0], letters[:, 2] - letters[:, 0])) & (
        high > 0.2 * np.minimum(accent[1] - accent[3], letters[:, 1] - letters[:, 3])
    )


def baselines(textpage: pypdfium2.PdfTextPage, places: Iterable[int]) -> list[tuple[float, float]]:
    """Where the characters stand, in PDF points."""
    x, y = ctypes.c_double(), ctypes.c_double()
    handle, to_x, to_y = ctypes.cast(textpage.raw, ctypes.c_void_p), ctypes.byref(x), ctypes.byref(y)
    found = []
    for place in places:
        _origin_of(handle, place, to_x, to_y)
        found.append((x.value, y.value))
    return found


def font_sizes(textpage: pypdfium2.PdfTextPage, places: Iterable[int]) -> list[float]:
    return list(map(_size_of, repeat(ctypes.cast(textpage.raw, ctypes.c_void_p)), places))


def name_symbols(textpage: pypdfium2.PdfTextPage, codes: np.ndarray, visible: np.ndarray, odd: np.ndarray) -> None:
    """Writes into `codes` the brackets and strokes of TeX's symbol fonts that pdfium takes for letters of their codes.

    odd: places among `visible` that may be such: their size differs from that of a neighbour.
    """
    symbols = odd[_IS_TEX_SYMBOL[np.minimum(codes[odd], _KNOWN)]].tolist()
    name, flags = ctypes.create_string_buffer(64), ctypes.c_int()
    for place in symbols:
        length = pdfium.FPDFText_GetFontInfo(textpage.raw, int(visible[place]), name, 64, flags)
        if 0 < length <= 64 and _TEX_FONT.match(name.value):
            codes[place] = ord(_TEX_SYMBOLS[int(codes[place])])


def raised_steps(
    codes: np.ndarray,
    pairs: Sequence[int],
    steps: Sequence[float],
    heights: np.ndarray,
    sizes: Sequence[tuple[float, float]],
) -> list[int]:
    """Of neighbours (k, k + 1) in one word: +1 where a raised sign begins, -1 where the line goes on, else 0.

    steps: how far the second stands above the first, in points. heights: of characters; in some fonts they are those of
    the drawn signs, so `sizes`, of the fonts of both, come first where the file gives them. Raised letters of an
    ordinal number, marks that are neither letters nor figures, and the A of LaTeX are left where they are.
    """
    kinds = []
    for k, step, (before, after) in zip(pairs, steps, sizes, strict=True):
        if max(before, after) < LEAST_SIZE:  # the file scales its letters in another way
            before, after = float(heights[k]), float(heights[k + 1])
        if (step > RAISED * before and after < SMALLER * before) or (
            step > FAR_RAISED * before and after < 1.05 * before
        ):
            kinds.append(1 if _is_marked(codes, k) else 0)
        elif -step > RAISED * after and before < SMALLER * after:
            kinds.append(-1 if chr(codes[k]).isalnum() and chr(codes[k + 1]).isalnum() and not _tex(codes, k) else 0)
        else:
            kinds.append(0)
    return kinds


def _is_marked(codes: np.ndarray, k: int) -> bool:
    sign, base = chr(codes[k + 1]), chr(codes[k])
    if not (sign.isalnum() or sign in "+-−") or _tex(codes, k + 1):
        return False
    if base.isdigit() and sign.isalpha():
        letters = ""
        for code in codes[k + 1 : k + 4].tolist():
            if not chr(code).isalpha():
                break
            letters += chr(code)
        return not any(letters[:size].lower() in _ORDINALS for size in (1, 2))
    return base.isalnum() or base in ")]}"


def _tex(codes: np.ndarray, k: int) -> bool:
    """Whether k is the A of LaTeX."""
    return 0 < k < codes.size - 1 and tuple(map(chr, codes[k - 1 : k + 2].tolist())) == _TEX
