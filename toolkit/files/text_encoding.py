"""Text files in other encodings than UTF-8: detected, reported with a likely encoding, and read as configured."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

import charset_normalizer

from models.files.plain import UnreadableFileError
from toolkit.files.compression import is_packed, open_unpacked

#: Bytes that are read at a time.
BLOCK_BYTES = 2**20
#: Byte order marks of UTF-16 and UTF-32; UTF-32 comes first, because its marks begin like the marks of UTF-16.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: Windows' encoding of Western languages: the likeliest by far, and it includes ISO 8859-1.
WESTERN_ENCODING = "cp1252"
#: Three accented letters in a row, or a non-letter within a word. Western text has neither; both occur if another
#: language is decoded as Western.
NOT_WESTERN_PATTERN = re.compile(r"[\xc0-\xff]{3}|[^\W\d_][\xa1-\xb6\xb8-\xbf\xd7\xf7][^\W\d_]")
#: Mojibake: UTF-8 decoded as cp1252, perhaps in lower case. It is common in Western text and thus no evidence.
MOJIBAKE_PATTERN = re.compile("[\xc2\xc3].|[\xe2\xe3][\xa0-\xbf]")
#: East Asian encoding -> language. Each can decode most texts in the other encodings, with a wrong result.
EAST_ASIAN_ENCODINGS = {
    "gb18030": "Chinese",
    "big5": "Chinese",
    "cp949": "Korean",
    "cp932": "Japanese",
    "euc_jp": "Japanese",
}
#: Language -> patterns of its most frequent letters and of all its letters.
LANGUAGE_LETTERS = {
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
#: Two encodings are equally likely if their ratings differ by at most this value.
MAX_CLOSE_DIFFERENCE = 0.1
#: Bytes around the first invalid byte from which the encoding is guessed.
SAMPLE_BYTES = 2**16


class WrongEncodingError(ValueError):
    """A text file is not in the expected encoding; the message is one line without the file's name.

    Attributes:
        likely: likely encoding of the file; None if none is found or several are equally likely.
        line: line of the first invalid byte, from 1.
    """

    def __init__(
        self, description: str, word_by_encoding: Mapping[str, str], line: int, *, is_certain: bool = True
    ) -> None:
        """Build the message from the likely encodings.

        Args:
            description: description of the invalid byte.
            word_by_encoding: likely encoding -> a word of the file decoded with it; the likeliest comes first.
            line: line of the first invalid byte, from 1.
            is_certain: whether the first encoding is likelier than the others.
        """
        self.likely, self.line = next(iter(word_by_encoding), None) if is_certain else None, line
        self._description, self._word_by_encoding = description, word_by_encoding
        super().__init__(self.format_message())

    def format_message(self, option: str = "") -> str:
        """Return the message, with an option such as ``--encoding`` before the encoding's name."""
        option = f"{option} " if option else ""
        if self.likely is None and self._word_by_encoding:
            choices = " or ".join(f"{name} ({word!r})" for name, word in self._word_by_encoding.items())
            return f"{self._description}; it may be {choices}: set {option}to the one that reads right, if either does"
        if self.likely is None:
            remedy = f"{option}to the one" if option else "the encoding"
            return f"{self._description}; set {remedy} that it is in, such as cp1252 or utf-16"
        first_choice, *other_choices = (
            f"{name}{f' ({word!r})' if word else ''}" for name, word in self._word_by_encoding.items()
        )
        likely_text = f"{first_choice}{''.join(f', not {other_choice}' for other_choice in other_choices)}"
        return f"{self._description}; it seems to be {likely_text}: set {option}{self.likely}"


def is_text_encoding(name: str) -> bool:
    """Return whether Python has a text encoding with this name."""
    try:
        return getattr(codecs.lookup(name), "_is_text_encoding", True) and bool(" ".encode(name))
    except (LookupError, ValueError):
        return False


def check_encoding(path: Path, encoding: str = "utf-8") -> None:
    """Check that a whole file can be decoded.

    Args:
        path: text file.
        encoding: encoding of the file.

    Raises:
        WrongEncodingError: the file is in another encoding; the message names the likely encoding.
        UnreadableFileError: the file is compressed, and its encoding is not UTF-8.
    """
    is_compressed = is_packed(path)
    if is_compressed and codecs.lookup(encoding).name != "utf-8":
        raise UnreadableFileError(path, f"is packed, and cannot be read as {encoding}; unpack it")
    decoder, num_decoded = codecs.getincrementaldecoder(encoding)(), 0
    with open_unpacked(path) as file:
        while True:
            block = file.read(BLOCK_BYTES)
            try:
                decoder.decode(block, final=not block)
            except (UnicodeError, ValueError) as error:
                num_pending = len(getattr(error, "object", block)) - len(block)  # bytes of the previous block
                byte_position = max(0, num_decoded - num_pending + getattr(error, "start", 0))
                line = _find_line(path, encoding, byte_position)
                if is_compressed:
                    raise UnreadableFileError(
                        f"{path}:{line}:", "is not UTF-8; unpack it, and set its encoding"
                    ) from None
                raise _build_encoding_error(path, encoding, byte_position, line) from None
            if not block:
                return
            num_decoded += len(block)


