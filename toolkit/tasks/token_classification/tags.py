"""Convert tags of words to entities, and score entities as conlleval does (Tjong Kim Sang and De Meulder 2003).

An entity is found if its first word, its last word and its type are all correct.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

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
    reference_entities, predicted_entities = (
        [set(entities(tags)) for tags in texts] for texts in (reference_tags, predicted_tags)
    )
    counts = [
        sum(
            len(reference & predicted)
            for reference, predicted in zip(reference_entities, predicted_entities, strict=True)
        )
    ]
    counts += [sum(map(len, reference_entities)), sum(map(len, predicted_entities))]
    scores = scores_of_labels(*(np.array([count]) for count in counts))
    num_words = sum(map(len, reference_tags))
    num_correct = sum(
        reference == predicted
        for texts in zip(reference_tags, predicted_tags, strict=True)
        for reference, predicted in zip(*texts, strict=True)
    )
    averages = {name: float(getattr(scores, name)[0]) for name in ("f1", "precision", "recall")}
    return {**averages, "accuracy": num_correct / num_words if num_words else 0.0}


def most_frequent(words: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the most frequent tag of each word."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text, tags_of_text in zip(words, tags, strict=True):
        for word, tag in zip(text, tags_of_text, strict=True):
            counts[word][tag] += 1
    return {word: count.most_common(1)[0][0] for word, count in counts.items()}
