"""The interface of a task, and the records that pass through it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import datasets
    import numpy as np
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.recipe.recipe import Recipe


class Task(Protocol):
    """The interface of a task: the constants and functions of a module ``toolkit.tasks.NAME.task``.

    Importing the module must be cheap (no Paddle, no `datasets`), since every recipe is checked with it.
    """

    #: Model family -> the head of its port. Only these families can do the task.
    HEADS: dict[str, str]
    #: Metric that ``train.save_best`` may name -> whether lower values are better.
    LOWER_IS_BETTER: dict[str, bool]
    #: Built-in data set -> its module (see :mod:`toolkit.tasks.corpora`).
    CORPORA: dict[str, str]
    #: The task in words, for the model card and messages.
    DESCRIPTION: Description
    #: The options of ``toolkit predict`` that the task needs: the keyword arguments of :meth:`predict`.
    PREDICTS_FROM: tuple[str, ...]
    #: The columns that ``toolkit predict --input`` reads, by the keys of the recipe's ``data`` that name them; none for
    #: a task that does not label.
    ROW_COLUMNS: tuple[str, ...]

    def check(self, recipe: Recipe) -> None:
        """Raise ``recipe.error`` for what is wrong with the recipe, without reading any data."""

    def load_splits(self, recipe: Recipe) -> datasets.DatasetDict:
        """``train``, ``validation`` and maybe ``test``, in the task's own columns, checked.

        Raises:
            UserError: at the line of the key that is to be changed.
        """

    def texts(self, rows: datasets.Dataset) -> Sequence[str]:
        """The texts of a split: on them a tokenizer is trained, and compared with the reference's."""

    def control_codes(self, rows: datasets.Dataset) -> Sequence[str]:
        """The control codes of a split, each one token of a CTRL vocabulary; none for most tasks."""

    def prepare(
        self, recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
    ) -> Prepared:
        """The splits of :meth:`load_splits` as examples for the model.

        Args:
            length: that the model trains on, to which texts of up to ``data.max_length`` tokens are padded; None for
                ``data.max_length`` itself.

        Raises:
            UserError: data that does not fit the recipe's model or tokenizer.
        """

    def num_loss_terms(self, batch: Mapping[str, Any]) -> int:
        """The number of terms that the loss of a batch is the mean of; micro-batches are weighted by it."""

    def token_counts(self, dataset: Any) -> np.ndarray | None:
        """How many tokens each example of what :meth:`prepare` made has before its padding, (N,); None where no
        evaluation is to leave padding out: none is padded, or labels are padded, too."""

    def outputs(self, output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
        """What evaluation keeps of the model's output for a batch: small tensors [B, ...]."""

    def compute_metrics(self, outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
        """Metric -> value, from what :meth:`outputs` kept of all examples, in their order."""

    def predictions(
        self, run: Run, rows: datasets.Dataset, dataset: Any, outputs: tuple[np.ndarray, ...]
    ) -> Iterator[dict[str, Any]]:
        """A row of ``predictions-SPLIT.csv`` for each example, all with the same keys.

        Args:
            rows: a split of :meth:`load_splits`.
            dataset: what :meth:`prepare` made of it.
            outputs: what :meth:`outputs` kept of it.
        """

    def report(self, folder: Path, predictions: Path, results: Mapping[str, Any]) -> Iterator[Element]:
        """The sections of a run's page that the task has to say, made of files alone.

        Args:
            folder: the run folder.
            predictions: the file of :meth:`predictions`.
            results: the content of ``metrics.json``.
        """

    def write_artifacts(self, run: Run, trainer: Any, prepared: Prepared, console: Console) -> None:
        """Write the task's own files into a finished run's folder (``run.folder``); ``trainer`` can still measure."""

    def predict(self, run: Run, console: Console, *args: Any, **given: Any) -> Any:
        """Print and return what ``toolkit predict`` is asked for; ``given`` has the names in ``PREDICTS_FROM``."""

    def prediction_columns(self, run: Run) -> dict[str, type]:
        """The columns that :meth:`label_rows` fills, and the type of their values: str, float or int."""

    def label_rows(self, run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> Labelled:
        """Predictions for rows of a file.

        Args:
            run: a finished run.
            columns: by the names in ``ROW_COLUMNS``, a text of each row, none of them empty; at least one row.
            advance: is told, time and again, how many more rows are done.
        """


@dataclass(frozen=True)
class Prepared:
    """Examples ready for the model.

    Attributes:
        train, validation, test: map-style data sets of dicts of arrays, each array of one shape; test is None where the
            data has none.
        summary: what they are, in a few words.
        label_names: a label's id is its place in this list; None for a task without labels.
        notes: what the user should know about the data, a line each; found when they are asked for, since looking takes
            longer than all the rest.
        offsets: whether the task uses the character span of each token, so that the gate compares them.
        truncated: split -> how many of its texts were longer than the model and were cut.
        baseline: split -> metric -> its value without a model (from token frequencies, say), to compare with.
        class_weights: float32, by label, how much it counts in the loss that trains; None for all alike.
    """

    train: Any
    validation: Any
    test: Any
    summary: str
    label_names: list[str] | None = None
    notes: Callable[[], Sequence[str]] = tuple
    offsets: bool = False
    truncated: dict[str, int] = field(default_factory=dict)
    baseline: dict[str, dict[str, float]] = field(default_factory=dict)
    class_weights: np.ndarray | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Split -> how many examples it has."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: len(rows) for name, rows in splits.items() if rows is not None}


@dataclass(frozen=True)
class Labelled:
    """Predictions for some rows.

    Attributes:
        columns: in the order of :meth:`Task.prediction_columns`, a value of each row; None where there is none.
        notes: what a row can have that the user should know -> the places of the rows that have it.
    """

    columns: list[list[Any]]
    notes: dict[str, list[int]]


@dataclass(frozen=True)
class Description:
    """A task in the words of a model card.

    Attributes:
        name: as in "A Reformer for NAME".
        pipeline_tag, metrics: in the words of the Hugging Face hub.
        auto_class: of transformers, which loads the model.
        examples: what the examples are called.
        next_command: what to do with a run, with ``{run}`` for its folder.
    """

    name: str
    pipeline_tag: str
    metrics: tuple[str, ...]
    auto_class: str
    examples: str
    next_command: str

    def command(self, folder: Path | str) -> str:
        """What to do with the run in this folder."""
        return self.next_command.format(run=shlex.quote(str(folder)))


@dataclass(frozen=True)
class Run:
    """A finished run, loaded.

    Attributes:
        folder: the run folder.
        recipe: as it was run.
        task: what the model was trained for.
        tokenizer: saved with the model.
        model: the port with the best weights.
        label_names: in the order of their ids; None for a task without labels.
        length: that texts are padded to.
    """

    folder: Path
    recipe: Recipe
    task: Task
    tokenizer: Any
    model: Any
    label_names: list[str] | None
    length: int
