"""The recipe: what a run is made of. YAML checked by a schema, every error at its line, every default filled in.

This module decides what can be decided from the recipe alone. What needs the data or a model's configuration is decided
later (:mod:`toolkit.data.load`, :mod:`toolkit.finetune.model_config`), with the same error positions, through
:meth:`Recipe.error`.
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
from toolkit.machine.home import in_own_home
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

Setting = TypeVar("Setting")


@dataclass
class Findings:
    """What a run finds out about its recipe. All copies of a recipe share it.

    Attributes:
        notes: what the user should know about how the recipe was read, a line each.
        commits: section -> commit used of its hub repository, once :mod:`toolkit.recipe.revisions` has settled it.
        continues: the run whose weights this one begins with: its folder (``run``), the ``step`` of the weights, and
            how its recipe ``differs``; empty for a run that continues none.
    """

    notes: list[str] = field(default_factory=list)
    commits: dict[str, str] = field(default_factory=dict)
    continues: dict[str, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)


class Recipe(Section):
    """A checked recipe; :func:`load_recipe` makes one. Nobody changes it: :meth:`with_values` copies it."""

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

    _found: Findings = PrivateAttr(default_factory=Findings)
    _source: yaml_source.Source = PrivateAttr(default_factory=lambda: yaml_source.Source("recipe"))

    @property
    def path(self) -> Path:
        """The file that the recipe was read from."""
        return Path(self._source.name)

    @property
    def output_dir(self) -> Path:
        """The run folder."""
        return Path(self.train.output_dir or Path("runs") / self.path.stem)

    @property
    def task_module(self) -> Any:
        """The module of the task, ``toolkit.tasks.TASK.task``."""
        return importlib.import_module(f"toolkit.tasks.{self.task}.task")  # by name: the tasks import this module

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """The same recipe with other values, by ``section.key``. They are not checked."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            section, _, key = name.partition(".")
            sections.setdefault(section, {})[key] = value
        return self.model_copy(
            update={section: getattr(self, section).model_copy(update=keys) for section, keys in sections.items()}
        )

    @property
    def found(self) -> Findings:
        """Findings about the recipe since it was read."""
        return self._found

    @property
    def hub_weights(self) -> str | None:
        """The hub repository of `model.weights`; None for a folder or a file of Paddle's, and for new weights."""
        weights = self.model.weights
        local = weights is None or weights.endswith(".pdparams") or self.resolve(weights).is_dir()
        return None if local else weights

    @property
    def hub_dataset(self) -> str | None:
        """The hub repository of `data.dataset`; None for files, a folder, and data that is built in."""
        name = self.data.dataset
        local = name in (*FILE_KINDS, *self.task_module.CORPORA) or self.resolve(name).is_dir()
        return None if local else name

    def is_overridden(self, key: str) -> bool:
        """Whether the command line set a key, or its section."""
        path = tuple(key.split("."))
        return any(path[:depth] in self._source.overridden for depth in range(1, len(path) + 1))

    def resolve(self, path: str) -> Path:
        """A path of the recipe: relative to the current directory if it exists there, else to the recipe's folder."""
        written = Path(in_own_home(path)).expanduser()
        beside = self.path.parent / written
        return beside if not written.exists() and beside.exists() else written

    def resolve_all(self, path: str) -> list[Path]:
        """Return the files that a path of the recipe names: the one of that name, or those that match it as a pattern
        (``*``, ``?``, ``[...]``, and ``**`` for folders at any depth), sorted by name; empty if none match."""
        found = self.resolve(path)
        if os.path.lexists(found) or not glob.has_magic(path):
            return [found]
        for pattern in self._patterns(path):
            if matches := sorted(match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match)):
                return [Path(match) for match in matches]
        return []

    def _patterns(self, path: str) -> list[str]:
        """Prefix a pattern with the folders searched: here, then beside the recipe."""
        written = os.path.expanduser(in_own_home(path))
        return [os.path.join(glob.escape(os.path.abspath(folder)), written) for folder in (os.curdir, self.path.parent)]

    def error(self, key: str | yaml_source.KeyPath, message: str) -> UserError:
        """The error to raise about one key, with its position: ``recipes/x.yaml:LINE: key.path: message``.

        Args:
            key: a dotted path, or its parts where a part may hold a dot.
            message: what is wrong, then what would be right.
        """
        return self._source.error(key, message)

    def to_yaml(self) -> str:
        """The recipe with every default written out, and with absolute paths: it means the same read from anywhere."""
        values = self.model_dump()
        values["train"]["output_dir"] = str(self.output_dir.absolute())
        for path in places_of_paths(values):
            section, key = section_of(values, path), path[-1]
            if (found := self.resolve(section[key])).exists():
                section[key] = str(found.absolute())
            elif path[:2] in FILE_KEYS and glob.has_magic(section[key]):
                patterns = (at for at in self._patterns(section[key]) if glob.glob(at, recursive=True))
                section[key] = next(patterns, section[key])
        return yaml_source.dump(values)


def places_of_paths(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Locate the values that may be a path, by keys and indices of list items."""
    places: list[tuple[Any, ...]] = [
        ("model", "weights"),
        ("tokenizer", "path"),
        ("train", "output_dir"),
        ("parity", "reference_python"),
    ]
    if values["data"]["dataset"] not in FILE_KINDS:  # a folder may have the name of a kind
        places.append(("data", "dataset"))
    for section, key in FILE_KEYS:
        for name, files in (values[section].get(key) or {}).items():
            place = (section, key, name)
            places += [(*place, index) for index in range(len(files))] if isinstance(files, list) else [place]
    return [path for path in places if section_of(values, path)[path[-1]]]


def section_of(values: Any, path: tuple[Any, ...]) -> Any:
    """Return what holds the last key of a path."""
    for name in path[:-1]:
        values = values[name]
    return values


def settled(value: Setting | None) -> Setting:
    """Return a value that is None only for other tasks or models: :func:`load_recipe` has filled in its default."""
    assert value is not None
    return value
