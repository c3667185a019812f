"""Read the rows of a recipe's files. :mod:`toolkit.data.folder_data` reads those of a folder,
:mod:`toolkit.data.hub_data` and :mod:`toolkit.data.hub_streaming` those of the hub; :mod:`toolkit.data.source_names`
says what may be named.

Rows of local files are cached by the files' content (:mod:`toolkit.files.cache`); the library's cache by path and time
stamp is not used.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict

from models.files.plain import UnreadableFile, plain_file
from toolkit.data.file_check import check_file
from toolkit.data.rows import (
    READERS,
    as_written,
    explained,
    in_train,
    likely_delimiter,
    prepare,
    quietly,
    scratch_in,
    stored,
    wrong_delimiter,
)
from toolkit.data.splits import SPLITS
from toolkit.files.cache import CACHE_VERSION, kept
from toolkit.files.digest import digest
from toolkit.files.packed import begins_packed
from toolkit.files.text_encoding import WrongEncoding, check_encoding, write_as_utf8
from toolkit.files.whole import sha256
from toolkit.recipe.keys import ENCODED_KINDS
from toolkit.recipe.recipe import Recipe, settled

#: Bytes of a file that takes about two seconds to read; for larger ones a progress bar is shown.
LARGE_FILE = 100 * 2**20

#: Bytes of a csv file's first line that are searched for its delimiter.
LONGEST_HEADER = 2**16


def from_files(recipe: Recipe, read_file: Callable[[Recipe, str, Path], Dataset]) -> DatasetDict:
    """Read each split's files on their own, so that an error is at its line."""
    splits = DatasetDict()
    for split in SPLITS:
        written = getattr(recipe.data.files, split)
        if written is None:
            continue
        paths = recipe.resolve_all(written)
        if not paths or not os.path.lexists(paths[0]):
            raise recipe.error(f"data.files.{split}", f"{written}: no such file{_looked_in(recipe, written)}")
        try:
            parts = [read_file(recipe, split, plain_file(path)) for path in paths]
            splits[split] = parts[0] if len(parts) == 1 else _together(recipe, split, paths, parts)
        except UnreadableFile as problem:
            raise recipe.error(f"data.files.{split}", str(problem)) from None
        except OSError as problem:
            reason = problem.strerror or problem
            raise recipe.error(f"data.files.{split}", f"cannot read {written}: {reason}") from None
    return splits


def _together(recipe: Recipe, split: str, paths: Sequence[Path], parts: Sequence[Dataset]) -> Dataset:
    """The rows of several files, one after the other.

    Raises:
        UserError: their columns differ.
    """
    first = parts[0].features
    for path, part in zip(paths, parts, strict=True):
        if part.features != first:
            differ = sorted(name for name in {**first, **part.features} if first.get(name) != part.features.get(name))
            wrong = f"{path} has not the columns of {paths[0]}: they differ in {', '.join(differ)}"
            raise recipe.error(f"data.files.{split}", wrong)
    return datasets.concatenate_datasets(list(parts))


