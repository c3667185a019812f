"""Read the rows of the local files that a recipe names.

:mod:`toolkit.data.folder_data` reads folders, :mod:`toolkit.data.hub_data` and :mod:`toolkit.data.hub_streaming` read
hub data sets. Rows of local files are cached by the files' content (:mod:`toolkit.files.cache`); the library's cache by
path and time stamp is not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict, Features

from models.files.plain import UnreadableFileError, plain_file
from toolkit.data.rows import load_stored_rows, write_rows
from toolkit.data.splits import SPLITS
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.compression import content_ending
from toolkit.files.csv_rows import Layout, default_delimiter, detect_delimiter, read_first_rows
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.files.kinds import BINARY_KINDS, KIND_BY_ENDING
from toolkit.files.sheet_rows import find_sheet_table
from toolkit.files.tables import check_unique_columns, convert_content_errors, read_arrow_chunks
from toolkit.files.text_encoding import WrongEncodingError, check_encoding, open_text
from toolkit.recipe.keys import ENCODED_KINDS
from toolkit.recipe.recipe import Recipe, require_setting

#: The keys of the recipe's data section that name a column, in addition to ``text`` and ``label``.
COLUMN_KEYS = ("split_column", "control", "id", "question", "context", "answers", "document")


def load_files(recipe: Recipe, read_file: Callable[[Recipe, str, Path], Dataset]) -> DatasetDict:
    """Read the files of each split separately, so that an error names the line of the split."""
    splits = DatasetDict()
    for split_name in SPLITS:
        file_pattern = getattr(recipe.data.files, split_name)
        if file_pattern is None:
            continue
        paths = recipe.resolve_all(file_pattern)
        if not paths or not os.path.lexists(paths[0]):
            raise recipe.error(
                f"data.files.{split_name}", f"{file_pattern}: no such file{_describe_search(recipe, file_pattern)}"
            )
        try:
            parts = [read_file(recipe, split_name, plain_file(path)) for path in paths]
            splits[split_name] = parts[0] if len(parts) == 1 else _concatenate_rows(recipe, split_name, paths, parts)
        except UnreadableFileError as error:
            raise recipe.error(f"data.files.{split_name}", str(error)) from None
        except OSError as error:
            reason = error.strerror or error
            raise recipe.error(f"data.files.{split_name}", f"cannot read {file_pattern}: {reason}") from None
    return splits


def _concatenate_rows(recipe: Recipe, split_name: str, paths: Sequence[Path], parts: Sequence[Dataset]) -> Dataset:
    """Return the rows of several files of a split in one data set.

    Args:
        recipe: recipe of the run.
        split_name: split of the recipe.
        paths: files of the split.
        parts: rows of each file.

    Raises:
        UserError: the columns of the files differ.
    """
    first_features = parts[0].features
    for path, part in zip(paths, parts, strict=True):
        if part.features != first_features:
            differing_columns = sorted(
                name
                for name in {**first_features, **part.features}
                if first_features.get(name) != part.features.get(name)
            )
            message = f"{path} has not the columns of {paths[0]}: they differ in {', '.join(differing_columns)}"
            raise recipe.error(f"data.files.{split_name}", message)
    return datasets.concatenate_datasets(list(parts))


def read_named_texts(recipe: Recipe, sources_key: str = "sources") -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file of ``data.sources``, in the recipe's order.

    Args:
        recipe: recipe with the data section.
        sources_key: key of the data section that maps names to files.

    Raises:
        UserError: a file is missing, empty or in another encoding than the recipe's.
    """
    for name, files in require_setting(getattr(recipe.data, sources_key)).items():
        for index, file_pattern in enumerate([files] if isinstance(files, str) else files):
            key = ("data", sources_key, name) if isinstance(files, str) else ("data", sources_key, name, str(index))
            paths = recipe.resolve_all(file_pattern)
            if not paths:
                raise recipe.error(key, f"{file_pattern}: no such file{_describe_search(recipe, file_pattern)}")
            for path in paths:
                path_text = file_pattern if len(paths) == 1 else path
                try:
                    text = read_plain_text(recipe, path)
                except OSError as error:
                    raise recipe.error(key, f"cannot read {path_text}: {error.strerror}") from None
                except UnreadableFileError as error:
                    raise recipe.error(key, str(error)) from None
                if not text.strip():
                    raise recipe.error(key, f"{path_text} is empty")
                yield name, text


