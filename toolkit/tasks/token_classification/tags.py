"""Convert tags of words to entities, and score entities as conlleval does (Tjong Kim Sang and De Meulder 2003).

An entity is found if its first word, its last word and its type are all correct.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from toolkit.tasks.intervals import bootstrap_intervals
from toolkit.tasks.metrics import scores_of_labels

#: A tag of IOB1, IOB2, BIOES or BILOU: outside, or the position of a word in an entity, and the entity's type.
TAG = re.compile(r"O|[BIESLU]-.+")
OUTSIDE = "O"
#: Index of the first word, index of the word after the last, and type.
Entity = tuple[int, int, str]


def iob2(tags: Iterable[str]) -> list[str]:
    """Convert tags of any of the four schemes to IOB2, as conlleval reads them.

    An entity also starts at a tag whose type differs from the previous one.
    """
    converted_tags, current_type = [], ""
    for tag in tags:
        prefix, _, entity_type = tag.partition("-")
        is_start = prefix in "BSU" or entity_type != current_type
        converted_tags.append(tag if tag == OUTSIDE else f"{'B' if is_start else 'I'}-{entity_type}")
        current_type = "" if prefix in "ESLU" else entity_type
    return converted_tags


def entities(tags: Iterable[str]) -> list[Entity]:
    """Return the entities of a text's tags, in order."""
    entities_of_text: list[Entity] = []
    for index, tag in enumerate(iob2(tags)):
        if tag.startswith("B-"):
            entities_of_text.append((index, index + 1, tag[2:]))
        elif tag != OUTSIDE:
            entities_of_text[-1] = (entities_of_text[-1][0], index + 1, entities_of_text[-1][2])
    return entities_of_text


def types_of(tags: Iterable[Sequence[str]]) -> list[str]:
    """Return the types of entities in the tags of some texts, in alphabetical order."""
    return sorted({tag[2:] for tag in set().union(*tags) if tag != OUTSIDE})


def score(reference_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return ``f1``, ``precision``, ``recall`` and ``accuracy``, each 0 if its divisor is 0.

    The first three are of all entities (micro averages). ``accuracy`` is the share of words with the correct tag.

    Args:
        reference_tags: tags of each text in the data.
        predicted_tags: tags of each text that the model predicts.
    """
    return _scores_of_counts(_counts_of_texts(reference_tags, predicted_tags))


def score_intervals(
    reference_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]
) -> dict[str, list[float]]:
    """Return the 95% confidence interval of each metric of :func:`score`, from resampled texts.

    Args:
        reference_tags: tags of the words of each text in the data.
        predicted_tags: tags of the words of each text that the model predicts.
    """
    counts = _counts_of_texts(reference_tags, predicted_tags)
    return bootstrap_intervals(lambda texts: _scores_of_counts(counts[texts]), len(counts))


def _counts_of_texts(reference_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the counts of each text, (N, 5) int64.

    They are its found entities, its entities, its predicted entities, its words with the correct tag, and its words.

    Args:
        reference_tags: tags of the words of each text in the data.
        predicted_tags: tags of the words of each text that the model predicts.
    """
    counts = []
    for reference, predicted in zip(reference_tags, predicted_tags, strict=True):
        reference_entities, predicted_entities = set(entities(reference)), set(entities(predicted))
        num_correct = sum(tag == predicted_tag for tag, predicted_tag in zip(reference, predicted, strict=True))
        num_found = len(reference_entities & predicted_entities)
        counts.append((num_found, len(reference_entities), len(predicted_entities), num_correct, len(reference)))
    return np.array(counts, np.int64).reshape(-1, 5)


def _scores_of_counts(counts: np.ndarray) -> dict[str, float]:
    """Return the metrics of :func:`score` from the counts of the texts."""
    num_found, num_entities, num_predicted, num_correct, num_words = counts.sum(axis=0)
    scores = scores_of_labels(*(np.array([count]) for count in (num_found, num_entities, num_predicted)))
    averages = {name: float(getattr(scores, name)[0]) for name in ("f1", "precision", "recall")}
    return {**averages, "accuracy": float(num_correct / num_words) if num_words else 0.0}
