"""Text files that are not UTF-8: detected, reported with their likely encoding, and read as the recipe says."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

import charset_normalizer

from models.files.plain import UnreadableFile
from toolkit.files.packed import is_packed, opened

#: Bytes that are read at a time.
BLOCK = 2**20
#: Byte order marks of UTF-16 and UTF-32; the longer first, since they begin like the shorter ones.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: Windows' encoding of Western languages: the likeliest by far, and it includes ISO 8859-1.
WESTERN = "cp1252"
#: What no Western text has: three accented letters in a row, and a non-letter within a word. Both show up if other
#: languages are decoded as Western.
NOT_WESTERN = re.compile(r"[\xc0-\xff]{3}|[^\W\d_][\xa1-\xb6\xb8-\xbf\xd7\xf7][^\W\d_]")
#: Mojibake: UTF-8 once decoded as cp1252, then perhaps written in lower case. Common in Western text, so no evidence.
TAKEN_TWICE = re.compile("[\xc2\xc3].|[\xe2\xe3][\xa0-\xbf]")
#: Encodings of East Asia -> their language. Each reads most texts in the others, as nonsense.
EAST_ASIAN = {"gb18030": "Chinese", "big5": "Chinese", "cp949": "Korean", "cp932": "Japanese", "euc_jp": "Japanese"}
#: Language -> its most frequent letters, and all its letters.
EVERYDAY = {
    "Chinese": (
        re.compile(
            "[的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经"
            "么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日者意无力它与长把机十民第公此已工使情明性知全三"
            "又关点正业外将两高间由问很最重并物手应向头文体美相见被利什二等产或新己制身果加西月话合回特代内信表化老给世位次度门任常先海通"
            "教儿原东声提立及比员解水名真论处走各入几口认条平系气题活更别打女变四总何电数安少报才结反受目太量再感建务做接必场件计管期市直"
            "這個們來為國說時會對發後過還無與長機關點業將兩間問見產給話員氣題別變電數報結務場計開實當動經學現沒進樣從東聲論處認條應頭體]"
        ),
        re.compile("[\u3400-\u9fff]"),
    ),
    "Korean": (
        re.compile(
            "[이다는에을의가고하지은를도로한기사리서자나대어그시들인정있해일게수아스라것과만부제원와상전장구성주보관여년동공중오선유경니까"
            "세우생면요마무말없음데안비국으문재내때조모신각학화치물방분식연회같또위않합습네예했았었좋]"
        ),
        re.compile("[\uac00-\ud7a3]"),
    ),
    "Japanese": (re.compile("[\u3041-\u30ff]"), re.compile("[\u3041-\u30ff\u3400-\u9fff]")),
}
#: Two readings whose shares of everyday letters differ by no more are as likely.
CLOSE = 0.1
#: Bytes around the first invalid one that a guess uses: the words nearby, not megabytes.
LOOKED_AT = 2**16


class WrongEncoding(ValueError):
    """A file is not in the encoding that it should be in. The message is a line, without the file's name.

    Attributes:
        likely: an encoding that can read it; None where none is found, or several are as likely.
        line: of the file, counted from 1, that has the first strange byte.
    """

    def __init__(self, wrong: str, readings: Mapping[str, str], line: int, certain: bool = True) -> None:
        """
        Args:
            readings: the likeliest encodings, the best first -> a word as they read it; empty where there is none.
            certain: whether the first is likelier than the others.
        """
        self.likely, self.line = next(iter(readings), None) if certain else None, line
        self._wrong, self._readings = wrong, readings
        super().__init__(self.told())

    def told(self, option: str = "") -> str:
        """Return the message; ``option``, such as ``--encoding``, is written before the encoding's name."""
        option = f"{option} " if option else ""
        if self.likely is None and self._readings:
            either = " or ".join(f"{name} ({word!r})" for name, word in self._readings.items())
            return f"{self._wrong}; it may be {either}: set {option}to the one that reads right, if either does"
        if self.likely is None:
            which = f"{option}to the one" if option else "the encoding"
            return f"{self._wrong}; set {which} that it is in, such as cp1252 or utf-16"
        shown, *others = (f"{name}{f' ({word!r})' if word else ''}" for name, word in self._readings.items())
        seems = f"{shown}{''.join(f', not {other}' for other in others)}"
        return f"{self._wrong}; it seems to be {seems}: set {option}{self.likely}"


def is_encoding(name: str) -> bool:
    """Whether Python knows an encoding of text by this name."""
    try:
        return getattr(codecs.lookup(name), "_is_text_encoding", True) and bool(" ".encode(name))
    except (LookupError, ValueError):
        return False


