"""Compressed files: recognized by their first bytes, and unpacked up to a limit that stops decompression bombs."""

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

from models.files.plain import UnreadableFileError


def _list_members(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the files in an archive, without the files that macOS adds."""
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    return [name for name in names if not PurePosixPath(name).name.startswith(".")]


def _open_zip_member(file: BinaryIO) -> Any:
    """Open the only file of a zip archive.

    Raises:
        ValueError: the archive does not hold exactly one file.
    """
    archive = zipfile.ZipFile(file)
    names = _list_members(archive)
    if len(names) != 1:
        first_names = ", ".join(names[:4])
        raise ValueError(f"it holds {len(names)} files ({first_names}), where one is to be; unpack it")
    return archive.open(names[0])


def _make_arrow_opener(codec: str) -> Callable[[BinaryIO], Any]:
    """Return a function that opens a compressed file by Arrow, given the name of the codec."""

    def open_stream(file: BinaryIO) -> Any:
        import pyarrow

        return pyarrow.CompressedInputStream(file, codec)

    return open_stream


#: First bytes of a compressed file -> function that opens it.
OPENER_BY_MAGIC: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _make_arrow_opener("zstd"),
    b"\x04\x22\x4d\x18": _make_arrow_opener("lz4"),
    b"PK\x03\x04": _open_zip_member,
}

#: Endings of compressed files' names.
COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")

#: Largest ratio of unpacked to packed bytes; a file beyond it is a bomb. Texts and tables reach ratios of 3 to 30,
#: repetitive logs 100, zeros 1,000 with gzip and a million with bz2.
MAX_RATIO = 200
#: Unpacked bytes that are allowed for any file; 64 MiB take less than a second.
ALWAYS_ALLOWED_BYTES = 2**26


def content_ending(path: Path) -> str:
    """Return the lower-case ending of a file's name without a compression's ending; of a zip, its first member's."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".zip"] and path.is_file():
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            if names := _list_members(archive):
                return PurePosixPath(names[0]).suffix.lower()
    return next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSED_ENDINGS), "")


def has_packed_magic(head: bytes) -> bool:
    """Return whether `head`, the first bytes of a file, shows that the file is compressed."""
    return head.startswith(tuple(OPENER_BY_MAGIC))


def is_packed(path: Path) -> bool:
    """Return whether a file is compressed, according to its first bytes."""
    with open(path, "rb") as file:
        return has_packed_magic(file.read(8))


class _LimitedUnpacker(io.RawIOBase):
    """Unpacked content of a file, which raises an error beyond :data:`MAX_RATIO` times the packed bytes read."""

    def __init__(self, path: Path, open_packed: Callable[[BinaryIO], Any]) -> None:
        self._packed = open(path, "rb", buffering=0)  # noqa: SIM115 - until close()
        self._unpacked, self._path, self._num_unpacked = open_packed(self._packed), path, 0

    def readable(self) -> bool:
        """Return True, as the io module requires."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read decompressed bytes into a buffer, and return their number.

        Raises:
            UnreadableFileError: the file is damaged, or expands beyond the limit.
        """
        try:
            block = self._unpacked.read(len(buffer))
        except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, zipfile.BadZipFile) as error:
            raise UnreadableFileError(self._path, f"cannot be unpacked: {' '.join(str(error).split())}") from None
        buffer[: len(block)] = block
        self._num_unpacked += len(block)
        if self._num_unpacked > max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * self._packed.tell()):
            message = (
                f"says more than {MAX_RATIO} times its own size, {self._num_unpacked >> 20:,} MiB so far; unpack it"
            )
            raise UnreadableFileError(self._path, f"{message}, and see what is in it")
        return len(block)

    def close(self) -> None:
        """Close the compressed file."""
        self._packed.close()
        super().close()


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, unpacked if it is compressed.

    Raises:
        UnreadableFileError: the file cannot be unpacked, or is not compressed although its name has such an ending.
            It is also raised while the file is read if the file is a decompression bomb.
    """
    with open(path, "rb") as file:
        head = file.read(8)
        if not has_packed_magic(head):
            if path.suffix.lower() in COMPRESSED_ENDINGS:
                raise UnreadableFileError(path, f"is not packed, though it is called {path.suffix}; rename it")
            file.seek(0)
            yield file
            return
    opener = next(opener for magic, opener in OPENER_BY_MAGIC.items() if head.startswith(magic))
    try:
        limited_file = _LimitedUnpacker(path, opener)
    except (ValueError, IndexError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UnreadableFileError(path, f"cannot be unpacked: {error}") from None
    with io.BufferedReader(limited_file, 2**16) as buffered_file:
        yield buffered_file
