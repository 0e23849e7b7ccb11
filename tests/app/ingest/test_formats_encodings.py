"""Encodings that nothing declares: text of many languages is read as it was written, and the guess is named."""

from __future__ import annotations

import pytest

from app.ingest.textfile import NotText, decode

TEXTS = {
    "ja": "博物館は毎日午前九時半に開きます。入場料は大人千円です。子供は無料です。修理は第三章をご覧ください。",
    "zh": "博物馆每天上午九点半开放。门票价格为成人一百元。儿童免费。关于船只维修，请参阅第三章。",
    "zh-tw": "博物館每天上午九點半開放。門票價格為成人一百元。兒童免費。關於船隻維修，請參閱第三章。",
    "ko": "박물관은 매일 오전 아홉 시 반에 문을 엽니다. 입장료는 성인 만 원입니다. 어린이는 무료입니다.",
    "ru": "Музей открыт каждый день с девяти часов утра, кроме понедельника. Билет стоит сто рублей.",
    "de": "Das Museum öffnet täglich um halb zehn. Für Kinder ist der Eintritt frei. Größere Gruppen melden sich an.",
    "fr": "Le musée est ouvert tous les jours à neuf heures. L'entrée est gratuite pour les élèves. Où est la clé ?",
    "pl": "Muzeum jest otwarte od godziny dziewiątej. Wstęp dla dzieci jest bezpłatny. Proszę zgłosić się, żeby",
    "cs": "Muzeum je otevřeno každý den od devíti hodin. Vstup pro děti je zdarma. Větší skupiny se musí ohlásit.",
    "el": "Το μουσείο είναι ανοιχτό κάθε μέρα από τις εννέα. Η είσοδος για τα παιδιά είναι δωρεάν.",
    "tr": "Müze her gün saat dokuzda açılır. Çocuklar için giriş ücretsizdir. Büyük grupların haber vermesi gerekir.",
    "he": "המוזיאון פתוח כל יום משעה תשע בבוקר. הכניסה לילדים חינם. קבוצות גדולות מתבקשות להודיע מראש.",
    "ar": "المتحف مفتوح كل يوم من الساعة التاسعة صباحا. الدخول مجاني للأطفال. يرجى من المجموعات الإبلاغ مسبقا.",
    "th": "พิพิธภัณฑ์เปิดทุกวันตั้งแต่เก้าโมงเช้า เด็กเข้าฟรี",
}
ENCODINGS = {
    "ja": ("shift_jis", "cp932", "euc_jp", "iso2022_jp"),
    "zh": ("gb2312", "gb18030"),
    "zh-tw": ("big5",),
    "ko": ("euc_kr", "cp949"),
    "ru": ("cp1251", "koi8_r", "iso8859_5", "cp866"),
    "de": ("cp1252", "latin_1"),
    "fr": ("cp1252", "latin_1"),
    "pl": ("cp1250", "iso8859_2"),
    "cs": ("cp1250", "iso8859_2"),
    "el": ("cp1253", "iso8859_7"),
    "tr": ("cp1254",),
    "he": ("cp1255",),
    "ar": ("cp1256",),
    "th": ("tis_620",),
}
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
CASES = [
    *[(language, encoding) for language, encodings in ENCODINGS.items() for encoding in encodings],
    *[(language, encoding) for language in ("de", "ru", "ja", "ar") for encoding in WIDE],
]


@pytest.mark.parametrize("times", [1, 20])
@pytest.mark.parametrize(("language", "encoding"), CASES)
def test_text_comes_back_as_it_was(language: str, encoding: str, times: int) -> None:
    words = (TEXTS[language] + "\n") * times
    text, warning = decode(words.encode(encoding))
    assert text == words
    told = encoding in ("utf-16", "utf-32", "iso2022_jp")  # by a mark or by escape sequences
    assert bool(warning) != told


@pytest.mark.parametrize("data", [b"text\0with a zero", b"\0\1", bytes(range(256)) * 20, b"\x7fELF" + bytes(500)])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(NotText):
        decode(data)
