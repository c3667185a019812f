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

from models.files.plain import UnreadableFile, plain_file, read_text
from toolkit.data.dataset_errors import check_reader, load_explained
from toolkit.data.rows import READERS, as_written, prepare, quietly, stored
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.csv_rows import Layout
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.files.tables import convert_content_errors, count_stored_columns, read_whole_table
from toolkit.files.text_encoding import check_encoding
from toolkit.machine.scratch import scratch_folder
from toolkit.recipe.recipe import Recipe

#: Files of a data folder that may say where its data is.
CARDS = ("README.md", ".huggingface.yaml")
#: Settings of a folder's files that do not change what its rows are, or that the check of them follows.
LAYOUT = {"name", "version", "data_dir", "data_files", "description", "features", "sep", "delimiter", "encoding"}
#: Most columns, or keys of JSON, of a file of a folder. With so many, `datasets` takes 5 seconds to read 20 rows of
#: csv, or 2,000 rows of JSON with a new key each; with twice as many, four times as long.
MOST_COLUMNS = 2048


def from_folder(recipe: Recipe, folder: Path) -> DatasetDict:
    """The splits of a folder of data files, as `datasets` finds them by their names or the folder's card. Raises
    UserError at the recipe's line if the folder holds no data, other than plain data, or names data elsewhere."""
    folder = folder.resolve()
    _check_cards(recipe, folder)
    with scratch_folder("toolkit-") as scratch:
        known = _named_plainly(folder, scratch)
        with load_explained(recipe, scratch=known):
            builder = datasets.load_dataset_builder(str(known), recipe.data.config, cache_dir=str(scratch / "cache"))
        check_reader(recipe, builder, READERS.values())
        parts: list[object] = [type(builder).__module__, _settings(builder), datasets.__version__, CACHE_VERSION]
        for split, files in builder.config.data_files.items():
            parts += [split, *(_checked_content(recipe, folder, known, Path(file), builder) for file in files)]

        def fill(unfinished: Path) -> None:
            with scratch_folder("rows-", parent_folder=unfinished) as inner, load_explained(recipe, scratch=known):
                again = datasets.load_dataset_builder(str(known), recipe.data.config, cache_dir=str(inner / "cache"))
                prepare(as_written(again), inner, unfinished)

        return stored(quietly(get_or_create_entry, "rows", digest_parts(*map(str, parts)), fill))


def _named_plainly(folder: Path, scratch: Path) -> Path:
    """Return a path that is no pattern to the library: for one with brackets in it, a folder of links to the files."""
    if not re.search(r"[][*?]|::", str(folder)):
        return folder
    known = scratch / "data"
    for path, _, files in os.walk(folder):
        below = known / os.path.relpath(path, folder)
        below.mkdir(parents=True, exist_ok=True)
        for file in files:
            (below / file).symlink_to(os.path.join(path, file))
    return known


def _checked_content(recipe: Recipe, folder: Path, known: Path, file: Path, builder: Any) -> str:
    """The SHA-256 of a folder's data file. Raises UserError if it lies elsewhere, or cannot be read."""
    named = folder / file.relative_to(known) if file.is_relative_to(known) else file
    try:
        if not Path(os.path.normpath(file)).is_relative_to(known) or file.suffix == ".zip":
            raise UnreadableFile(named, f"is no plain data file of the folder {folder}")
        _check_rows(plain_file(file), builder)
        return file_sha256(file)
    except (OSError, ValueError, EOFError) as problem:
        reason = " ".join(str(problem).split())
        raise recipe.error("data.dataset", reason.replace(str(known), str(folder))) from None


def _check_rows(file: Path, builder: Any) -> None:
    """Refuse a file of csv or JSON as :mod:`toolkit.files.tables` does, unless the card says how to read it. Raises
    UnreadableFile also for what would cost `datasets` minutes, gigabytes or a crash."""
    kind = next(kind for kind, module in READERS.items() if module == type(builder).__module__)
    config, plain = vars(builder.config), vars(type(builder.config)())
    if kind not in ("csv", "json") or any(config[key] != plain[key] for key in plain.keys() - LAYOUT):
        return
    encoding = config["encoding"] or "utf-8"
    with convert_content_errors(file):
        check_encoding(file, encoding)
        table = read_whole_table(file, kind, Layout(config.get("sep", ","), encoding=encoding))
    if max(len(table.names), count_stored_columns(table.schema.types if table.schema else ())) > MOST_COLUMNS:
        raise UnreadableFile(file, f"has more than {MOST_COLUMNS:,} columns; leave out what is not used")


def _settings(builder: Any) -> str:
    """Settings that decide how the files are read, such as the delimiter that a card names."""
    return repr({key: value for key, value in vars(builder.config).items() if key not in ("data_files", "data_dir")})


def _check_cards(recipe: Recipe, folder: Path) -> None:
    """Check that a folder's card names no data elsewhere: reading that would use the network."""
    for name in CARDS:
        card = folder / name
        if not os.path.lexists(card):
            continue
        try:
            text = read_text(card) if card.stat().st_size else ""
            block = re.match(r"\s*---\s*\n(.*?)\n---", text, re.DOTALL) if name == "README.md" else None
            yaml_text = block.group(1) if block else "" if name == "README.md" else text
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(yaml_text, Loader=yaml.SafeLoader)):
                raise ValueError("aliases (*) are not read")  # a few of them can stand for gigabytes
            content = yaml.safe_load(yaml_text)
        except (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError) as problem:
            raise recipe.error("data.dataset", f"cannot read {card}: {' '.join(str(problem).split())[:300]}") from None
        configs = content.get("configs") if isinstance(content, dict) else None
        for path in _texts(configs, ("data_files", "data_dir")):
            if "://" in path or path.startswith(("/", "~")) or ".." in path.split("/"):
                raise recipe.error("data.dataset", f"{card} names data outside of its folder: {path}")


def _texts(content: Any, keys: Collection[str], inside: bool = False) -> Iterator[str]:
    """Yield every text below one of these keys."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _texts(value, keys, inside or key in keys)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value, keys, inside)
    elif inside and isinstance(content, str):
        yield content