def check_encoding(path: Path, encoding: str = "utf-8") -> None:
    """Check a whole file's encoding. Raises WrongEncoding, which names the likely one, if it is another, and
    UnreadableFile if it is packed, and is to be or has to be read in another encoding."""
    packed = is_packed(path)
    if packed and codecs.lookup(encoding).name != "utf-8":
        raise UnreadableFile(path, f"is packed, and cannot be read as {encoding}; unpack it")
    decoder, done = codecs.getincrementaldecoder(encoding)(), 0
    with opened(path) as file:
        while True:
            block = file.read(BLOCK)
            try:
                decoder.decode(block, final=not block)
            except (UnicodeError, ValueError) as problem:
                kept = len(getattr(problem, "object", block)) - len(block)  # of the block before
                place = max(0, done - kept + getattr(problem, "start", 0))
                line = _line_of(path, encoding, place)
                if packed:
                    raise UnreadableFile(f"{path}:{line}:", "is not UTF-8; unpack it, and set its encoding") from None
                raise _explained(path, encoding, place, line) from None
            if not block:
                return
            done += len(block)


def _explained(path: Path, encoding: str, place: int, line: int) -> WrongEncoding:
    """Return an error with the likely encoding; ``place`` and ``line`` are about those of the first invalid byte."""
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(max(0, place - LOOKED_AT // 4))
        around = file.read(LOOKED_AT)
    wrong = f"is not {encoding} (byte {place:,})"
    marked = next((name for mark, name in MARKS if head.startswith(mark)), None)
    names, certain = ([marked], True) if marked else _likely(around)
    if names[:1] in ([], [encoding]):
        return WrongEncoding(wrong, {}, line)
    return WrongEncoding(wrong, {name: _strange_word(around, name) for name in names}, line, certain)


def _line_of(path: Path, encoding: str, place: int) -> int:
    """Return the line of a byte, by decoding what precedes it."""
    decoder, line, left = codecs.getincrementaldecoder(encoding)("replace"), 1, place
    with opened(path) as file:
        while left > 0 and (block := file.read(min(BLOCK, left))):
            line += decoder.decode(block).count("\n")
            left -= len(block)
    return line


def has_letters_of_utf8(path: Path) -> bool:
    """Whether a file is UTF-8 with non-ASCII characters: hardly any text in another encoding is valid UTF-8."""
    try:
        check_encoding(path)
    except WrongEncoding:
        return False
    with open(path, "rb") as file:
        return any(not block.isascii() for block in iter(lambda: file.read(BLOCK), b""))


@contextlib.contextmanager
def opened_text(path: Path, encoding: str = "utf-8", newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file behind its byte order mark, if it has one; unpack it if it is compressed."""
    with opened(path) as stored, io.TextIOWrapper(stored, encoding=encoding, newline=newline) as file:
        marked = file.read(1) == "\ufeff"
    with opened(path) as stored, io.TextIOWrapper(stored, encoding=encoding, newline=newline) as file:
        file.read(1 if marked else 0)
        yield file


def _likely(around: bytes) -> tuple[list[str], bool]:
    """Guess the encoding of some bytes by their letters. Returns the likeliest, and the second where letters of East
    Asia are read by both; then whether the first is clearly better."""
    lines = b"\n".join(line for line in around.splitlines() if not line.isascii())
    try:
        western = lines.decode(WESTERN)
    except UnicodeError:
        western = ""
    if western and not NOT_WESTERN.search(TAKEN_TWICE.sub("", western)):
        return [WESTERN], True
    best = charset_normalizer.from_bytes(lines).best()
    if best is None or best.language not in (*EVERYDAY, "Unknown"):
        return [best.encoding] if best else [], True
    shares = {name: _everyday(lines.decode(name, "replace"), language) for name, language in EAST_ASIAN.items()}
    first, second = sorted(shares, key=lambda name: shares[name], reverse=True)[:2]
    return [first, second], shares[first] - max(shares[second], 0) > CLOSE


def _everyday(text: str, language: str) -> float:
    """The share of letters beyond ASCII that a language uses every day, less the share that it never uses."""
    letters = [letter for letter in text if not letter.isascii() and (letter.isalpha() or letter == "\ufffd")]
    everyday, used = EVERYDAY[language]
    found = "".join(letters)
    return (len(everyday.findall(found)) - len(letters) + len(used.findall(found))) / max(len(letters), 1)


def _strange_word(around: bytes, encoding: str) -> str:
    """The first word with a letter beyond ASCII, as the encoding reads it."""
    words = around.decode(encoding, "replace").split()
    return next((word[:20] for word in words if not word.isascii() and word.isprintable()), "")
