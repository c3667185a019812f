"""The recipe, which describes a run completely. A schema checks its YAML, and all defaults are filled in.

This package checks only the recipe. Checks that need the data or a model's configuration follow later
(:mod:`toolkit.data.load`, :mod:`toolkit.finetune.model_config`). They report the line of a key through
:meth:`Recipe.error`, too.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PrivateAttr

from toolkit.errors import UserError
from toolkit.machine.home import expand_user_home
from toolkit.recipe import yaml_source
from toolkit.recipe.keys import (
    FILE_KEYS,
    FILE_KINDS,
    MOST_SEED,
    Card,
    Data,
    Model,
    Parity,
    Runtime,
    Section,
    Tokenizer,
    Tracking,
    Train,
)
from toolkit.recipe.yaml_source import KeyPath

Setting = TypeVar("Setting")


@dataclass
class Findings:
    """Facts that a run determines about its recipe. All copies of a recipe share them.

    Attributes:
        notes: lines for the user about how the recipe was read.
        commits: section -> commit of its hub repository, as resolved by :mod:`toolkit.recipe.revisions`.
        continues: description of the run whose weights this run starts with: its folder (``run``), the ``step`` of the
            weights, and the differences of its recipe (``differs``); empty for a run with other initial weights.
    """

    notes: list[str] = field(default_factory=list)
    commits: dict[str, str] = field(default_factory=dict)
    continues: dict[str, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a note unless it exists already."""
        if text not in self.notes:
            self.notes.append(text)


class Recipe(Section):
    """A checked recipe, loaded by :func:`load_recipe`. It is immutable; :meth:`with_values` returns a changed copy."""

    task: Literal[
        "classification",
        "question_answering",
        "language_modeling",
        "masked_language_modeling",
        "token_classification",
    ] = "classification"
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] = 42
    model: Model = Model()
    tokenizer: Tokenizer = Tokenizer()
    data: Data
    train: Train
    parity: Parity = Parity()
    tracking: Tracking = Tracking()
    runtime: Runtime = Runtime()
    card: Card = Card()

    _findings: Findings = PrivateAttr(default_factory=Findings)
    _source: yaml_source.Source = PrivateAttr(default_factory=lambda: yaml_source.Source("recipe"))

    @property
    def path(self) -> Path:
        """Path of the recipe's file."""
        return Path(self._source.name)

    @property
    def output_dir(self) -> Path:
        """Path of the run folder."""
        return Path(self.train.output_dir or Path("runs") / self.path.stem)

    @property
    def task_module(self) -> Any:
        """Module of the task, ``toolkit.tasks.TASK.task``."""
        return importlib.import_module(f"toolkit.tasks.{self.task}.task")  # not at the top: tasks import this module

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """Return a copy of the recipe with other values, by ``section.key``. The values are not checked."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            section, _, key = name.partition(".")
            sections.setdefault(section, {})[key] = value
        return self.model_copy(
            update={section: getattr(self, section).model_copy(update=keys) for section, keys in sections.items()}
        )

    @property
    def findings(self) -> Findings:
        """Facts about the recipe that were determined since it was read."""
        return self._findings

    @property
    def hub_weights(self) -> str | None:
        """Hub repository of `model.weights`; None for a folder, a Paddle file, and randomly initialized weights."""
        weights = self.model.weights
        local = weights is None or weights.endswith(".pdparams") or self.resolve(weights).is_dir()
        return None if local else weights

    @property
    def hub_dataset(self) -> str | None:
        """Hub repository of `data.dataset`; None for files, a folder, and built-in data."""
        name = self.data.dataset
        local = name in (*FILE_KINDS, *self.task_module.CORPORA) or self.resolve(name).is_dir()
        return None if local else name

    def is_overridden(self, key: str) -> bool:
        """Return whether the command line set a key or its section."""
        path = tuple(key.split("."))
        return any(path[:depth] in self._source.overridden for depth in range(1, len(path) + 1))

    def resolve(self, path: str) -> Path:
        """Return a path of the recipe, relative to the recipe's folder if it exists only there."""
        relative_path = Path(expand_user_home(path)).expanduser()
        path_next_to_recipe = self.path.parent / relative_path
        return path_next_to_recipe if not relative_path.exists() and path_next_to_recipe.exists() else relative_path

    def resolve_all(self, path: str) -> list[Path]:
        """Return the files that a path or pattern of the recipe names, sorted by name; empty if a pattern has no match.

        A pattern has ``*``, ``?``, ``[...]``, or ``**`` for folders at any depth. An existing file is never a pattern.
        """
        resolved_path = self.resolve(path)
        if os.path.lexists(resolved_path) or not glob.has_magic(path):
            return [resolved_path]
        for pattern in self._patterns(path):
            if matches := sorted(match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match)):
                return [Path(match) for match in matches]
        return []

    def _patterns(self, path: str) -> list[str]:
        """Return a pattern in the current folder, and the same pattern in the recipe's folder."""
        expanded_path = os.path.expanduser(expand_user_home(path))
        return [
            os.path.join(glob.escape(os.path.abspath(folder)), expanded_path)
            for folder in (os.curdir, self.path.parent)
        ]

    def error(self, key: str | KeyPath, message: str) -> UserError:
        """Return an error about a key with its line: ``recipes/x.yaml:LINE: key.path: message``.

        Args:
            key: dotted path of the key, or a tuple of its parts if a part may contain a dot.
            message: description of the error and a remedy.
        """
        return self._source.error(key, message)

    def to_yaml(self) -> str:
        """Return the recipe as YAML with all defaults and absolute paths, so that it is valid in any folder."""
        values = self.model_dump()
        values["train"]["output_dir"] = str(self.output_dir.absolute())
        for path in path_locations(values):
            section, key = section_of(values, path), path[-1]
            if (resolved_path := self.resolve(section[key])).exists():
                section[key] = str(resolved_path.absolute())
            elif path[:2] in FILE_KEYS and glob.has_magic(section[key]):
                patterns = (pattern for pattern in self._patterns(section[key]) if glob.glob(pattern, recursive=True))
                section[key] = next(patterns, section[key])
        return yaml_source.dump(values)


def path_locations(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the locations of all values that may be a path, as keys and indices of list items."""
    locations: list[tuple[Any, ...]] = [
        ("model", "weights"),
        ("tokenizer", "path"),
        ("train", "output_dir"),
        ("parity", "reference_python"),
    ]
    if values["data"]["dataset"] not in FILE_KINDS:  # a folder may have the name of a kind
        locations.append(("data", "dataset"))
    for section, key in FILE_KEYS:
        for name, files in (values[section].get(key) or {}).items():
            location = (section, key, name)
            locations += [(*location, index) for index in range(len(files))] if isinstance(files, list) else [location]
    return [path for path in locations if section_of(values, path)[path[-1]]]


def section_of(values: Any, key_path: tuple[Any, ...]) -> Any:
    """Return the mapping or list that contains the last key of a path."""
    for name in key_path[:-1]:
        values = values[name]
    return values


def require_setting(value: Setting | None) -> Setting:
    """Return a value that is None only for other tasks or models, since :func:`load_recipe` fills in its default."""
    assert value is not None
    return value
