"""What a run's data are, by split: how long in tokens, how many were cut, how often each label occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.tasks.classification.class_weights import label_counts

if TYPE_CHECKING:
    from toolkit.finetune.assembly import Assembled

#: Shares of a split's examples that are at most as long as the lengths recorded.
SHARES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)


def data_facts(job: Assembled) -> dict[str, dict[str, Any]]:
    """Split -> ``tokens`` (their sum), ``lengths`` (for each of :data:`SHARES`), ``cut`` and ``labels``; without what
    the task lacks."""
    found: dict[str, dict[str, Any]] = {}
    for split in job.prepared.sizes:
        counts = job.task.token_counts(getattr(job.prepared, split))
        facts = found[split] = {}
        if counts is not None:
            lengths = np.quantile(counts, SHARES, method="inverted_cdf").tolist()
            facts |= {"tokens": int(counts.sum()), "lengths": lengths}
        if split in job.prepared.num_truncated:
            facts["cut"] = job.prepared.num_truncated[split]
        if labels := label_counts(job.splits[split]):
            facts["labels"] = labels
    return found
