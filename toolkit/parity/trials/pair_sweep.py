"""A sweep over a user's pair: gates with different batches, weights, training settings and configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from toolkit.errors import UserError
from toolkit.machine.scratch import scratch_folder
from toolkit.parity.exchange import files
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.inputs.synthetic import KINDS
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.job.pair import DESCRIBE
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.pairs.describe import match_sides, run_sides, weights_of, write_pair
from toolkit.parity.pairs.weights import make_weights
from toolkit.parity.request.build import workers_of
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.choices import choose_values, make_chooser
from toolkit.parity.trials.sweep import TRAINING as RUN_TRAINING
from toolkit.parity.trials.sweep import judge_jobs

#: Values that each training setting of a pair's gate may have, by the setting.
TRAINING = {
    key: values for key, values in RUN_TRAINING.items() if key not in ("batch_size", "gradient_accumulation_steps")
}


class PairSweep:
    """The gates of a sweep over a user's pair.

    Each seed draws the batch, dropout, weights, training settings and configuration.

    Args:
        request: request for the pair, without a configuration.
        choices: values that each key of the configuration may have, by the key.
        kind: kind of the synthetic weights; None for a random kind.
    """

    def __init__(self, request: GateRequest, choices: Mapping[str, Sequence[Any]], kind: str | None = None) -> None:
        self.request = request
        self.choices = choices
        self.kind = kind

    def make_request(self, seed: int) -> GateRequest:
        """Return the request for the gate with this seed."""
        one_of = make_chooser(seed)
        config = choose_values(self.choices, one_of)
        training = TrainingSettings(**choose_values(TRAINING, one_of))
        return replace(self.request, config=config, seed=seed, training=training)

    def choose_kind(self, request: GateRequest) -> str:
        """Return the kind of synthetic weights in a gate, which depends on the gate's seed."""
        return self.kind or KINDS[np.random.default_rng([request.seed, 1]).integers(len(KINDS))]

    def describe_request(self, request: GateRequest) -> str:
        """Return a gate's kind of weights, configuration and training settings, as text."""
        config = [f"{key} {value}" for key, value in request.config.items() if len(self.choices[key]) > 1]
        training = [f"{key} {getattr(request.training, key)}" for key in ("max_steps", "lr_scheduler")]
        return ", ".join([f"{self.choose_kind(request)} weights", *config, *training])

    def judge_all(self, requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
        """Return the verdict and the operation trace of each gate.

        Each pair is described first, since another configuration may have other layers.

        Args:
            requests: requests for the gates.
            console: console for progress.

        Raises:
            UserError: a side fails with the drawn configuration. The message has the options that repeat the gate.
        """
        workers = workers_of(requests[0])
        with scratch_folder("sweep-") as scratch:
            jobs = [scratch / str(number) for number in range(len(requests))]
            try:
                run_sides(requests, jobs, console, workers)
            except UserError as error:
                failed_request = next(r for r, job in zip(requests, jobs, strict=True) if not _is_described(job))
                raise UserError(f"{self._describe_options(failed_request)}: {error}") from None
            for request, job in zip(requests, jobs, strict=True):
                self._write_pair(request, job)
            return judge_jobs(jobs, console, workers)

    def _write_pair(self, request: GateRequest, job: Path) -> None:
        """Fill the job folder of a gate whose two sides have been described.

        Args:
            request: request for the gate.
            job: folder of the job.
        """
        try:
            sides = match_sides(request, job, weights_of(job))
        except UserError as error:
            raise UserError(f"{self._describe_options(request)}: {error}") from None
        weights = make_weights(sides.reference.parameters, sides.weights, self.choose_kind(request), request.seed)
        write_pair(request, sides, weights, job)

    @staticmethod
    def _describe_options(request: GateRequest) -> str:
        """Return the seed and configuration of a gate as options of the command line."""
        return " ".join([f"--seed {request.seed}", *(f"{key}={value}" for key, value in request.config.items())])


def _is_described(job: Path) -> bool:
    """Return whether both sides of a pair have written their descriptions into a job folder."""
    return all(files.result_path(job, side, DESCRIBE).exists() for side in ("reference", "candidate"))
