"""The page's section of a run's data: rows, lengths and labels of each split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from toolkit.finetune.data_facts import SHARES
from toolkit.pages.elements import Section, name, share, table

#: Number of labels in the table of labels; the others open on a click.
LABELS_SHOWN = 16
NAMES = {0.0: "shortest", 0.5: "median", 1.0: "longest"}


def data_sections(results: Mapping[str, Any], plural_noun: str) -> Iterator[Section]:
    """Yield the section; for a run of an earlier version, which recorded no more, only the number of rows.

    Args:
        results: content of metrics.json.
        plural_noun: the task's plural noun for its examples.
    """
    sizes, facts = results["examples"], results.get("data", {})
    lengths = {
        split_name: facts_of_split["lengths"]
        for split_name, facts_of_split in facts.items()
        if "lengths" in facts_of_split
    }
    cut = {split_name: facts_of_split["cut"] for split_name, facts_of_split in facts.items() if "cut" in facts_of_split}
    shares = [NAMES.get(at, f"{at:.0%}") for at in SHARES] if lengths else []
    rows = [
        (
            split_name,
            f"{size:,}",
            *([f"{cut.get(split_name, 0):,}"] if cut else []),
            *(f"{length:,}" for length in lengths.get(split_name, [])),
        )
        for split_name, size in sizes.items()
    ]
    caption = f"Lengths are in tokens; a percentage is of the {plural_noun} that are at most as long" if lengths else ""
    titles = ("split", plural_noun, *(["cut"] if cut else []), *shares)
    labels = {
        split_name: facts_of_split["labels"]
        for split_name, facts_of_split in facts.items()
        if "labels" in facts_of_split
    }
    cut_texts = [f"{count:,} of {sizes[split_name]:,} in {split_name}" for split_name, count in cut.items() if count]
    highlight = f"Cut because they are too long: {', '.join(cut_texts)}" if cut_texts else ""
    yield Section("Data", [table(titles, rows, caption, "numbers"), *_labels(labels)], highlight)


def _labels(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Markup]:
    """Yield how often each label occurs in each split, with its share of the split's labels."""
    if not counts:
        return
    totals = {split_name: sum(label_counts.values()) for split_name, label_counts in counts.items()}
    max_counts = {split_name: max(label_counts.values()) for split_name, label_counts in counts.items()}
    labels = dict.fromkeys(label for label_counts in counts.values() for label in label_counts)
    rows = [
        (
            name(label),
            *(
                share(label_counts.get(label, 0), f"{label_counts.get(label, 0):,}", max_counts[split_name])
                for split_name, label_counts in counts.items()
            ),
        )
        for label in labels
    ]
    caption = f"How often each of {len(labels)} labels occurs; a full bar is the most frequent one of a split"
    titles = ("label", *(f"{split_name} ({totals[split_name]:,})" for split_name in counts))
    yield table(titles, rows, caption, "numbers", LABELS_SHOWN)