def named_texts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the texts of ``data.sources``, each with the name that it is under, in the recipe's order.

    Raises:
        UserError: a file that is missing, empty or in another encoding than the recipe says.
    """
    for name, files in settled(recipe.data.sources).items():
        for index, written in enumerate([files] if isinstance(files, str) else files):
            key = ("data", "sources", name) if isinstance(files, str) else ("data", "sources", name, str(index))
            paths = recipe.resolve_all(written)
            if not paths:
                raise recipe.error(key, f"{written}: no such file{_looked_in(recipe, written)}")
            for path in paths:
                shown = written if len(paths) == 1 else path
                try:
                    text = plain_text(recipe, path)
                except OSError as problem:
                    raise recipe.error(key, f"cannot read {shown}: {problem.strerror}") from None
                except UnreadableFile as problem:
                    raise recipe.error(key, str(problem)) from None
                if not text.strip():
                    raise recipe.error(key, f"{shown} is empty")
                yield name, text


def plain_text(recipe: Recipe, path: Path) -> str:
    """Decode a file by the recipe's encoding; line ends become line feeds."""
    encoding = recipe.data.encoding or "utf-8"
    try:
        check_encoding(plain_file(path), encoding)
    except WrongEncoding as problem:
        raise recipe.error("data.encoding", f"{path} {problem}") from None
    text = path.read_bytes().decode(encoding).removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_file(recipe: Recipe, split: str, path: Path) -> Dataset:
    """Rows of a file of the recipe's kind, cached by its content, whatever its name and time stamp.

    Raises:
        UnreadableFile: it is not of that kind.
    """
    kind = recipe.data.dataset
    settings = {"sep": delimiter_of(recipe, path)} if kind == "csv" else {}

    def fill(unfinished: Path) -> None:
        with scratch_in(unfinished) as scratch:
            link = scratch / f"data{_plain_suffixes(path)}"  # the library does not take :: as part of a name
            _in_utf8(recipe, path, link)
            if kind == "csv" and recipe.data.delimiter is None:
                _check_delimiter(recipe, link, settings["sep"])
            check_file(link, path, kind)
            with explained(path, kind, link, settings.get("sep", ",")):
                reader = getattr(importlib.import_module(READERS[kind]), kind.capitalize())
                builder = reader(cache_dir=str(scratch / "cache"), data_files=in_train(link), **settings)
                prepare(as_written(builder), scratch, unfinished)

    call = kept if path.stat().st_size > LARGE_FILE else _kept_quietly
    encoding = recipe.data.encoding or "utf-8"
    key = digest(kind, sha256(path), str(settings), encoding, datasets.__version__, CACHE_VERSION)
    return stored(call("rows", key, fill))["train"]


def delimiter_of(recipe: Recipe, path: Path) -> str:
    """Delimiter of a csv file: the recipe's, else a tab for .tsv and .tab, else a comma."""
    is_tsv = any(suffix.lower() in (".tsv", ".tab") for suffix in path.suffixes[-2:])
    return recipe.data.delimiter or ("\t" if is_tsv else ",")


def _in_utf8(recipe: Recipe, path: Path, link: Path) -> None:
    """Make ``link`` the file in UTF-8: converted if the recipe names an encoding, else a link.

    Raises:
        UserError: it is in another encoding than the recipe says.
        UnreadableFile: it is packed, and the recipe names an encoding.
    """
    encoding = recipe.data.encoding
    with open(path, "rb") as file:
        packed = begins_packed(file.read(8))
    if packed and encoding is not None:
        raise UnreadableFile(path, f"is packed, and cannot be read as {encoding}; unpack it")
    try:
        if encoding is not None:
            write_as_utf8(path, encoding, link)
            return
        if not packed and recipe.data.dataset in ENCODED_KINDS:
            check_encoding(path)
    except WrongEncoding as problem:
        raise recipe.error("data.encoding", f"{path} {problem}") from None
    link.symlink_to(path.absolute())


def _check_delimiter(recipe: Recipe, file: Path, used: str) -> None:
    """Check that a csv file whose header is a single column has no other delimiter.

    Raises:
        UserError: it seems to have one, which is named.
    """
    with open(file, "rb") as opened:
        head = opened.read(LONGEST_HEADER)
    header = head.decode("utf-8", "ignore").removeprefix("\ufeff").lstrip("\r\n").partition("\n")[0]
    if begins_packed(head) or used in header:
        return
    if likely := likely_delimiter(header):
        raise recipe.error("data.delimiter", f"missing: {wrong_delimiter(header, likely)}")


def _kept_quietly(*arguments: Any) -> Path:
    return quietly(kept, *arguments)


def _plain_suffixes(path: Path) -> str:
    return "".join(suffix for suffix in path.suffixes[-2:] if re.fullmatch(r"\.\w+", suffix))


def _looked_in(recipe: Recipe, written: str) -> str:
    """Where a relative path was looked for."""
    return "" if Path(written).is_absolute() else f" here ({Path.cwd()}) or beside the recipe ({recipe.path.parent})"
