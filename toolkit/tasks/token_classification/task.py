"""Token classification: the entities of a text, such as persons and places (NER).

Each word has a tag of IOB2, at its first token; the other tokens have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.recipe.recipe import settled
from toolkit.tasks.classification.task import control_codes as control_codes
from toolkit.tasks.classification.task import num_loss_terms as num_loss_terms
from toolkit.tasks.classification.task import texts as texts
from toolkit.tasks.classification.task import write_artifacts as write_artifacts
from toolkit.tasks.interface import Description, PreparedData
from toolkit.tasks.question_answering.task import calibrate as calibrate
from toolkit.tasks.token_classification import tags
from toolkit.tasks.token_classification.labelling import label_rows as label_rows
from toolkit.tasks.token_classification.labelling import predict as predict
from toolkit.tasks.token_classification.labelling import predictions as predictions
from toolkit.tasks.token_classification.rows import load_splits as load_splits

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import datasets

    from models.port.tokenization import Tokenizer
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
    auto_class="AutoModel",  # of the body: there is none with the head
    examples="windows",
    next_command='toolkit predict {run} --text "..."',
)


def check(recipe: Recipe) -> None:
    """Refuse several columns of labels, and a stride that leaves no room for new text in the next window."""
    data = recipe.data
    if len(data.label_columns) > 1:
        raise recipe.error("data.label", "several columns are for task classification; name the one of the entities")
    if settled(data.stride) >= data.max_length:
        message = f"windows of {data.max_length} tokens cannot overlap by {data.stride}; set at most a half"
        raise recipe.error("data.stride", message)


def prepare(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
) -> PreparedData:
    """Cut the splits of :func:`load_splits` into windows (:class:`.windows.TaggedWindows`). The labels are ``O``, and
    ``B-TYPE`` and ``I-TYPE`` of each type in any split."""
    from toolkit.tasks.token_classification.windows import TaggedWindows

    data, kinds = recipe.data, tags.types_of(one for rows in splits.values() for one in rows["tags"])
    names = [tags.OUTSIDE, *(f"{mark}-{kind}" for kind in kinds for mark in "BI")]
    ids = {name: index for index, name in enumerate(names)}
    windows = {
        name: TaggedWindows(
            rows["text"][:],
            rows["words"][:],
            [[ids[tag] for tag in given] for given in rows["tags"]],
            tokenizer,
            data.max_length,
            settled(data.stride),
            name,
            length,
            names=names,
        )
        for name, rows in splits.items()
    }
    for name, found in windows.items():
        if not len(found):
            raise recipe.error("data.dataset", f"the {name} split has no word")
    sizes = ", ".join(f"{len(rows)} {name}" for name, rows in splits.items())
    count = sum(map(len, windows.values()))
    return PreparedData(
        train=windows["train"],
        validation=windows["validation"],
        test=windows.get("test"),
        summary=f"{sizes} texts in {count} windows of {data.max_length} tokens, {len(kinds)} types of entities",
        label_names=names,
        offsets=True,
    )


def token_counts(dataset: TaggedWindows) -> np.ndarray:
    """Return each window's tokens."""
    return dataset.sizes


def outputs(output: Any, batch: Mapping[str, Any], dataset: TaggedWindows) -> tuple[Any, ...]:
    """:func:`.labelling.best_of_batch`."""
    from toolkit.tasks.token_classification.labelling import best_of_batch

    return best_of_batch(output, dataset.length)


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: TaggedWindows) -> dict[str, float]:
    """See :func:`.tags.score`."""
    given, _ = dataset.of_words(*outputs)
    return tags.score(*(_named(one, dataset.names) for one in (dataset.by_text(dataset.labels), given)))


def _named(labels: Sequence[np.ndarray], names: Sequence[str]) -> list[list[str]]:
    return [[names[label] for label in one] for one in labels]


def report(folder: Path, predictions: Path, results: Mapping[str, Any]) -> Iterator[Element]:
    """Show scores by type of entity, and the most confident mistakes."""
    from toolkit.tasks.token_classification.report import sections

    return sections(predictions)


def baselines(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, prepared: PreparedData
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the scores of each word's most frequent tag in training, ``O`` for words that are not there."""
    words = {name: [[row["text"][a:b] for a, b in row["words"]] for row in rows] for name, rows in splits.items()}
    known = tags.most_frequent(words["train"], splits["train"]["tags"])
    scores = {
        split: tags.score(
            splits[split]["tags"][:], [[known.get(word, tags.OUTSIDE) for word in text] for text in words[split]]
        )
        for split in prepared.sizes
        if split != "train"
    }
    return {"most frequent tag of each word": scores}


def prediction_columns(run: Run) -> dict[str, type]:
    """``predicted_entities``: a list of mappings with ``start``, ``end``, ``label``, ``text`` and ``score``."""
    return {"predicted_entities": list}
