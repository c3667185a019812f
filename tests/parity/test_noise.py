"""Test the runs that measure the rounding of the reference: they must round differently."""

from __future__ import annotations

import numpy as np

from toolkit.parity.exchange import files
from toolkit.parity.reference.step import make_step
from toolkit.parity.request.build import write_request
from toolkit.parity.trials.mutation import trial_request


def test_fully_masked_scores_are_rounded_differently_in_every_run(tmp_path):
    request = trial_request("ctrl", "heavy-tailed", 0)
    write_request(request, request.weights, tmp_path)
    step = make_step(files.read_job(tmp_path), tmp_path)
    blind = np.cumsum(request.batch["attention_mask"], axis=1) == 0  # rows that attend only to padding and later tokens
    assert blind.any()

    def compute_attention(dtype: str, nudge: int) -> np.ndarray:
        outputs: dict[str, np.ndarray] = {}
        step.run(dtype, outputs.__setitem__, nudge=nudge)
        return outputs["output:transformer.h.0.multi_head_attention"].astype("float64")

    truth = compute_attention("float64", 0)
    runs = [compute_attention("float32", nudge) for nudge in range(4)]
    errors = [np.abs(run - truth) for run in runs]
    assert min(error[blind].max() for error in errors) > 10 * max(error[~blind].max() for error in errors)
    for index, run in enumerate(runs):
        min_distance = min(np.abs(run - other_run)[blind].max() for other_run in runs[:index] + runs[index + 1 :])
        assert min_distance > 0.3 * errors[index][blind].max()
    assert max(error[~blind].max() for error in errors[1:]) < 3 * errors[0][~blind].max()
