"""Token classification: the entities of a text, such as persons and places (NER).

Each word has a tag of IOB2, at its first token; the other tokens have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.recipe.recipe import require_setting
from toolkit.tasks.classification.task import control_codes as control_codes
from toolkit.tasks.classification.task import num_loss_terms as num_loss_terms
from toolkit.tasks.classification.task import texts as texts
from toolkit.tasks.classification.task import write_artifacts as write_artifacts
from toolkit.tasks.interface import Baseline, Description, PreparedData
from toolkit.tasks.question_answering.task import calibrate as calibrate
from toolkit.tasks.token_classification import tags
from toolkit.tasks.token_classification.labeling import label_rows as label_rows
from toolkit.tasks.token_classification.labeling import predict as predict
from toolkit.tasks.token_classification.labeling import predictions as predictions
from toolkit.tasks.token_classification.rows import load_splits as load_splits

if TYPE_CHECKING:
    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.pages.elements import Section
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.interface import Run
    from toolkit.tasks.token_classification.windows import TaggedWindows

HEAD = "token_classification"
LOWER_IS_BETTER = {"f1": False, "precision": False, "recall": False, "accuracy": False, "loss": True}
CORPORA: dict[str, str] = {}
PREDICTS_FROM: tuple[str, ...] = ("texts",)
ROW_COLUMNS: tuple[str, ...] = ("text",)
DESCRIPTION = Description(
    name="token classification",
    pipeline_tag="token-classification",
    metrics=("f1", "precision", "recall", "accuracy"),
    auto_class="AutoModel",  # loads only the body: transformers has no class with this head
    examples="windows",
    next_command='toolkit predict {run} --text "..."',
)


def check(recipe: Recipe) -> None:
    """Reject several columns of labels, and a stride that leaves no tokens for new text in a window."""
    data = recipe.data
    if len(data.label_columns) > 1:
        raise recipe.error("data.label", "several columns are for task classification; name the one of the entities")
    if require_setting(data.stride) >= data.max_length:
        message = f"windows of {data.max_length} tokens cannot overlap by {data.stride}; set at most a half"
        raise recipe.error("data.stride", message)


def prepare(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
) -> PreparedData:
    """Cut the splits of :func:`load_splits` into windows (:class:`.windows.TaggedWindows`).

    The labels are ``O``, and ``B-TYPE`` and ``I-TYPE`` of each type in any split.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the run.
        splits: rows of each split.
        length: maximum length in tokens; None for the recipe's own.
    """
    from toolkit.tasks.token_classification.windows import TaggedWindows

    data, entity_types = recipe.data, tags.types_of(row_tags for rows in splits.values() for row_tags in rows["tags"])
    names = [tags.OUTSIDE, *(f"{prefix}-{entity_type}" for entity_type in entity_types for prefix in "BI")]
    ids = {name: index for index, name in enumerate(names)}
    windows = {
        name: TaggedWindows(
            rows["text"][:],
            rows["words"][:],
            [[ids[tag] for tag in tags_of_text] for tags_of_text in rows["tags"]],
            tokenizer,
            data.max_length,
            require_setting(data.stride),
            name,
            length,
            label_names=names,
        )
        for name, rows in splits.items()
    }
    for name, split_windows in windows.items():
        if not len(split_windows):
            raise recipe.error("data.dataset", f"the {name} split has no word")
    row_counts = ", ".join(f"{len(rows)} {name}" for name, rows in splits.items())
    num_windows = sum(map(len, windows.values()))
    return PreparedData(
        train=windows["train"],
        validation=windows["validation"],
        test=windows.get("test"),
        summary=f"{row_counts} texts in {num_windows} windows of {data.max_length} tokens, "
        f"{len(entity_types)} types of entities",
        label_names=names,
        offsets=True,
    )


def token_counts(dataset: TaggedWindows) -> np.ndarray:
    """Return the number of tokens of each window.

    Args:
        dataset: evaluated data set.
    """
    return dataset.sizes


def outputs(output: Any, batch: Mapping[str, Any], dataset: TaggedWindows) -> tuple[Any, ...]:
    """Return the best label of each token and its probability (:func:`.labeling.best_of_batch`).

    Args:
        output: output of the model.
        batch: tensors of the batch, by name.
        dataset: evaluated data set.
    """
    from toolkit.tasks.token_classification.labeling import best_of_batch

    return best_of_batch(output, dataset.length)


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: TaggedWindows) -> dict[str, float]:
    """Return the metrics of :func:`.tags.score`.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    return tags.score(*_tags_of_texts(outputs, dataset))


def confidence_intervals(outputs: tuple[np.ndarray, ...], dataset: TaggedWindows) -> dict[str, list[float]]:
    """Return the interval of each metric of :func:`.tags.score`, from resampled texts.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    return tags.score_intervals(*_tags_of_texts(outputs, dataset))


def _tags_of_texts(outputs: tuple[np.ndarray, ...], dataset: TaggedWindows) -> tuple[list[list[str]], list[list[str]]]:
    """Return the tags of each text in the data, and the tags that the model predicts.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    predicted_labels, _ = dataset.of_words(*outputs)
    reference_labels = dataset.by_text(dataset.labels)
    return _names_of_labels(reference_labels, dataset.names), _names_of_labels(predicted_labels, dataset.names)


def _names_of_labels(labels: Sequence[np.ndarray], names: Sequence[str]) -> list[list[str]]:
    """Return the names of the labels of each text.

    Args:
        labels: label ids of each text.
        names: names of the labels, in the order of the ids.
    """
    return [[names[label] for label in labels_of_text] for labels_of_text in labels]


def report(folder: Path, predictions_path: Path, results: Mapping[str, Any]) -> Iterator[Section]:
    """Show scores by type of entity, and the most confident mistakes.

    Args:
        folder: run folder.
        predictions_path: path of the split's predictions file.
        results: content of ``metrics.json``.
    """
    from toolkit.tasks.token_classification.report import report_sections

    return report_sections(predictions_path)


def baselines(
    recipe: Recipe,
    tokenizer: Tokenizer,
    splits: datasets.DatasetDict,
    prepared_data: PreparedData,
    console: Console,
) -> dict[str, Baseline]:
    """Return the scores of a linear model of each word and its neighbors; see :mod:`.linear_tagger`.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the run.
        splits: rows of each split.
        prepared_data: model inputs of each split.
        console: console for progress.
    """
    from toolkit.tasks.token_classification.linear_tagger import METHOD, tag_words

    words = {name: [[row["text"][a:b] for a, b in row["words"]] for row in rows] for name, rows in splits.items()}
    evaluated_splits = [split_name for split_name in prepared_data.sizes if split_name != "train"]
    with console.status(f"measuring {METHOD}"):
        evaluated_words = {split_name: words[split_name] for split_name in evaluated_splits}
        predicted_tags = tag_words(words["train"], splits["train"]["tags"][:], evaluated_words)
    true_tags = {split_name: splits[split_name]["tags"][:] for split_name in evaluated_splits}
    scores = {name: tags.score(true_tags[name], predicted_tags[name]) for name in evaluated_splits}
    intervals = {
        name: tags.score_intervals(true_tags[name], predicted_tags[name]) for name in evaluated_splits if name == "test"
    }
    return {METHOD: Baseline(scores, intervals)}


def prediction_columns(run: Run) -> dict[str, type]:
    """Return ``predicted_entities``: a list of mappings with ``start``, ``end``, ``label``, ``text`` and ``score``.

    Args:
        run: trained run.
    """
    return {"predicted_entities": list}
