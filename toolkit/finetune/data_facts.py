"""What a run's data are, by split: how long in tokens, how many were cut, how often each label occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.tasks.classification.class_weights import label_counts

if TYPE_CHECKING:
    from toolkit.finetune.assembly import AssembledRun

#: Shares of a split's examples that are at most as long as the lengths recorded.
SHARES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)


def data_facts(job: AssembledRun) -> dict[str, dict[str, Any]]:
    """Return the facts about each split, by its name, without facts that the task lacks.

    They are ``tokens`` (the sum of all lengths), ``lengths`` (a quantile for each of :data:`SHARES`), ``cut`` and
    ``labels``.
    """
    facts_by_split: dict[str, dict[str, Any]] = {}
    for split_name in job.prepared_data.sizes:
        counts = job.task.token_counts(getattr(job.prepared_data, split_name))
        facts = facts_by_split[split_name] = {}
        if counts is not None:
            lengths = np.quantile(counts, SHARES, method="inverted_cdf").tolist()
            facts |= {"tokens": int(counts.sum()), "lengths": lengths}
        if split_name in job.prepared_data.num_truncated:
            facts["cut"] = job.prepared_data.num_truncated[split_name]
        if labels := label_counts(job.splits[split_name]):
            facts["labels"] = labels
    return facts_by_split
