"""Damages of files, for tests that apply each damage to every kind of input file."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

#: A damage of the content: (bytes, random numbers) -> bytes.
Change = Callable[[bytes, random.Random], bytes]
#: A damage of a path, which replaces the file by something that cannot be read.
Replace = Callable[[Path], None]

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not Found</body></html>\n"


def _flip_bits(bits: int) -> Change:
    def change(content: bytes, draw: random.Random) -> bytes:
        damaged_content = bytearray(content)
        for _ in range(bits):
            damaged_content[draw.randrange(len(damaged_content))] ^= 1 << draw.randrange(8)
        return bytes(damaged_content)

    return change


def _as_text(encoding: str) -> Change:
    return lambda content, draw: content.decode("latin-1").encode(encoding)


def _insert_bytes(inserted_bytes: bytes) -> Change:
    def change(content: bytes, draw: random.Random) -> bytes:
        place = draw.randrange(len(content))
        return content[:place] + inserted_bytes + content[place:]

    return change


#: Damages after which no file is valid, whatever its kind.
ALWAYS_INVALID: dict[str, Change] = {
    "empty": lambda content, draw: b"",
    "only zeros": lambda content, draw: bytes(len(content)),
    "a pointer of git-LFS": lambda content, draw: LFS,
    "random bytes": lambda content, draw: draw.randbytes(4096),
    "bytes ff": lambda content, draw: b"\xff" * 512,
    "UTF-16": _as_text("utf-16"),
    "UTF-32": _as_text("utf-32"),
}

#: Damages after which a file may still be valid, with the same or another content.
POSSIBLY_VALID: dict[str, Change] = {
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
    "a zero inside": _insert_bytes(b"\0"),
    "a byte of Latin-1 inside": _insert_bytes(b"\xe9"),
    "a quotation mark inside": _insert_bytes(b'"'),
    "a comma inside": _insert_bytes(b","),
    "a brace inside": _insert_bytes(b"}"),
    "a lone surrogate inside": _insert_bytes(b"\\ud800"),
    "more behind it": lambda content, draw: content + draw.randbytes(100),
    "one bit": _flip_bits(1),
    "eight bits": _flip_bits(8),
    "a hundred bits": _flip_bits(100),
    "shuffled blocks": lambda content, draw: b"".join(
        draw.sample(blocks := [content[at : at + 16] for at in range(0, len(content), 16)], len(blocks))
    ),
}


def _replace_by(make: Callable[[Path], None]) -> Replace:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


#: Damages that replace the file.
REPLACEMENTS: dict[str, Replace] = {
    "a folder": _replace_by(lambda path: path.mkdir()),
    "a pipe": _replace_by(os.mkfifo),
    "a link to itself": _replace_by(lambda path: path.symlink_to(path.name)),
    "a link to nothing": _replace_by(lambda path: path.symlink_to("gone")),
    "a device": _replace_by(lambda path: path.symlink_to("/dev/zero")),
    "nothing": _replace_by(lambda path: None),
}

DAMAGES = (*ALWAYS_INVALID, *POSSIBLY_VALID, *REPLACEMENTS)
#: Damages after which a file of any kind is unreadable.
UNREADABLE = {*ALWAYS_INVALID, *REPLACEMENTS}


def damage(path: Path, name: str) -> None:
    """Damage a file; the result depends only on the names of the damage and of the file."""
    if name in REPLACEMENTS:
        REPLACEMENTS[name](path)
    else:
        draw = random.Random(f"{path.name}/{name}")
        path.write_bytes({**ALWAYS_INVALID, **POSSIBLY_VALID}[name](path.read_bytes(), draw))
