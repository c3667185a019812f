"""A right port of the user's, gated again and again: other batches, weights, settings and configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from toolkit.errors import UserError
from toolkit.machine.scratch import scratch_folder
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.job import files
from toolkit.parity.job.build import workers_of
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.job.pair import DESCRIBE
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.synthetic import KINDS
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.pairs.describe import ask, match_sides, weights_of, write_pair
from toolkit.parity.pairs.weights import make_weights
from toolkit.parity.trials.sweep import TRAINING as OF_RUN
from toolkit.parity.trials.sweep import judge_jobs

#: Optimizer settings that a pair's updates are made with.
TRAINING = {key: values for key, values in OF_RUN.items() if key not in ("batch_size", "gradient_accumulation_steps")}


class PairSweep:
    """The gates of a sweep: each seed draws the batch, the dropout, the weights, what trains, and the configuration.

    Args:
        request: the pair, without a configuration.
        choices: key of the configuration -> the values that it may have.
        kind: kind of the weights; None for all kinds.
    """

    def __init__(self, request: GateRequest, choices: Mapping[str, Sequence[Any]], kind: str | None = None) -> None:
        self.request = request
        self.choices = choices
        self.kind = kind

    def make(self, seed: int) -> GateRequest:
        """Return the gate of a seed."""
        draw = np.random.default_rng(seed)
        config = {key: values[draw.integers(len(values))] for key, values in self.choices.items()}
        settings = {key: values[draw.integers(len(values))] for key, values in TRAINING.items()}
        return replace(self.request, config=config, seed=seed, training=TrainingSettings(**settings))

    def kind_of(self, request: GateRequest) -> str:
        """Return the kind of a gate's weights."""
        return self.kind or KINDS[np.random.default_rng([request.seed, 1]).integers(len(KINDS))]

    def shown(self, request: GateRequest) -> str:
        """Return what varies most, for the line that reports it."""
        config = [f"{key} {value}" for key, value in request.config.items() if len(self.choices[key]) > 1]
        training = [f"{key} {getattr(request.training, key)}" for key in ("max_steps", "lr_scheduler")]
        return ", ".join([f"{self.kind_of(request)} weights", *config, *training])

    def judge_all(self, requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
        """As :func:`.sweep.judge_all`: each is described first, since another configuration may have other layers.
        Raises UserError if a side refuses what was drawn for it."""
        workers = workers_of(requests[0])
        with scratch_folder("sweep-") as scratch:
            jobs = [scratch / str(number) for number in range(len(requests))]
            try:
                ask(requests, jobs, console, workers)
            except UserError as problem:
                failed = next(r for r, job in zip(requests, jobs, strict=True) if not _is_described(job))
                raise UserError(f"{self._drawn(failed)}: {problem}") from None
            for request, job in zip(requests, jobs, strict=True):
                self._write(request, job)
            return judge_jobs(jobs, console, workers)

    def _write(self, request: GateRequest, job: Path) -> None:
        try:
            sides = match_sides(request, job, weights_of(job))
        except UserError as problem:
            raise UserError(f"{self._drawn(request)}: {problem}") from None
        weights = make_weights(sides.reference.parameters, sides.weights, self.kind_of(request), request.seed)
        write_pair(request, sides, weights, job)

    @staticmethod
    def _drawn(request: GateRequest) -> str:
        """Return what was drawn for a gate, as the options that ask for it alone."""
        return " ".join([f"--seed {request.seed}", *(f"{key}={value}" for key, value in request.config.items())])


def _is_described(job: Path) -> bool:
    return all(files.result_path(job, side, DESCRIBE).exists() for side in ("reference", "candidate"))