def read_plain_text(recipe: Recipe, path: Path) -> str:
    """Return the text of a file in the recipe's encoding, with line feeds as line ends."""
    _check_encoding(recipe, plain_file(path))
    with open_text(path, recipe.data.encoding or "utf-8") as file:
        return file.read()


def read_file(recipe: Recipe, split_name: str, path: Path) -> Dataset:
    """Return the rows of a file of the recipe's kind, cached by its content.

    Args:
        recipe: recipe with the data section.
        split_name: name of the split that uses the rows.
        path: file.

    Raises:
        UnreadableFileError: the content is not of this kind.
        UserError: the recipe's kind, encoding or delimiter does not match the file.
    """
    kind, data = recipe.data.dataset, recipe.data
    if (kind_by_name := KIND_BY_ENDING.get(content_ending(path))) in BINARY_KINDS and kind_by_name != kind:
        raise recipe.error(
            "data.dataset", f"{kind}: {path} is not {kind} by its name; set data.dataset: {kind_by_name}"
        )
    if kind in ENCODED_KINDS:
        _check_encoding(recipe, path)
    columns = tuple(data.columns) if data.columns else None
    layout = Layout(encoding=data.encoding or "utf-8", quote=data.quote or '"', columns=columns)
    if kind == "csv":
        layout = replace(layout, delimiter=_check_delimiter(recipe, path, layout))

    def write_file_rows(unfinished_folder: Path) -> None:
        (unfinished_folder / "train").mkdir()
        with convert_content_errors(path):
            schema, tables = read_arrow_chunks(path, kind, layout)
            write_rows(Features.from_arrow_schema(schema), tables, unfinished_folder / "train" / "rows.arrow")

    if kind == "xlsx":
        with convert_content_errors(path):
            for note in find_sheet_table(path).notes:
                recipe.findings.note(f"{path.name}: {note}")
    key = digest_parts("file", kind, file_sha256(path), repr(layout), datasets.__version__, CACHE_VERSION)
    return load_stored_rows(get_or_create_entry("rows", key, write_file_rows))["train"]


def _check_encoding(recipe: Recipe, path: Path) -> None:
    """Check that a file is in the encoding that the recipe sets, or UTF-8."""
    try:
        check_encoding(path, recipe.data.encoding or "utf-8")
    except WrongEncodingError as error:
        raise recipe.error("data.encoding", f"{path} {error}") from None


def list_named_columns(recipe: Recipe) -> list[str]:
    """Return the columns that the recipe's data section names, except in ``data.filter``."""
    data = recipe.data
    column_names = [*(getattr(data, key) for key in COLUMN_KEYS), *data.label_columns]
    return [column for column in column_names if column] + data.text_columns


def _check_delimiter(recipe: Recipe, path: Path, layout: Layout) -> str:
    """Return the delimiter of a csv file: the recipe's, or the default of the file's ending.

    Raises:
        UserError: the file seems to have another delimiter, which the message names.
        UnreadableFileError: the header has a column of the recipe more than once.
    """
    layout = replace(layout, delimiter=recipe.data.delimiter or default_delimiter(path))
    header = next(iter(read_first_rows(path, layout, 1)), [])
    check_unique_columns(path, layout.columns or header, list_named_columns(recipe))
    if (likely_delimiter := detect_delimiter(path, layout, list_named_columns(recipe))) != layout.delimiter:
        header_text = repr(layout.delimiter.join(header)[:60])
        missing = "" if recipe.data.delimiter else "missing: "
        message = f"{missing}the columns of {header_text} seem to be parted by {likely_delimiter!r}"
        raise recipe.error("data.delimiter", f"{message}; set data.delimiter: {json.dumps(likely_delimiter)}")
    return layout.delimiter


def _describe_search(recipe: Recipe, file_pattern: str) -> str:
    """Return the end of a message that names the folders in which a relative path was searched."""
    return (
        "" if Path(file_pattern).is_absolute() else f" here ({Path.cwd()}) or beside the recipe ({recipe.path.parent})"
    )
