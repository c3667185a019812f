"""The rows of a folder of data files, as `datasets` finds them by their names or by the folder's card."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import datasets
import yaml
from datasets import DatasetDict

from models.files.plain import UnreadableFileError, plain_file, read_text
from toolkit.data.dataset_errors import check_reader, explain_load_errors
from toolkit.data.rows import READER_MODULES, call_without_progress, keep_csv_text, load_stored_rows, prepare_rows
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.csv_rows import Layout
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.files.tables import convert_content_errors, count_stored_columns, read_whole_table
from toolkit.files.text_encoding import check_encoding
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.recipe import Recipe

#: Files of a data folder that may name its data files.
CARD_FILES = ("README.md", ".huggingface.yaml")
#: Settings of a folder's card that do not change its rows, or that the check of its files uses.
LAYOUT_SETTINGS = {
    "name",
    "version",
    "data_dir",
    "data_files",
    "description",
    "features",
    "sep",
    "delimiter",
    "encoding",
}
#: Most columns, or keys of JSON, of a file in a folder. With 2,048 columns, `datasets` takes 5 seconds for 20 rows of
#: csv, or for 2,000 rows of JSON that each add a key; with twice as many, it takes four times as long.
MAX_FOLDER_COLUMNS = 2048


def load_folder(recipe: Recipe, folder: Path) -> DatasetDict:
    """Return the splits of a folder of data files, which `datasets` finds by file names or the folder's card.

    Raises:
        UserError: the folder has no data or data that is not plain, or its card names data outside of the folder.
    """
    folder = folder.resolve()
    _check_cards(recipe, folder)
    with scratch_folder("toolkit-") as scratch:
        library_folder = _link_without_patterns(folder, scratch)
        with explain_load_errors(recipe, library_path=library_folder):
            builder = datasets.load_dataset_builder(
                str(library_folder), recipe.data.config, cache_dir=str(scratch / "cache")
            )
        check_reader(recipe, builder, READER_MODULES.values())
        key_parts: list[object] = [
            type(builder).__module__,
            _describe_settings(builder),
            datasets.__version__,
            CACHE_VERSION,
        ]
        for split_name, files in builder.config.data_files.items():
            key_parts += [
                split_name,
                *(_check_and_hash(recipe, folder, library_folder, Path(file), builder) for file in files),
            ]

        def write_splits(unfinished_folder: Path) -> None:
            with (
                scratch_folder("rows-", parent_folder=unfinished_folder) as inner_scratch,
                explain_load_errors(recipe, library_path=library_folder),
            ):
                new_builder = datasets.load_dataset_builder(
                    str(library_folder), recipe.data.config, cache_dir=str(inner_scratch / "cache")
                )
                prepare_rows(keep_csv_text(new_builder), inner_scratch, unfinished_folder)

        return load_stored_rows(
            call_without_progress(get_or_create_entry, "rows", digest_parts(*map(str, key_parts)), write_splits)
        )


def _link_without_patterns(folder: Path, scratch: Path) -> Path:
    """Return the folder, or a folder of links to its files if its path has characters of a pattern."""
    if not re.search(r"[][*?]|::", str(folder)):
        return folder
    link_folder = scratch / "data"
    for path, _, files in os.walk(folder):
        subfolder = link_folder / os.path.relpath(path, folder)
        subfolder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (subfolder / file).symlink_to(os.path.join(path, file))
    return link_folder


def _check_and_hash(recipe: Recipe, folder: Path, library_folder: Path, file: Path, builder: Any) -> str:
    """Check a data file of a folder, and return its SHA-256.

    Args:
        recipe: recipe of the run.
        folder: folder of the data.
        library_folder: folder as the library names it.
        file: data file to check.
        builder: the library's builder of the data set.

    Raises:
        UserError: the file is outside of the folder, or cannot be read.
    """
    user_path = folder / file.relative_to(library_folder) if file.is_relative_to(library_folder) else file
    try:
        if not Path(os.path.normpath(file)).is_relative_to(library_folder) or file.suffix == ".zip":
            raise UnreadableFileError(user_path, f"is no plain data file of the folder {folder}")
        _check_rows(plain_file(file), builder)
        return file_sha256(file)
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise recipe.error("data.dataset", reason.replace(str(library_folder), str(folder))) from None


def _check_rows(file: Path, builder: Any) -> None:
    """Check the rows of a csv or JSON file, unless the folder's card configures how the file is read.

    Args:
        file: data file to check.
        builder: the library's builder of the data set.

    Raises:
        UnreadableFileError: the file is not valid, or `datasets` would take minutes or gigabytes for it, or crash.
    """
    kind = next(kind for kind, module in READER_MODULES.items() if module == type(builder).__module__)
    config, default_config = vars(builder.config), vars(type(builder.config)())
    if kind not in ("csv", "json") or any(
        config[key] != default_config[key] for key in default_config.keys() - LAYOUT_SETTINGS
    ):
        return
    encoding = config["encoding"] or "utf-8"
    with convert_content_errors(file):
        check_encoding(file, encoding)
        table = read_whole_table(file, kind, Layout(config.get("sep", ","), encoding=encoding))
    if max(len(table.names), count_stored_columns(table.schema.types if table.schema else ())) > MAX_FOLDER_COLUMNS:
        raise UnreadableFileError(file, f"has more than {MAX_FOLDER_COLUMNS:,} columns; leave out what is not used")


def _describe_settings(builder: Any) -> str:
    """Return the settings of a builder that affect how files are read, such as the delimiter, as text.

    Args:
        builder: the library's builder of the data set.
    """
    return repr({key: value for key, value in vars(builder.config).items() if key not in ("data_files", "data_dir")})


def _check_cards(recipe: Recipe, folder: Path) -> None:
    """Raise UserError if a folder's card names data outside of the folder, which might use the network."""
    for name in CARD_FILES:
        card = folder / name
        if not os.path.lexists(card):
            continue
        try:
            text = read_text(card) if card.stat().st_size else ""
            block = re.match(r"\s*---\s*\n(.*?)\n---", text, re.DOTALL) if name == "README.md" else None
            yaml_text = block.group(1) if block else "" if name == "README.md" else text
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(yaml_text, Loader=yaml.SafeLoader)):
                raise ValueError("aliases (*) are not read")  # a few aliases can expand to gigabytes
            card_content = yaml.safe_load(yaml_text)
        except (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError) as error:
            raise recipe.error("data.dataset", f"cannot read {card}: {' '.join(str(error).split())[:300]}") from None
        configs = card_content.get("configs") if isinstance(card_content, dict) else None
        for path in _find_texts(configs, ("data_files", "data_dir")):
            if "://" in path or path.startswith(("/", "~")) or ".." in path.split("/"):
                raise recipe.error("data.dataset", f"{card} names data outside of its folder: {path}")


def _find_texts(yaml_value: Any, text_keys: Collection[str], *, is_inside: bool = False) -> Iterator[str]:
    """Yield every text that is nested inside one of these keys of a YAML value."""
    if isinstance(yaml_value, dict):
        for key, value in yaml_value.items():
            yield from _find_texts(value, text_keys, is_inside=is_inside or key in text_keys)
    elif isinstance(yaml_value, list):
        for value in yaml_value:
            yield from _find_texts(value, text_keys, is_inside=is_inside)
    elif is_inside and isinstance(yaml_value, str):
        yield yaml_value
