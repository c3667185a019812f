"""Tags of words, the entities that they stand for, and scores of these as conlleval defines them (Tjong Kim Sang and De
Meulder 2003): an entity is found if its first word, its last word and its type are all right."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from toolkit.tasks.metrics import scores_of_labels

#: A tag of IOB1, IOB2, BIOES or BILOU: outside, or the place of a word in an entity, and its type.
TAG = re.compile(r"O|[BIESLU]-.+")
OUTSIDE = "O"
#: First word, the word behind the last, type.
Entity = tuple[int, int, str]


def iob2(tags: Iterable[str]) -> list[str]:
    """Convert tags of any of the four schemes, as conlleval reads them: an entity also begins where its type does."""
    found, going_on = [], ""
    for tag in tags:
        mark, _, kind = tag.partition("-")
        begins = mark in "BSU" or kind != going_on
        found.append(tag if tag == OUTSIDE else f"{'B' if begins else 'I'}-{kind}")
        going_on = "" if mark in "ESLU" else kind
    return found


def entities(tags: Iterable[str]) -> list[Entity]:
    """Return the entities of a text's tags, in order."""
    found: list[Entity] = []
    for place, tag in enumerate(iob2(tags)):
        if tag.startswith("B-"):
            found.append((place, place + 1, tag[2:]))
        elif tag != OUTSIDE:
            found[-1] = (found[-1][0], place + 1, found[-1][2])
    return found


def types_of(tags: Iterable[Sequence[str]]) -> list[str]:
    """Return the types of entities in the tags of some texts, in alphabetical order."""
    return sorted({tag[2:] for tag in set().union(*tags) if tag != OUTSIDE})


def score(true: Sequence[Sequence[str]], given: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return ``f1``, ``precision`` and ``recall`` of all entities (micro averages), and ``accuracy``, the share of
    words with the right tag; each 0 where its divisor is.

    Args:
        true, given: the tags of each text: those of the data and those of the model.
    """
    wanted, found = ([set(entities(tags)) for tags in texts] for texts in (true, given))
    counts = [sum(len(one & other) for one, other in zip(wanted, found, strict=True))]
    counts += [sum(map(len, wanted)), sum(map(len, found))]
    scores = scores_of_labels(*(np.array([count]) for count in counts))
    words = sum(map(len, true))
    same = sum(one == other for texts in zip(true, given, strict=True) for one, other in zip(*texts, strict=True))
    micro = {name: float(getattr(scores, name)[0]) for name in ("f1", "precision", "recall")}
    return {**micro, "accuracy": same / words if words else 0.0}


def most_frequent(words: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the most frequent tag of each word."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text, given in zip(words, tags, strict=True):
        for word, tag in zip(text, given, strict=True):
            counts[word][tag] += 1
    return {word: count.most_common(1)[0][0] for word, count in counts.items()}
