"""The interface of a task, and the records that its functions exchange."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.pages.elements import Section
    from toolkit.recipe.recipe import Recipe


class Task(Protocol):
    """The interface of a task: the constants and functions of a module ``toolkit.tasks.NAME.task``.

    Importing the module must be cheap (no Paddle, no `datasets`), since every recipe is checked with it.
    """

    #: Name of the head that the task needs. Only families with this head can do the task.
    HEAD: str
    #: Metrics that ``train.save_best`` may name, each with whether lower values are better.
    LOWER_IS_BETTER: dict[str, bool]
    #: Module of each built-in data set, by the data set's name (see :mod:`toolkit.tasks.corpora`).
    CORPORA: dict[str, str]
    #: Description of the task, for the model card and messages.
    DESCRIPTION: Description
    #: The options of ``toolkit predict`` that the task needs: the keyword arguments of :meth:`predict`.
    PREDICTS_FROM: tuple[str, ...]
    #: Keys of the recipe's ``data`` section that name the columns of ``toolkit predict --input``; empty if the task
    #: cannot label rows.
    ROW_COLUMNS: tuple[str, ...]

    def check(self, recipe: Recipe) -> None:
        """Raise ``recipe.error`` if the recipe is wrong for the task, without reading any data."""

    def load_splits(self, recipe: Recipe) -> datasets.DatasetDict:
        """Return ``train``, ``validation`` and maybe ``test``, in the task's own columns, checked.

        Raises:
            UserError: the data is wrong; the error names the line of the recipe's key to change.
        """

    def texts(self, rows: datasets.Dataset) -> Sequence[str]:
        """Return the texts of a split. A tokenizer is trained on them and compared with the reference's tokenizer."""

    def control_codes(self, rows: datasets.Dataset) -> Sequence[str]:
        """Return the control codes of a split, each a single token; empty for most tasks."""

    def prepare(
        self, recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
    ) -> PreparedData:
        """Convert the splits of :meth:`load_splits` into examples for the model.

        Args:
            recipe: recipe of the run.
            tokenizer: tokenizer of the model.
            splits: splits of :meth:`load_splits`.
            length: training length in tokens, to which shorter texts are padded; None for ``data.max_length``.

        Raises:
            UserError: the data does not fit the recipe's model or tokenizer.
        """

    def num_loss_terms(self, batch: Mapping[str, Any]) -> int:
        """Return the number of terms that a batch's loss averages, which is the weight of a micro-batch."""

    def token_counts(self, dataset: Any) -> np.ndarray | None:
        """Return the unpadded length of each example in tokens, (N,), or None.

        None means that evaluation must keep the padding, because nothing is padded or labels are padded too.

        Args:
            dataset: evaluated data set.
        """

    def outputs(self, output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
        """Return the tensors that evaluation keeps of the model's output for a batch: small, (B, ...) each."""

    def compute_metrics(self, outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
        """Return the metrics by name, computed from the outputs of all examples, in order.

        Args:
            outputs: arrays of all batches as :meth:`outputs` returns them, joined.
            dataset: evaluated data set.
        """

    def confidence_intervals(self, outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, list[float]]:
        """Return the 95% confidence interval of the metrics of :meth:`compute_metrics`, [low, high], by name.

        Args:
            outputs: arrays of all batches as :meth:`outputs` returns them, joined.
            dataset: evaluated data set.
        """

    def predictions(
        self, run: Run, rows: datasets.Dataset, dataset: Any, outputs: tuple[np.ndarray, ...]
    ) -> Iterator[dict[str, Any]]:
        """Yield a row of ``predictions-SPLIT.csv`` for each example, all with the same keys.

        Args:
            run: finished run.
            rows: split of :meth:`load_splits`.
            dataset: examples of the split, from :meth:`prepare`.
            outputs: outputs of the split, from :meth:`outputs`.
        """

    def report(self, folder: Path, predictions_path: Path, results: Mapping[str, Any]) -> Iterator[Section]:
        """Yield the task's sections of a run's page, computed from files only.

        Args:
            folder: run folder.
            predictions_path: path of the file with the rows of :meth:`predictions`.
            results: content of ``metrics.json``.
        """

    def baselines(
        self,
        recipe: Recipe,
        tokenizer: Tokenizer,
        splits: datasets.DatasetDict,
        prepared_data: PreparedData,
        console: Console,
    ) -> dict[str, Baseline]:
        """Measure simple methods that training should beat; return the results by the method's name.

        Args:
            recipe: recipe of the run.
            tokenizer: tokenizer of the model.
            splits: splits of :meth:`load_splits`.
            prepared_data: examples of these splits, from :meth:`prepare`.
            console: console for the progress.
        """

    def calibrate(
        self, recipe: Recipe, prepared_data: PreparedData, outputs: Mapping[str, tuple[np.ndarray, ...]]
    ) -> dict[str, Any]:
        """Return the parameters that convert outputs to predictions, fitted to the validation split.

        Most tasks have none and return an empty dict.

        Args:
            recipe: recipe of the run.
            prepared_data: examples of all splits, from :meth:`prepare`.
            outputs: outputs of :meth:`outputs`, by split.
        """

    def write_artifacts(self, run: Run, trainer: Any, prepared_data: PreparedData, console: Console) -> None:
        """Write the task's own files into a finished run's folder.

        Args:
            run: finished run; files go into ``run.folder``.
            trainer: trainer with the best weights, which can still measure.
            prepared_data: examples of all splits.
            console: console for messages.
        """

    def predict(self, run: Run, console: Console, *args: Any, **options: Any) -> Any:
        """Print and return the predictions that ``toolkit predict`` asks for.

        Args:
            run: finished run.
            console: console for the predictions.
            *args: none; an implementation may name its options as parameters instead.
            **options: options of the command, by the names in ``PREDICTS_FROM``.
        """

    def prediction_columns(self, run: Run) -> dict[str, type]:
        """Return the types of the columns that :meth:`label_rows` fills, by name: str, float, int or list."""

    def label_rows(
        self, run: Run, column_texts: Mapping[str, Sequence[str]], advance: Callable[[int], None]
    ) -> LabeledRows:
        """Make predictions for the rows of a file.

        Args:
            run: finished run.
            column_texts: texts of all rows, by the name in ``ROW_COLUMNS``; at least one row, and no text is empty.
            advance: called repeatedly with the number of rows that were predicted since the last call.
        """


@dataclass(frozen=True)
class PreparedData:
    """Examples ready for the model.

    Attributes:
        train, validation, test: map-style data sets of dicts of arrays, each array of one shape; test is None if the
            data has no test split.
        summary: the kind and number of examples, in a few words.
        label_names: names of the labels, in the order of their ids; None for a task without labels.
        notes: returns notes about the data for the user, a line each. They are computed on demand, because this takes
            longer than all other preparation.
        offsets: whether the task uses the character span of each token, so that the gate compares the spans.
        num_truncated: number of texts that were cut to the model's length, by split.
        class_weights: weight of each label in the training loss, (labels,) float32; None for equal weights.
    """

    train: Any
    validation: Any
    test: Any
    summary: str
    label_names: list[str] | None = None
    notes: Callable[[], Sequence[str]] = tuple
    offsets: bool = False
    num_truncated: dict[str, int] = field(default_factory=dict)
    class_weights: np.ndarray | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: len(rows) for name, rows in splits.items() if rows is not None}


@dataclass(frozen=True)
class Baseline:
    """Results of a simple method on a run's own data.

    Attributes:
        metrics: split -> metric -> value.
        intervals: split -> metric -> 95% confidence interval, [low, high].
        save: writes the fitted method into a folder; None if runs do not keep it.
    """

    metrics: Mapping[str, Mapping[str, float]]
    intervals: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    save: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class LabeledRows:
    """Predictions for some rows.

    Attributes:
        columns: values of all rows, a list for each column of :meth:`Task.prediction_columns`; a missing value is None.
        notes: indices of the rows that a note for the user applies to, by the note.
    """

    columns: list[list[Any]]
    notes: dict[str, list[int]]


@dataclass(frozen=True)
class Description:
    """Description of a task in the words of a model card.

    Attributes:
        name: name of the task, as in "A ... for NAME".
        pipeline_tag, metrics: names on the Hugging Face hub.
        auto_class: transformers class that loads the model.
        examples: plural noun for the examples.
        next_command: command that uses a finished run, with ``{run}`` for its folder.
        of_pairs: options to append to the command for a run that reads two texts.
    """

    name: str
    pipeline_tag: str
    metrics: tuple[str, ...]
    auto_class: str
    examples: str
    next_command: str
    of_pairs: str = ""

    def command(self, folder: Path | str, recipe: Recipe) -> str:
        """Return the command that uses the run of this recipe in this folder."""
        command = self.next_command.format(run=shlex.quote(str(folder)))
        return command + self.of_pairs if len(recipe.data.text_columns) > 1 else command

    def unit(self, recipe: Recipe) -> str:
        """Return the plural noun for the examples of this recipe."""
        return "windows" if recipe.data.long_texts == "windows" else self.examples


@dataclass(frozen=True)
class Run:
    """A finished run, loaded.

    Attributes:
        folder: run folder.
        recipe: recipe with which the run was trained.
        task: task of the model.
        tokenizer: tokenizer that was saved with the model.
        model: port with the best weights; None if a baseline predicts.
        label_names: names of the labels, in the order of their ids; None for a task without labels.
        length: number of tokens to which texts are padded.
        calibration: result of :meth:`Task.calibrate`, or the calibration of the baseline.
        baseline: kept baseline that predicts instead of the model; None if the model predicts.
    """

    folder: Path
    recipe: Recipe
    task: Task
    tokenizer: Any
    model: Any
    label_names: list[str] | None
    length: int
    calibration: Mapping[str, Any] = field(default_factory=dict)
    baseline: Any = None