def _build_encoding_error(path: Path, encoding: str, byte_position: int, line: int) -> WrongEncodingError:
    """Return an error that names the likely encoding of a file.

    Args:
        path: text file.
        encoding: expected encoding.
        byte_position: position of about the first invalid byte.
        line: line of that byte, from 1.
    """
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(max(0, byte_position - SAMPLE_BYTES // 4))
        nearby_bytes = file.read(SAMPLE_BYTES)
    message = f"is not {encoding} (byte {byte_position:,})"
    marked_encoding = next((name for mark, name in BYTE_ORDER_MARKS if head.startswith(mark)), None)
    names, is_certain = ([marked_encoding], True) if marked_encoding else _guess_encodings(nearby_bytes)
    if names[:1] in ([], [encoding]):
        return WrongEncodingError(message, {}, line)
    return WrongEncodingError(
        message, {name: _find_non_ascii_word(nearby_bytes, name) for name in names}, line, is_certain=is_certain
    )


def _find_line(path: Path, encoding: str, byte_position: int) -> int:
    """Return the line of a byte, from 1, by decoding all bytes before it.

    Args:
        path: text file.
        encoding: encoding of the file.
        byte_position: index of the byte.
    """
    decoder, line, num_left = codecs.getincrementaldecoder(encoding)("replace"), 1, byte_position
    with open_unpacked(path) as file:
        while num_left > 0 and (block := file.read(min(BLOCK_BYTES, num_left))):
            line += decoder.decode(block).count("\n")
            num_left -= len(block)
    return line


def has_utf8_letters(path: Path) -> bool:
    """Return whether a file is UTF-8 with non-ASCII characters; text in other encodings is hardly ever valid UTF-8."""
    try:
        check_encoding(path)
    except WrongEncodingError:
        return False
    with open(path, "rb") as file:
        return any(not block.isascii() for block in iter(lambda: file.read(BLOCK_BYTES), b""))


@contextlib.contextmanager
def open_text(path: Path, encoding: str = "utf-8", newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file, unpacked if it is compressed, after a byte order mark at its beginning.

    Args:
        path: text file.
        encoding: encoding of the file.
        newline: treatment of line breaks, as in :func:`open`.
    """
    with open_unpacked(path) as binary_file, io.TextIOWrapper(binary_file, encoding=encoding, newline=newline) as file:
        has_mark = file.read(1) == "\ufeff"
    with open_unpacked(path) as binary_file, io.TextIOWrapper(binary_file, encoding=encoding, newline=newline) as file:
        file.read(1 if has_mark else 0)
        yield file


def _guess_encodings(nearby_bytes: bytes) -> tuple[list[str], bool]:
    """Guess the encoding of some bytes from their letters.

    Returns:
        The likeliest encodings, at most two and perhaps none; and whether the first is clearly likelier.
    """
    non_ascii_lines = b"\n".join(line for line in nearby_bytes.splitlines() if not line.isascii())
    try:
        western_text = non_ascii_lines.decode(WESTERN_ENCODING)
    except UnicodeError:
        western_text = ""
    if western_text and not NOT_WESTERN_PATTERN.search(MOJIBAKE_PATTERN.sub("", western_text)):
        return [WESTERN_ENCODING], True
    best_guess = charset_normalizer.from_bytes(non_ascii_lines).best()
    if best_guess is None or best_guess.language not in (*LANGUAGE_LETTERS, "Unknown"):
        return [best_guess.encoding] if best_guess else [], True
    shares = {
        name: _rate_letters(non_ascii_lines.decode(name, "replace"), language)
        for name, language in EAST_ASIAN_ENCODINGS.items()
    }
    likeliest, second_likeliest = sorted(shares, key=lambda name: shares[name], reverse=True)[:2]
    return [likeliest, second_likeliest], shares[likeliest] - max(shares[second_likeliest], 0) > MAX_CLOSE_DIFFERENCE


def _rate_letters(text: str, language: str) -> float:
    """Return the share of non-ASCII letters that a language uses often, minus the share that it never uses."""
    letters = [letter for letter in text if not letter.isascii() and (letter.isalpha() or letter == "\ufffd")]
    everyday_pattern, letter_pattern = LANGUAGE_LETTERS[language]
    letter_text = "".join(letters)
    return (len(everyday_pattern.findall(letter_text)) - len(letters) + len(letter_pattern.findall(letter_text))) / max(
        len(letters), 1
    )


def _find_non_ascii_word(nearby_bytes: bytes, encoding: str) -> str:
    """Return the first word with a non-ASCII letter, decoded with an encoding; empty if there is none."""
    words = nearby_bytes.decode(encoding, "replace").split()
    return next((word[:20] for word in words if not word.isascii() and word.isprintable()), "")
