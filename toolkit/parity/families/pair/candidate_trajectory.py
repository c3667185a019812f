"""Trains a pair's port independently in each dtype, on the reference's batches and draws."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import paddle

from toolkit.parity.candidate.places import line_of
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Place, TrajectoryFacts
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.families.pair.batches import batch_of_step
from toolkit.parity.families.pair.candidate import PairStep, as_tensors, create_adamw
from toolkit.parity.families.pair.replaced_functions import use_dense_gradients
from toolkit.parity.job import user_code
from toolkit.parity.job.job import Job
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.trajectory import Trajectory


def run(job: Job, folder: Path, sender: object = None, kernels: object = None) -> TrajectoryFacts:
    """Train the port in each dtype, write the trajectories, and return the optimizer's source location.

    Each trajectory has the losses, gradients and parameters of all steps. It is written to
    `candidate/trajectory-DTYPE.safetensors`.

    Args:
        job: job of the pair, with the number of steps.
        folder: job folder, with the reference's files.
        sender: unused.
        kernels: unused.
    """
    places = dict(files.read_tensors(folder / "reference" / "places.safetensors"))
    batches = TensorFile(folder / "batches.safetensors")
    optimizer = None
    for dtype in job.dtypes:
        step = PairStep(job, folder, dtype)
        trajectory = Trajectory(places)
        optimizer = _train(step, job, folder, batches, trajectory)
        files.write_tensors(folder / "candidate" / f"trajectory-{dtype}.safetensors", trajectory.tensors())
    optimizer_function = getattr(step.source, "optimizer", None)
    function_line = line_of(optimizer_function, "def optimizer") if optimizer_function is not None else None
    return TrajectoryFacts(
        optimizer=Place(type(optimizer).__name__, function_line or "the gate's own, as no file has optimizer(model)")
    )


def _train(step: PairStep, job: Job, folder: Path, batches: TensorFile, trajectory: Trajectory) -> Any:
    """Train the port for the job's number of steps, add each step to a trajectory, and return the optimizer.

    Args:
        step: step of the port in one dtype.
        job: job of the pair.
        folder: job folder.
        batches: batches of all steps, with tensors named `STEP|NAME`.
        trajectory: trajectory of the run.
    """
    assert job.pair is not None
    with step.use_step_dtype(), user_code.running(step.source):
        optimizer = create_optimizer(step, job)
    rate = getattr(optimizer, "_learning_rate", None)
    for number in range(1, job.pair.steps + 1):
        step.batch = as_tensors(batch_of_step(batches, number), step.dtype)
        step.recorded_draws = {TRAINING: TensorFile(folder / "reference" / f"draws-step-{number}.safetensors")}
        step.model.clear_gradients()
        # Paddle's AdamW takes no sparse gradients; a file's own optimizer may.
        gradients = contextlib.nullcontext() if hasattr(step.source, "optimizer") else use_dense_gradients()
        with gradients, user_code.running(step.source, alone=False), step.replay_draws(lambda *_: None):
            step.backward(step.compute(step.batch), lambda _, value: trajectory.add_loss(value))
        trajectory.add_gradients({key: value for key, value in step.parameter_gradients() if key in trajectory.places})
        made_by = getattr(step.source, "optimizer", None)
        with step.use_step_dtype(), user_code.running(step.source, made_by=made_by):
            optimizer.step()
        if isinstance(rate, paddle.optimizer.lr.LRScheduler):
            rate.step()
        for name, value in step.parameter_values():
            trajectory.add_parameter(name, value)
    return optimizer


def create_optimizer(step: PairStep, job: Job) -> paddle.optimizer.Optimizer:
    """Return the optimizer that the user's file creates, or Paddle's AdamW if it has no ``optimizer`` function.

    Args:
        step: step of the port.
        job: job of the pair, with the settings of AdamW.

    Raises:
        UserCodeError: the file's ``optimizer`` function does not return a Paddle optimizer.
    """
    if not hasattr(step.source, "optimizer"):
        return create_adamw(step.model, job.training)
    optimizer = step.source.optimizer(step.model)
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        raise user_code.UserCodeError(
            f"{user_code.display_path(step.source)}: optimizer() gave {type(optimizer).__name__}; "
            "it is to give a Paddle optimizer"
        )
    return optimizer
