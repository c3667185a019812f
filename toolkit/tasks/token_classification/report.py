"""Token classification's sections of a run's page, from the predictions file alone: scores by type of entity, and the
most confident mistakes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from toolkit.pages.document import table
from toolkit.pages.markup import element
from toolkit.pages.plot import share
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading
from toolkit.tasks.metrics import scores_of_labels
from toolkit.tasks.question_answering.report import marked_passage

#: Mistakes listed, and characters of the text that are shown around each.
SHOWN, AROUND = 20, 100


def sections(predictions: Path) -> Iterator[Element]:
    """The sections, in order.

    Raises:
        UserError: the file is missing or damaged.
    """
    counts: dict[str, Counter[str]] = {"right": Counter(), "true": Counter(), "found": Counter()}
    mistakes: list[tuple[float, dict[str, Any], dict[str, Any] | None, str]] = []
    with reading(predictions, REMEDY):
        for row in read_predictions(predictions):
            true, found = json.loads(row["entities"]), json.loads(row["predicted_entities"])
            known = {_key(one) for one in true}
            counts["true"].update(one["label"] for one in true)
            counts["found"].update(one["label"] for one in found)
            counts["right"].update(one["label"] for one in found if _key(one) in known)
            for one in found:
                if _key(one) not in known:
                    near = [other for other in true if other["start"] < one["end"] and one["start"] < other["end"]]
                    mistakes.append((one["score"], one, near[0] if near else None, row["text"]))
            mistakes = sorted(mistakes, key=lambda mistake: -mistake[0])[:SHOWN]
    yield element("h2", "Entities by type")
    yield _by_type(counts) if counts["true"] | counts["found"] else element("p", "None in the data, and none found.")
    if mistakes:
        yield element("h2", "The most confident mistakes")
        yield element("p", element("mark", "The model's entity", class_="ours"), " and ",
                      element("mark", "that of the data", class_="theirs"), ".")  # fmt: skip
    for _, one, other, text in mistakes:
        yield _mistake(one, other, text)


def _key(entity: dict[str, Any]) -> tuple[int, int, str]:
    return entity["start"], entity["end"], entity["label"]


def _by_type(counts: dict[str, Counter[str]]) -> Element:
    kinds = sorted(counts["true"] | counts["found"])
    scores = scores_of_labels(*(np.array([counts[of][kind] for kind in kinds]) for of in ("right", "true", "found")))
    rows: list[tuple[Element | str, ...]] = [
        (kind, f"{counts['true'][kind]:,}", f"{counts['found'][kind]:,}", *(share(v, f"{v:.3f}", 1) for v in values))
        for kind, *values in zip(kinds, scores.precision, scores.recall, scores.f1, strict=True)
    ]
    header = ("type", "in the data", "found", "precision", "recall", "F1")
    return table(header, rows, "An entity is found if its first and last word and its type are right", "numbers")


def _mistake(one: dict[str, Any], other: dict[str, Any] | None, text: str) -> Element:
    first = max(one["start"] - AROUND, 0)
    row = {"passage": text[first : one["end"] + AROUND], "passage_start": str(first)}
    row |= {"start": str(one["start"]), "prediction": one["text"], "answer_start": str(other["start"]) if other else ""}
    said = f" {one['label']} (score {one['score']:.2f}); the data say "
    theirs = f"{other['text']} {other['label']}" if other else "nothing here"
    return element(
        "article",
        element("p", element("strong", one["text"], dir="auto"), said, element("strong", theirs, dir="auto")),
        marked_passage(row, [other["text"]] if other else []),
        class_="answer",
    )
