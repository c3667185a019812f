"""Ways in which a file can be bad: a table of damages, each of which is done to every kind of file that is read."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

#: A damage of bytes: (bytes, random numbers) -> bytes.
Change = Callable[[bytes, random.Random], bytes]
#: A damage of a path: what stands there afterwards is no file that can be read.
Replace = Callable[[Path], None]

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not Found</body></html>\n"


def _flipped(bits: int) -> Change:
    def change(content: bytes, draw: random.Random) -> bytes:
        flipped = bytearray(content)
        for _ in range(bits):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        return bytes(flipped)

    return change


def _as_text(encoding: str) -> Change:
    return lambda content, draw: content.decode("latin-1").encode(encoding)


def _inserted(what: bytes) -> Change:
    def change(content: bytes, draw: random.Random) -> bytes:
        place = draw.randrange(len(content))
        return content[:place] + what + content[place:]

    return change


#: After these a file of any kind is none any more.
RUINED: dict[str, Change] = {
    "empty": lambda content, draw: b"",
    "only zeros": lambda content, draw: bytes(len(content)),
    "a pointer of git-LFS": lambda content, draw: LFS,
    "random bytes": lambda content, draw: draw.randbytes(4096),
    "bytes ff": lambda content, draw: b"\xff" * 512,
    "UTF-16": _as_text("utf-16"),
    "UTF-32": _as_text("utf-32"),
}

#: After these it may still be one, of the same content or of another.
HURT: dict[str, Change] = {
    "a web page": lambda content, draw: HTML,
    "compressed": lambda content, draw: gzip.compress(content),
    "null": lambda content, draw: b"null",
    "an empty object": lambda content, draw: b"{}",
    "an empty list": lambda content, draw: b"[]",
    "a number": lambda content, draw: b"1",
    "a text": lambda content, draw: b'"text"',
    "true": lambda content, draw: b"true",
    "NaN": lambda content, draw: b"NaN",
    "a huge number": lambda content, draw: b"9" * 5000,
    "lists nested deeply": lambda content, draw: b"[" * 200_000 + b"]" * 200_000,
    "objects nested deeply": lambda content, draw: b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "only line ends": lambda content, draw: b"\n\r\n\n",
    "cut in half": lambda content, draw: content[: len(content) // 2],
    "cut anywhere": lambda content, draw: content[: draw.randrange(1, len(content))],
    "without its last byte": lambda content, draw: content[:-1],
    "without its first byte": lambda content, draw: content[1:],
    "doubled": lambda content, draw: content + content,
    "a byte order mark": lambda content, draw: b"\xef\xbb\xbf" + content,
    "carriage returns": lambda content, draw: content.replace(b"\n", b"\r"),
    "a zero inside": _inserted(b"\0"),
    "a byte of Latin-1 inside": _inserted(b"\xe9"),
    "a quotation mark inside": _inserted(b'"'),
    "a comma inside": _inserted(b","),
    "a brace inside": _inserted(b"}"),
    "a lone surrogate inside": _inserted(b"\\ud800"),
    "more behind it": lambda content, draw: content + draw.randbytes(100),
    "one bit": _flipped(1),
    "eight bits": _flipped(8),
    "a hundred bits": _flipped(100),
    "shuffled blocks": lambda content, draw: b"".join(
        draw.sample(blocks := [content[at : at + 16] for at in range(0, len(content), 16)], len(blocks))
    ),
}


def _replaced(make: Callable[[Path], None]) -> Replace:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


#: In the place of a file stands something else.
REPLACED: dict[str, Replace] = {
    "a folder": _replaced(lambda path: path.mkdir()),
    "a pipe": _replaced(os.mkfifo),
    "a link to itself": _replaced(lambda path: path.symlink_to(path.name)),
    "a link to nothing": _replaced(lambda path: path.symlink_to("gone")),
    "a device": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "nothing": _replaced(lambda path: None),
}

DAMAGES = (*RUINED, *HURT, *REPLACED)
#: A file in which one of these is done cannot be read, whatever its kind.
SURELY_BAD = {*RUINED, *REPLACED}


def damage(path: Path, name: str) -> None:
    """Do a damage to a file, the same for the same name and file name."""
    if name in REPLACED:
        REPLACED[name](path)
    else:
        draw = random.Random(f"{path.name}/{name}")
        path.write_bytes({**RUINED, **HURT}[name](path.read_bytes(), draw))
