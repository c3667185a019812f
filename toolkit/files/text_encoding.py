"""Text files that are not UTF-8: detected, reported with their likely encoding, and read as the recipe says."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
from collections.abc import Iterator
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
#: Mojibake: UTF-8 once decoded as cp1252. Common in Western text, so no evidence.
TAKEN_TWICE = re.compile("[\xc2\xc3].")
#: Bytes around the first invalid one that a guess uses: the words nearby, not megabytes.
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
        """Return the message; ``option``, such as ``--encoding``, is written before the encoding's name."""
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
    """Check a whole file's encoding.

    Raises:
        WrongEncoding: it is another; names the likely one.
        UnreadableFile: it is packed, and is to be or has to be read in another encoding.
    """
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
    """Return an error with the likely encoding.

    Args:
        place, line: of the first invalid byte, about.
    """
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(max(0, place - LOOKED_AT // 4))
        around = file.read(LOOKED_AT)
    wrong = f"is not {encoding} (byte {place:,})"
    likely = next((name for mark, name in MARKS if head.startswith(mark)), None) or _likely(around)
    if likely is None or likely == encoding:
        return WrongEncoding(wrong, None, "", line)
    return WrongEncoding(wrong, likely, _strange_word(around, likely), line)


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


def _likely(around: bytes) -> str | None:
    """Guess the encoding of some bytes by their letters."""
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
