"""Compressed files: recognized by their first bytes, and unpacked no further than disk and memory can bear."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from models.files.plain import UnreadableFile


def _members(archive: zipfile.ZipFile) -> list[str]:
    """The files of an archive, without what a Mac adds."""
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    return [name for name in names if not PurePosixPath(name).name.startswith(".")]


def _unzipped(file: BinaryIO) -> Any:
    archive = zipfile.ZipFile(file)
    names = _members(archive)
    if len(names) != 1:
        shown = ", ".join(names[:4])
        raise ValueError(f"it holds {len(names)} files ({shown}), where one is to be; unpack it")
    return archive.open(names[0])


def _by_arrow(codec: str) -> Callable[[BinaryIO], Any]:
    def opener(file: BinaryIO) -> Any:
        import pyarrow

        return pyarrow.CompressedInputStream(file, codec)

    return opener


#: First bytes of a compressed file -> what opens it.
COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _by_arrow("zstd"),
    b"\x04\x22\x4d\x18": _by_arrow("lz4"),
    b"PK\x03\x04": _unzipped,
}

#: Endings of compressed files.
ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")

#: A file that unpacks to more than this many times its size is a bomb: texts and tables shrink to a third to a
#: thirtieth, repetitive logs to a hundredth; zeros, by gzip, to a thousandth, and by bz2 to a millionth.
LARGEST_RATIO = 200
#: Unpacked bytes allowed for any file, however small: 64 MiB take under a second.
ALWAYS_ALLOWED = 2**26


def ending(path: Path) -> str:
    """The ending of a file's name in lower case, without that of compression; of a zip, that of the file in it."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".zip"] and path.is_file():
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            if names := _members(archive):
                return PurePosixPath(names[0]).suffix.lower()
    return next((suffix for suffix in reversed(suffixes) if suffix not in ENDINGS), "")


def begins_packed(head: bytes) -> bool:
    """Whether a file that begins so is compressed."""
    return head.startswith(tuple(COMPRESSED))


def is_packed(path: Path) -> bool:
    """Whether a file is compressed."""
    with open(path, "rb") as file:
        return begins_packed(file.read(8))


class _Measured(io.RawIOBase):
    """Unpacked bytes of a file, up to :data:`LARGEST_RATIO` times the bytes read of it."""

    def __init__(self, path: Path, opener: Callable[[BinaryIO], Any]) -> None:
        self._packed = open(path, "rb", buffering=0)  # noqa: SIM115 - until close()
        self._file, self._path, self._done = opener(self._packed), path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._file.read(len(buffer))
        except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as problem:
            raise UnreadableFile(self._path, f"cannot be unpacked: {' '.join(str(problem).split())}") from None
        buffer[: len(found)] = found
        self._done += len(found)
        if self._done > max(ALWAYS_ALLOWED, LARGEST_RATIO * self._packed.tell()):
            wrong = f"says more than {LARGEST_RATIO} times its own size, {self._done >> 20:,} MiB so far; unpack it"
            raise UnreadableFile(self._path, f"{wrong}, and see what is in it")
        return len(found)

    def close(self) -> None:
        self._packed.close()
        super().close()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked if it is compressed. Raises UnreadableFile if it cannot be unpacked here, or is not
    compressed as its name says; later, while it is read, if it is a bomb."""
    with open(path, "rb") as file:
        head = file.read(8)
        if not begins_packed(head):
            if path.suffix.lower() in ENDINGS:
                raise UnreadableFile(path, f"is not packed, though it is called {path.suffix}; rename it")
            file.seek(0)
            yield file
            return
    opener = next(opener for magic, opener in COMPRESSED.items() if head.startswith(magic))
    try:
        measured = _Measured(path, opener)
    except (ValueError, IndexError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as problem:
        raise UnreadableFile(path, f"cannot be unpacked: {problem}") from None
    with io.BufferedReader(measured, 2**16) as buffered:
        yield buffered
