"""Token classification's sections of a run's page, computed only from the predictions file.

They show scores by type of entity, and the most confident mistakes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from toolkit.pages.elements import Section, render_macro, share, table
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading
from toolkit.tasks.metrics import scores_of_labels
from toolkit.tasks.question_answering.report import ANSWERS, marked_passage

#: Maximum number of mistakes in the list, and number of characters that are shown around each.
MAX_MISTAKES, NUM_CONTEXT_CHARACTERS = 20, 100


def report_sections(predictions_path: Path) -> Iterator[Section]:
    """Yield the sections, in order.

    Args:
        predictions_path: path of the split's predictions file.

    Raises:
        UserError: the file is missing or damaged.
    """
    counts: dict[str, Counter[str]] = {"right": Counter(), "true": Counter(), "found": Counter()}
    mistakes: list[tuple[float, dict[str, Any], dict[str, Any] | None, str]] = []
    with reading(predictions_path, REMEDY):
        for row in read_predictions(predictions_path):
            reference_entities, predicted_entities = json.loads(row["entities"]), json.loads(row["predicted_entities"])
            reference_keys = {_entity_key(entity) for entity in reference_entities}
            counts["true"].update(entity["label"] for entity in reference_entities)
            counts["found"].update(entity["label"] for entity in predicted_entities)
            counts["right"].update(
                entity["label"] for entity in predicted_entities if _entity_key(entity) in reference_keys
            )
            for entity in predicted_entities:
                if _entity_key(entity) not in reference_keys:
                    overlapping = [
                        reference
                        for reference in reference_entities
                        if reference["start"] < entity["end"] and entity["start"] < reference["end"]
                    ]
                    mistakes.append((entity["score"], entity, overlapping[0] if overlapping else None, row["text"]))
            mistakes = sorted(mistakes, key=lambda mistake: -mistake[0])[:MAX_MISTAKES]
    has_entities = counts["true"] | counts["found"]
    yield Section(
        "Entities by type", [_scores_by_type(counts) if has_entities else "None in the data, and none found."]
    )
    if mistakes:
        marks = render_macro(ANSWERS, "marks", "the model's entity", "the entity of the data")
        entries = [_mistake(entity, reference, text) for _, entity, reference, text in mistakes]
        yield Section("The most confident mistakes", [marks, *entries])


def _entity_key(entity: dict[str, Any]) -> tuple[int, int, str]:
    """Return the start, end and label of an entity, for comparisons of entities."""
    return entity["start"], entity["end"], entity["label"]


def _scores_by_type(counts: dict[str, Counter[str]]) -> Markup:
    """Return a table of precision, recall and F1 for each type of entity.

    Args:
        counts: numbers of entities by type: ``true`` (in the data), ``found`` and ``right``.
    """
    entity_types = sorted(counts["true"] | counts["found"])
    scores = scores_of_labels(
        *(
            np.array([counts[count_name][entity_type] for entity_type in entity_types])
            for count_name in ("right", "true", "found")
        )
    )
    rows: list[tuple[Markup | str, ...]] = [
        (
            entity_type,
            f"{counts['true'][entity_type]:,}",
            f"{counts['found'][entity_type]:,}",
            *(share(v, f"{v:.3f}", 1) for v in values),
        )
        for entity_type, *values in zip(entity_types, scores.precision, scores.recall, scores.f1, strict=True)
    ]
    header = ("type", "in the data", "found", "precision", "recall", "F1")
    return table(header, rows, "An entity is found if its first and last word and its type are right", "numbers")


def _mistake(entity: dict[str, Any], reference_entity: dict[str, Any] | None, text: str) -> Markup:
    """Return a passage of a text with a wrongly predicted entity, and the entity of the data.

    Args:
        entity: predicted entity: start, end, label, text and score.
        reference_entity: overlapping entity of the data; None if there is none.
        text: the whole text.
    """
    passage_start = max(entity["start"] - NUM_CONTEXT_CHARACTERS, 0)
    row = {"passage": text[passage_start : entity["end"] + NUM_CONTEXT_CHARACTERS], "passage_start": str(passage_start)}
    row |= {
        "start": str(entity["start"]),
        "prediction": entity["text"],
        "answer_start": str(reference_entity["start"]) if reference_entity else "",
    }
    verdict = f" {entity['label']} (score {entity['score']:.2f}); the data say "
    theirs = f"{reference_entity['text']} {reference_entity['label']}" if reference_entity else "nothing here"
    passage = marked_passage(row, [reference_entity["text"]] if reference_entity else [])
    return render_macro(ANSWERS, "answer", "", "", entity["text"], verdict, theirs, *passage)
