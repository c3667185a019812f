"""The page at `/`: a form with the fields of a request, the answer, and the same request for a program."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from toolkit.commands.serve.requests import MAX_TEXTS, Service
from toolkit.pages.elements import render_page
from toolkit.run_folder.predictions import SPLITS, predictions_file, read_predictions
from toolkit.tasks.language_modeling.samples import SAMPLES_FILE
from toolkit.terminal.progress import format_number

#: Number of example texts on the page, and maximum number of characters of each.
NUM_EXAMPLES, MAX_EXAMPLE_CHARACTERS = 3, 4000
#: Field of a request -> column of a predictions file that holds it under another name.
COLUMNS = {"context": "passage"}


def build_page(about: Mapping[str, Any], service: Service, folder: Path) -> str:
    """Return the HTML of the page.

    Args:
        about: description of the run, as ``/model`` answers.
        service: service of the run.
        folder: run folder, whose predictions have the example texts.
    """
    examples: list[dict[str, str]] = []
    split_name = next((name for name in SPLITS if predictions_file(folder, name).exists()), "test")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, csv.Error):  # a damaged file has no examples
        examples.extend(islice(_examples(service, folder, split_name), NUM_EXAMPLES))
    return render_page(
        "commands/serve/serve.html",
        title=f"{about['run']}: {about['task']}",
        about=about,
        description=list(_describe_model(about)),
        service=service,
        options=[name for name in service.request.model_fields if name not in service.texts],
        split_name=split_name,
        examples=examples,
        max_texts=MAX_TEXTS,
        sections=[],
    )


def _describe_model(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that describe the model and its metrics."""
    yield f"{about['model']} for {about['task']}"
    for split_name, numbers in about["metrics"].items():
        metrics = [f"{name} {format_number(value)}" for name, value in numbers.items() if isinstance(value, float)]
        yield f"{split_name}: {', '.join(metrics[:4])}"


def _examples(service: Service, folder: Path, split_name: str) -> Iterator[dict[str, str]]:
    """Yield texts of a split as fields of a request; none if the run has no predictions with these texts."""
    samples, predictions = folder / SAMPLES_FILE, predictions_file(folder, split_name)
    if service.texts == ("prompt",) and samples.exists():
        rows = json.loads(samples.read_text(encoding="utf-8"))
    else:
        rows = read_predictions(predictions) if predictions.exists() else []
    for row in rows:
        fields = {name: row.get(COLUMNS.get(name, name), "") for name in service.texts}
        if all(0 < len(text) <= MAX_EXAMPLE_CHARACTERS for text in fields.values()):
            yield fields
