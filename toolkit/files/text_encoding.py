"""Text files that are not UTF-8: found out, named with what they probably are, and read as what the recipe says."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import charset_normalizer

from toolkit.files.packed import opened

#: Bytes that are read at a time.
BLOCK = 2**20
#: How a file of UTF-16 or UTF-32 begins; the longer ones first, since they begin as the shorter ones.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: What Windows writes for Western languages: the likeliest by far, and what ISO 8859-1 is a part of.
WESTERN = "cp1252"
#: What no Western text has: three letters with accents beside each other, and what is no letter within a word. Both
#: show up where other languages are read as if they were Western.
NOT_WESTERN = re.compile(r"[\xc0-\xff]{3}|[^\W\d_][\xa1-\xb6\xb8-\xbf\xd7\xf7][^\W\d_]")
#: Mojibake: UTF-8 once decoded as cp1252. Common in Western text, so no evidence.
TAKEN_TWICE = re.compile("[\xc2\xc3].")
#: Bytes around the first strange one that a guess is made from: the words nearby, not megabytes.
LOOKED_AT = 2**16


class WrongEncoding(ValueError):
    """A file is not in the encoding that it should be in. The message is a line, without the file's name.

    Attributes:
        likely: an encoding that can read it; None where none is found.
        line: of the file, counted from 1, that has the first strange byte.
    """

    def __init__(self, wrong: str, likely: str | None, sample: str, line: int) -> None:
        """``sample``: a word as ``likely`` reads it; empty where there is none."""
        self.likely, self.line = likely, line
        self._wrong, self._sample = wrong, sample
        super().__init__(self.told())

    def told(self, option: str = "") -> str:
        """The message, with what is to be written before the encoding's name to set it, such as ``--encoding``."""
        option = f"{option} " if option else ""
        if self.likely is None:
            which = f"{option}to the one" if option else "the encoding"
            return f"{self._wrong}; set {which} that it is in, such as cp1252 or utf-16"
        seems = f"{self.likely}{f' ({self._sample!r})' if self._sample else ''}"
        return f"{self._wrong}; it seems to be {seems}: set {option}{self.likely}"


def is_encoding(name: str) -> bool:
    """Whether Python knows an encoding of text by this name."""
    try:
        return getattr(codecs.lookup(name), "_is_text_encoding", True) and bool(" ".encode(name))
    except (LookupError, ValueError):
        return False


def check_encoding(path: Path, encoding: str = "utf-8") -> None:
    """See that a whole file is in an encoding.

    Raises:
        WrongEncoding: it is not; with what it probably is.
    """
    _decode(path, encoding, None)


def write_as_utf8(path: Path, encoding: str, target: Path) -> None:
    """Write what a file says into another, as UTF-8 without a byte order mark; line ends stay.

    Raises:
        WrongEncoding: as :func:`check_encoding`.
    """
    _decode(path, encoding, target)


def _decode(path: Path, encoding: str, target: Path | None) -> None:
    decoder, done = codecs.getincrementaldecoder(encoding)(), 0
    with open(path, "rb") as file, open(target or os.devnull, "wb") as out:
        while True:
            block = file.read(BLOCK)
            try:
                text = decoder.decode(block, final=not block)
            except (UnicodeError, ValueError) as problem:
                kept = len(getattr(problem, "object", block)) - len(block)  # of the block before
                place = max(0, done - kept + getattr(problem, "start", 0))
                raise _explained(path, encoding, place) from None
            if target is not None:
                out.write((text.removeprefix("\ufeff") if done == 0 else text).encode("utf-8", "surrogatepass"))
            if not block:
                return
            done += len(block)


def _explained(path: Path, encoding: str, place: int) -> WrongEncoding:
    """What is wrong, and what the file probably is.

    Args:
        place: of the first byte that the encoding does not have, about.
    """
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(max(0, place - LOOKED_AT // 4))
        around = file.read(LOOKED_AT)
    wrong, line = f"is not {encoding} (byte {place:,})", _line_of(path, encoding, place)
    likely = next((name for mark, name in MARKS if head.startswith(mark)), None) or _likely(around)
    if likely is None or likely == encoding:
        return WrongEncoding(wrong, None, "", line)
    return WrongEncoding(wrong, likely, _strange_word(around, likely), line)


def _line_of(path: Path, encoding: str, place: int) -> int:
    """The line in which a byte is, as the encoding reads what is before it."""
    decoder, line, left = codecs.getincrementaldecoder(encoding)("replace"), 1, place
    with open(path, "rb") as file:
        while left > 0 and (block := file.read(min(BLOCK, left))):
            line += decoder.decode(block).count("\n")
            left -= len(block)
    return line


def has_letters_of_utf8(path: Path) -> bool:
    """Whether a file is UTF-8 that other encodings read as other letters: hardly any other text happens to be."""
    try:
        check_encoding(path)
    except WrongEncoding:
        return False
    with open(path, "rb") as file:
        return any(not block.isascii() for block in iter(lambda: file.read(BLOCK), b""))


@contextlib.contextmanager
def opened_text(path: Path, encoding: str = "utf-8", newline: str | None = None) -> Iterator[TextIO]:
    """A file of text, to be read from behind its byte order mark, if it has one; unpacked where it is compressed."""
    with opened(path) as stored, io.TextIOWrapper(stored, encoding=encoding, newline=newline) as file:
        marked = file.read(1) == "\ufeff"
    with opened(path) as stored, io.TextIOWrapper(stored, encoding=encoding, newline=newline) as file:
        file.read(1 if marked else 0)
        yield file


def _likely(around: bytes) -> str | None:
    """The encoding of a stretch of text, by its letters."""
    lines = b"\n".join(line for line in around.splitlines() if not line.isascii())
    try:
        western = lines.decode(WESTERN)
    except UnicodeError:
        western = ""
    if western and not NOT_WESTERN.search(TAKEN_TWICE.sub("", western)):
        return WESTERN
    best = charset_normalizer.from_bytes(lines).best()
    return best.encoding if best else None


def _strange_word(around: bytes, encoding: str) -> str:
    """The first word with a letter beyond ASCII, as the encoding reads it."""
    words = around.decode(encoding, "replace").split()
    return next((word[:20] for word in words if not word.isascii() and word.isprintable()), "")
