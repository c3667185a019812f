"""Read the rows of a recipe's files. :mod:`toolkit.data.folder_data` reads those of a folder,
:mod:`toolkit.data.hub_data` and :mod:`toolkit.data.hub_streaming` those of the hub; :mod:`toolkit.data.source_names`
says what may be named.

Rows of local files are cached by the files' content (:mod:`toolkit.files.cache`); the library's cache by path and time
stamp is not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict, Features

from models.files.plain import UnreadableFile, plain_file
from toolkit.data.rows import stored, write_rows
from toolkit.data.splits import SPLITS
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.csv_rows import Layout, default_delimiter, detect_delimiter, read_first_rows
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.files.kinds import BINARY_KINDS, KIND_BY_ENDING
from toolkit.files.packed import content_ending
from toolkit.files.sheet_rows import find_sheet_table
from toolkit.files.tables import check_unique_columns, convert_content_errors, read_arrow_chunks
from toolkit.files.text_encoding import WrongEncodingError, check_encoding, open_text
from toolkit.recipe.keys import ENCODED_KINDS
from toolkit.recipe.recipe import Recipe, settled

#: The keys of the recipe's data section that name a column, beside ``text`` and ``label``.
COLUMN_KEYS = ("split_column", "control", "id", "question", "context", "answers", "document")


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
    """The rows of several files, one after the other. Raises UserError if their columns differ."""
    first = parts[0].features
    for path, part in zip(paths, parts, strict=True):
        if part.features != first:
            differ = sorted(name for name in {**first, **part.features} if first.get(name) != part.features.get(name))
            wrong = f"{path} has not the columns of {paths[0]}: they differ in {', '.join(differ)}"
            raise recipe.error(f"data.files.{split}", wrong)
    return datasets.concatenate_datasets(list(parts))


def named_texts(recipe: Recipe, sources: str = "sources") -> Iterator[tuple[str, str]]:
    """Yield the texts of ``data.sources``, or of another key like it, each with the name that it is under, in the
    recipe's order. Raises UserError for a file that is missing, empty or in another encoding than the recipe says."""
    for name, files in settled(getattr(recipe.data, sources)).items():
        for index, written in enumerate([files] if isinstance(files, str) else files):
            key = ("data", sources, name) if isinstance(files, str) else ("data", sources, name, str(index))
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
    _check_encoding(recipe, plain_file(path))
    with open_text(path, recipe.data.encoding or "utf-8") as file:
        return file.read()


def read_file(recipe: Recipe, split: str, path: Path) -> Dataset:
    """Rows of a file of the recipe's kind, cached by its content, whatever its name and time stamp. Raises
    UnreadableFile if it is not of that kind."""
    kind, data = recipe.data.dataset, recipe.data
    if (by_name := KIND_BY_ENDING.get(content_ending(path))) in BINARY_KINDS and by_name != kind:
        raise recipe.error("data.dataset", f"{kind}: {path} is not {kind} by its name; set data.dataset: {by_name}")
    if kind in ENCODED_KINDS:
        _check_encoding(recipe, path)
    columns = tuple(data.columns) if data.columns else None
    layout = Layout(encoding=data.encoding or "utf-8", quote=data.quote or '"', columns=columns)
    if kind == "csv":
        layout = replace(layout, delimiter=_delimiter(recipe, path, layout))

    def fill(unfinished: Path) -> None:
        (unfinished / "train").mkdir()
        with convert_content_errors(path):
            schema, tables = read_arrow_chunks(path, kind, layout)
            write_rows(Features.from_arrow_schema(schema), tables, unfinished / "train" / "rows.arrow")

    if kind == "xlsx":
        with convert_content_errors(path):
            for note in find_sheet_table(path).notes:
                recipe.found.note(f"{path.name}: {note}")
    key = digest_parts("file", kind, file_sha256(path), repr(layout), datasets.__version__, CACHE_VERSION)
    return stored(get_or_create_entry("rows", key, fill))["train"]


def _check_encoding(recipe: Recipe, path: Path) -> None:
    try:
        check_encoding(path, recipe.data.encoding or "utf-8")
    except WrongEncodingError as problem:
        raise recipe.error("data.encoding", f"{path} {problem}") from None


def named_columns(recipe: Recipe) -> list[str]:
    """The columns that the recipe's data section names, but for those of ``data.filter``."""
    data = recipe.data
    named = [*(getattr(data, key) for key in COLUMN_KEYS), *data.label_columns]
    return [column for column in named if column] + data.text_columns


def _delimiter(recipe: Recipe, path: Path, layout: Layout) -> str:
    """Delimiter of a csv file: the recipe's, else the usual one. Raises UserError if it seems to have another, which is
    named, and UnreadableFile if its header has a column twice that the recipe names."""
    layout = replace(layout, delimiter=recipe.data.delimiter or default_delimiter(path))
    header = next(iter(read_first_rows(path, layout, 1)), [])
    check_unique_columns(path, layout.columns or header, named_columns(recipe))
    if (likely := detect_delimiter(path, layout, named_columns(recipe))) != layout.delimiter:
        shown = repr(layout.delimiter.join(header)[:60])
        missing = "" if recipe.data.delimiter else "missing: "
        wrong = f"{missing}the columns of {shown} seem to be parted by {likely!r}"
        raise recipe.error("data.delimiter", f"{wrong}; set data.delimiter: {json.dumps(likely)}")
    return layout.delimiter


def _looked_in(recipe: Recipe, written: str) -> str:
    """Where a relative path was looked for."""
    return "" if Path(written).is_absolute() else f" here ({Path.cwd()}) or beside the recipe ({recipe.path.parent})"
