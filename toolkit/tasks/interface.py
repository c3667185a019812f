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

    #: The head that it puts on a port. Only families that have it can do the task.
    HEAD: str
    #: Metric that ``train.save_best`` may name -> whether lower values are better.
    LOWER_IS_BETTER: dict[str, bool]
    #: Built-in data set -> its module (see :mod:`toolkit.tasks.corpora`).
    CORPORA: dict[str, str]
    #: The task in words, for the model card and messages.
    DESCRIPTION: Description
    #: The options of ``toolkit predict`` that the task needs: the keyword arguments of :meth:`predict`.
    PREDICTS_FROM: tuple[str, ...]
    #: Keys of the recipe's ``data`` that name the columns which ``toolkit predict --input`` reads; none for a task
    #: that does not label.
    ROW_COLUMNS: tuple[str, ...]

    def check(self, recipe: Recipe) -> None:
        """Raise ``recipe.error`` for what is wrong with the recipe, without reading any data."""

    def load_splits(self, recipe: Recipe) -> datasets.DatasetDict:
        """Return ``train``, ``validation`` and maybe ``test``, in the task's own columns, checked.

        Raises:
            UserError: at the line of the key to change.
        """

    def texts(self, rows: datasets.Dataset) -> Sequence[str]:
        """Return a split's texts: a tokenizer is trained on them and compared with the reference's."""

    def control_codes(self, rows: datasets.Dataset) -> Sequence[str]:
        """The control codes of a split, each one token of a vocabulary that has them; none for most tasks."""

    def prepare(
        self, recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
    ) -> Prepared:
        """Turn the splits of :meth:`load_splits` into examples for the model.

        Args:
            length: the training length, to which texts of up to ``data.max_length`` tokens are padded; None for
                ``data.max_length``.

        Raises:
            UserError: data that does not fit the recipe's model or tokenizer.
        """

    def num_loss_terms(self, batch: Mapping[str, Any]) -> int:
        """Return the number of terms that a batch's loss averages; micro-batches are weighted by it."""

    def token_counts(self, dataset: Any) -> np.ndarray | None:
        """Return the unpadded length in tokens of each example of :meth:`prepare`, (N,). None: evaluation must not
        leave padding out, because nothing is padded or labels are padded too."""

    def outputs(self, output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
        """Return what evaluation keeps of the model's output for a batch: small tensors [B, ...]."""

    def compute_metrics(self, outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
        """Return metric -> value, from what :meth:`outputs` kept of all examples, in order."""

    def predictions(
        self, run: Run, rows: datasets.Dataset, dataset: Any, outputs: tuple[np.ndarray, ...]
    ) -> Iterator[dict[str, Any]]:
        """Yield a row of ``predictions-SPLIT.csv`` for each example, all with the same keys.

        Args:
            rows: a split of :meth:`load_splits`.
            dataset: what :meth:`prepare` made of it.
            outputs: what :meth:`outputs` kept of it.
        """

    def report(self, folder: Path, predictions: Path, results: Mapping[str, Any]) -> Iterator[Element]:
        """Yield the task's sections of a run's page, made from files alone.

        Args:
            folder: the run folder.
            predictions: the file of :meth:`predictions`.
            results: the content of ``metrics.json``.
        """

    def baselines(
        self, recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, prepared: Prepared
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Return simple method -> split -> metric -> value: what training should be better than.

        Args:
            splits: of :meth:`load_splits`.
            prepared: what :meth:`prepare` made of them.
        """

    def calibrate(
        self, recipe: Recipe, prepared: Prepared, outputs: Mapping[str, tuple[np.ndarray, ...]]
    ) -> dict[str, Any]:
        """Return what makes predictions of outputs, fitted to the validation split; empty for most tasks.

        Args:
            prepared: of :meth:`prepare`.
            outputs: split -> what :meth:`outputs` kept of it.
        """

    def write_artifacts(self, run: Run, trainer: Any, prepared: Prepared, console: Console) -> None:
        """Write the task's own files into a finished run's folder (``run.folder``); ``trainer`` can still measure."""

    def predict(self, run: Run, console: Console, *args: Any, **given: Any) -> Any:
        """Print and return what ``toolkit predict`` is asked for; ``given`` has the names in ``PREDICTS_FROM``."""

    def prediction_columns(self, run: Run) -> dict[str, type]:
        """The columns that :meth:`label_rows` fills, and the type of their values: str, float, int or list."""

    def label_rows(self, run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> Labelled:
        """Make predictions for rows of a file.

        Args:
            run: a finished run.
            columns: name in ``ROW_COLUMNS`` -> a text for each row, none empty; at least one row.
            advance: called repeatedly with the number of rows newly done.
        """


@dataclass(frozen=True)
class Prepared:
    """Examples ready for the model.

    Attributes:
        train, validation, test: map-style data sets of dicts of arrays, each array of one shape; test is None where the
            data has none.
        summary: what they are, in a few words.
        label_names: a label's id is its index in this list; None for a task without labels.
        notes: what the user should know about the data, a line each; computed on demand, since this takes longer than
            all the rest.
        offsets: whether the task uses the character span of each token, so that the gate compares them.
        truncated: split -> how many of its texts were longer than the model and were cut.
        class_weights: float32, the weight of each label in the training loss; None for equal weights.
    """

    train: Any
    validation: Any
    test: Any
    summary: str
    label_names: list[str] | None = None
    notes: Callable[[], Sequence[str]] = tuple
    offsets: bool = False
    truncated: dict[str, int] = field(default_factory=dict)
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
        columns: in the order of :meth:`Task.prediction_columns`, a value for each row; None where there is none.
        notes: what the user should know about a row -> indices of the rows that it applies to.
    """

    columns: list[list[Any]]
    notes: dict[str, list[int]]


@dataclass(frozen=True)
class Description:
    """A task in the words of a model card.

    Attributes:
        name: as in "A ... for NAME".
        pipeline_tag, metrics: in the words of the Hugging Face hub.
        auto_class: of transformers; loads the model.
        examples: what the examples are called.
        next_command: what to do with a run, with ``{run}`` for its folder.
        of_pairs: what follows the command for a run that reads two texts.
    """

    name: str
    pipeline_tag: str
    metrics: tuple[str, ...]
    auto_class: str
    examples: str
    next_command: str
    of_pairs: str = ""

    def command(self, folder: Path | str, recipe: Recipe) -> str:
        """Return the command for the run of this recipe in this folder."""
        command = self.next_command.format(run=shlex.quote(str(folder)))
        return command + self.of_pairs if len(recipe.data.text_columns) > 1 else command

    def unit(self, recipe: Recipe) -> str:
        """Return what the examples of this recipe are called."""
        return "windows" if recipe.data.long_texts == "windows" else self.examples


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
        calibration: of :meth:`Task.calibrate`.
    """

    folder: Path
    recipe: Recipe
    task: Task
    tokenizer: Any
    model: Any
    label_names: list[str] | None
    length: int
    calibration: Mapping[str, Any] = field(default_factory=dict)
