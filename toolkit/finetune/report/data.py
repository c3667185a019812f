"""The page's section of a run's data: rows, lengths and labels of each split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import Element

from toolkit.finetune.data_facts import SHARES
from toolkit.pages.document import name, scrolled, table
from toolkit.pages.markup import element
from toolkit.pages.plot import share

NAMES = {0.0: "shortest", 0.5: "median", 1.0: "longest"}


def data_sections(results: Mapping[str, Any], examples: str) -> Iterator[Element]:
    """Yield the sections; of an earlier version's run, which recorded no more, only the number of rows.

    Args:
        results: the content of metrics.json.
        examples: what the task calls them.
    """
    sizes, facts = results["examples"], results.get("data", {})
    lengths = {split: known["lengths"] for split, known in facts.items() if "lengths" in known}
    cut = {split: known["cut"] for split, known in facts.items() if "cut" in known}
    shares = [NAMES.get(at, f"{at:.0%}") for at in SHARES] if lengths else []
    rows = [
        (
            split,
            f"{size:,}",
            *([f"{cut.get(split, 0):,}"] if cut else []),
            *(f"{length:,}" for length in lengths.get(split, [])),
        )
        for split, size in sizes.items()
    ]
    caption = f"Lengths are in tokens; a percentage is of the {examples} that are at most as long" if lengths else None
    yield element("h2", "Data", id="data")
    titles = ("split", examples, *(["cut"] if cut else []), *shares)
    yield scrolled(table(titles, rows, caption, "numbers"), "data")
    yield from _labels({split: known["labels"] for split, known in facts.items() if "labels" in known})


def _labels(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Element]:
    """Yield how often each label occurs in each split, with its share of the split's labels."""
    if not counts:
        return
    totals = {split: sum(of.values()) for split, of in counts.items()}
    most = {split: max(of.values()) for split, of in counts.items()}
    labels = dict.fromkeys(label for of in counts.values() for label in of)
    rows = [
        (name(label), *(share(of.get(label, 0), f"{of.get(label, 0):,}", most[split]) for split, of in counts.items()))
        for label in labels
    ]
    caption = f"How often each of {len(labels)} labels occurs; a full bar is the most frequent one of a split"
    titles = ("label", *(f"{split} ({totals[split]:,})" for split in counts))
    yield scrolled(table(titles, rows, caption, "numbers"), "data", "scroll")
