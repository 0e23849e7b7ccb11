"""The same small handbook in English, Chinese, Japanese and Korean: facts at known pages, made at test time."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Handbook:
    """question is answered by `fact` on page `page`; absent is a question whose words stand nowhere in it."""

    name: str
    headings: tuple[str, ...]
    sentences: tuple[str, ...]
    question: str
    fact: str
    page: int
    absent: str
    summarize: str
    list_all: str
    compare: str

    font: str

    def write_pdf(self, folder: Path) -> Path:
        """One page for each heading, in a font of the language."""
        from reportlab.lib.pagesizes import A4
        from reportlab.pdfbase import pdfmetrics
        from reportlab.pdfbase.cidfonts import UnicodeCIDFont
        from reportlab.pdfgen.canvas import Canvas

        if self.font != "Helvetica":
            pdfmetrics.registerFont(UnicodeCIDFont(self.font))
        path = folder / f"{self.name}.pdf"
        canvas = Canvas(str(path), pagesize=A4)
        width = 70 if self.font == "Helvetica" else 34
        for heading, text in zip(self.headings, self.sentences, strict=True):
            lines = canvas.beginText(72, 770)
            lines.setFont(self.font, 16)
            lines.textLine(heading)
            lines.setFont(self.font, 11)
            lines.textLine("")
            for line in _wrapped(text, width):
                lines.textLine(line)
            canvas.drawText(lines)
            canvas.showPage()
        canvas.save()
        return path

    def write_text(self, folder: Path, encoding: str) -> Path:
        """A text file, pages after another."""
        path = folder / f"{self.name}.txt"
        pages = [f"{heading}\n\n{text}\n" for heading, text in zip(self.headings, self.sentences, strict=True)]
        path.write_text("\n".join(pages), encoding=encoding)
        return path


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, between words where there are spaces."""
    if " " in text:
        return textwrap.wrap(text, width)
    return [text[start : start + width] for start in range(0, len(text), width)]


ENGLISH = Handbook(
    "english",
    ("1 The lighthouse", "2 The keeper", "3 The lamp room", "4 The well", "5 The harbour"),
    (
        "The lighthouse stands on the northern cliff of the island and was finished in the year 1823. "
        "Its walls are built of grey granite that ships brought from the mainland over two summers.",
        "The keeper winds the great clockwork of the lighthouse twice every night without exception. "
        "He writes the weather of each hour into a book that is kept under the stairs.",
        "The lamp room is locked with a code, and the access code of the lamp room is 7391. "
        "Nobody may enter the lamp room of the lighthouse while the lamp is burning at night.",
        "The well behind the lighthouse is forty metres deep and never dries up in summer. "
        "Its water is tested for salt on the first Monday of every month by the keeper.",
        "Boats of the lighthouse land in the small harbour only when the tide is high enough. "
        "The harbour is closed to all visitors from November to the end of March.",
    ),
    "What is the access code of the lamp room?",
    "7391",
    3,
    "Who won the chess tournament?",
    "Summarize this document.",
    "List all rules about the lamp room.",
    "Compare these two documents.",
    "Helvetica",
)
CHINESE = Handbook(
    "chinese",
    ("第一章 灯塔", "第二章 守塔人", "第三章 灯室", "第四章 水井", "第五章 港口"),
    (
        "这座灯塔建在岛屿北面的悬崖上，于一八二三年完工。"
        "灯塔的墙壁用灰色花岗岩砌成，石料由船只在两个夏天里从大陆运来。",
        "守塔人每天夜里要给灯塔的大钟上两次发条，从不例外。他把每个小时的天气写进楼梯下面保存的一本册子里。",
        "灯室的门用密码锁锁住，灯室的门禁密码是7391。夜里灯点亮的时候，任何人都不得进入灯塔的灯室。",
        "灯塔后面的水井有四十米深，夏天也从来不会干涸。守塔人在每个月的第一个星期一检查井水里的盐分。",
        "灯塔的小船只有在潮水足够高的时候才能在小港口靠岸。港口从十一月到三月底对所有游客关闭。",
    ),
    "灯室的门禁密码是多少？",
    "7391",
    3,
    "谁赢得了象棋比赛？",
    "请总结这份文件。",
    "列出关于灯室的所有规定。",
    "比较这两份文件。",
    "STSong-Light",
)
JAPANESE = Handbook(
    "japanese",
    ("第1章 灯台", "第2章 灯台守", "第3章 灯室", "第4章 井戸", "第5章 港"),
    (
        "この灯台は島の北の崖の上に立ち、1823年に完成した。"
        "灯台の壁は灰色の花崗岩でできており、石は二度の夏をかけて本土から船で運ばれた。",
        "灯台守は毎晩二回、灯台の大きな時計のぜんまいを欠かさず巻く。"
        "彼は毎時の天気を階段の下に置かれた帳面に書き込む。",
        "灯室の扉には暗証番号の鍵があり、灯室の暗証番号は7391である。"
        "夜に灯がともっている間は、誰も灯台の灯室に入ってはならない。",
        "灯台の裏の井戸は深さが四十メートルあり、夏でも決して枯れない。"
        "灯台守は毎月の最初の月曜日に井戸の水の塩分を調べる。",
        "灯台の小舟は潮が十分に高いときだけ小さな港に着くことができる。"
        "港は十一月から三月の末まですべての観光客に閉ざされる。",
    ),
    "灯室の暗証番号は何ですか？",
    "7391",
    3,
    "将棋大会では誰が優勝したか？",
    "この文書を要約してください。",
    "灯室の規則をすべて列挙してください。",
    "この二つの文書を比較してください。",
    "HeiseiMin-W3",
)
KOREAN = Handbook(
    "korean",
    ("제1장 등대", "제2장 등대지기", "제3장 등실", "제4장 우물", "제5장 항구"),
    (
        "이 등대는 섬 북쪽 절벽 위에 서 있으며 1823년에 완공되었다. "
        "등대의 벽은 회색 화강암으로 지어졌고 돌은 두 해 여름 동안 육지에서 배로 실어 왔다.",
        "등대지기는 매일 밤 두 번씩 등대의 큰 시계 태엽을 빠짐없이 감는다. "
        "그는 매시간의 날씨를 계단 아래에 보관된 공책에 적는다.",
        "등실의 문은 비밀번호로 잠겨 있으며 등실의 출입 비밀번호는 7391이다. "
        "밤에 등이 켜져 있는 동안에는 누구도 등대의 등실에 들어갈 수 없다.",
        "등대 뒤의 우물은 깊이가 사십 미터이고 여름에도 절대로 마르지 않는다. "
        "등대지기는 매달 첫 월요일에 우물물의 염분을 검사한다.",
        "등대의 작은 배는 물때가 충분히 높을 때에만 작은 항구에 댈 수 있다. "
        "항구는 십일월부터 삼월 말까지 모든 방문객에게 닫혀 있다.",
    ),
    "등실의 출입 비밀번호는 무엇인가요?",
    "7391",
    3,
    "체스 대회에서 누가 우승했나요?",
    "이 문서를 요약해 주세요.",
    "등실에 관한 규칙을 모두 나열해 주세요.",
    "이 두 문서를 비교해 주세요.",
    "HYSMyeongJo-Medium",
)
HANDBOOKS = (ENGLISH, CHINESE, JAPANESE, KOREAN)
