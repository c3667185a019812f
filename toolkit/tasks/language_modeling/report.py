"""Write a language model's sections of a run's page, from the files of predictions and samples only.

They show the perplexity of each control code, the blocks with the highest and lowest loss, and samples of text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from toolkit.pages.elements import Section, excerpt, name, render_macro, share, table
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading
from toolkit.tasks.language_modeling.samples import SAMPLES_FILE
from toolkit.tasks.metrics import perplexity_of_loss

#: Number of blocks in each list.
BLOCKS_SHOWN = 5


@dataclass
class CodeOutcome:
    """Results on a control code's text: the sum of its tokens' losses, and the numbers of tokens and blocks."""

    loss: float = 0.0
    tokens: int = 0
    blocks: int = 0


@dataclass
class TextOutcome:
    """Results on a split: its control codes, and the rows with the highest and with the lowest loss."""

    codes: dict[str, CodeOutcome] = field(default_factory=dict)
    hardest: list[dict[str, str]] = field(default_factory=list)
    easiest: list[dict[str, str]] = field(default_factory=list)


def report_sections(folder: Path, predictions_path: Path, results: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the sections, in order.

    Raises:
        UserError: a file is damaged, or the predictions file is missing.
    """
    outcome = read_outcome(predictions_path)
    perplexity = {code: perplexity_of_loss(result.loss / result.tokens) for code, result in outcome.codes.items()}
    highest = max((value for value in perplexity.values() if math.isfinite(value)), default=0.0)
    rows = [
        (name(code), f"{result.blocks:,}", f"{result.tokens:,}", f"{result.loss / result.tokens:.4f}",
         share(perplexity[code], f"{perplexity[code]:.2f}", highest))
        for code, result in outcome.codes.items()
    ]  # fmt: skip
    titles = ("control code", "blocks", "tokens", "loss", "perplexity")
    worst = max(perplexity, key=lambda code: perplexity[code])
    highlight = f"Highest perplexity: {worst}, {perplexity[worst]:.2f}" if len(perplexity) > 1 else ""
    yield Section("Perplexity by control code", [table(titles, rows, "Lower is better", "numbers")], highlight)
    yield Section("Blocks that it expected least", [_blocks(outcome.hardest, "The highest losses")])
    yield Section("Blocks that it expected most", [_blocks(outcome.easiest, "The lowest losses")])
    yield from _samples(folder / SAMPLES_FILE)


def read_outcome(predictions_path: Path) -> TextOutcome:
    """Read the predictions file, and keep only the texts that are shown."""
    outcome = TextOutcome()
    with reading(predictions_path, REMEDY):
        for row in read_predictions(predictions_path):
            tokens, loss = int(row["tokens"]), float(row["loss"])
            code = outcome.codes.setdefault(row["control_code"], CodeOutcome())
            code.loss, code.tokens, code.blocks = code.loss + loss * tokens, code.tokens + tokens, code.blocks + 1
            outcome.hardest = sorted([*outcome.hardest, row], key=lambda row: -float(row["loss"]))[:BLOCKS_SHOWN]
            outcome.easiest = sorted([*outcome.easiest, row], key=lambda row: float(row["loss"]))[:BLOCKS_SHOWN]
        if not outcome.codes:
            raise ValueError("it has no rows")
    return outcome


def _blocks(rows: Sequence[Mapping[str, str]], caption: str) -> Markup:
    """Return a table of text blocks with their control code, loss and perplexity."""
    lines = [
        (row["block"], name(row["control_code"]), row["tokens"], f"{float(row['loss']):.3f}",
         f"{float(row['perplexity']):.1f}", excerpt(row["text"]))
        for row in rows
    ]  # fmt: skip
    titles = ("block", "control code", "tokens", "loss", "perplexity", "text")
    return table(titles, lines, caption, "texts cards")


def _samples(path: Path) -> Iterator[Section]:
    """Show how the model continues the first words of texts not used in training."""
    if not path.exists():
        return
    explanation = "Continuations of the first words of a text that is no training text, by the decoding named."
    with reading(path, REMEDY):
        samples = [(one["control"], one["prompt"], one["texts"].items()) for one in json.loads(path.read_text("utf-8"))]
    yield Section(
        "Samples",
        [explanation, *(render_macro("tasks/language_modeling/sample.html", "sample", *sample) for sample in samples)],
    )
