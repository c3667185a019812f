"""Trains a pair's reference independently several times, to measure how much rounding changes the training.

The first run in float64 is the truth. The other runs in float64 and float32 start from weights that are moved by one
unit in the last place. One run in float32 starts from unchanged weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import TrajectoryFacts
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.families.pair.batches import batch_of_step
from toolkit.parity.families.pair.reference import PairStep
from toolkit.parity.job import user_code
from toolkit.parity.job.job import Job
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.trajectory import Trajectory, choose_elements
from toolkit.parity.reference.noise import reorder_sums
from toolkit.parity.reference.optimizer import make_optimizer, scale_error
from toolkit.parity.reference.points import to_numpy
from toolkit.parity.reference.recorder import Draws, set_attribute
from toolkit.parity.reference.rounded_constants import ConstantRounding
from toolkit.parity.reference.step import make_step

#: Number of training runs in each dtype. The first run in float64 is the truth.
RUNS = {"float64": 3, "float32": 3}


def run(job: Job, folder: Path) -> TrajectoryFacts:
    """Train the reference in each run, write the trajectories and draws, and return the number of runs.

    Each trajectory has the losses, gradients and parameters of all steps. It is written to
    `reference/trajectory-DTYPE-RUN.safetensors`. The draws of each step are written to
    `reference/draws-step-STEP.safetensors`.

    Args:
        job: job of the pair, with the number of steps.
        folder: job folder.
    """
    assert job.pair is not None
    step = make_step(job, folder)
    assert isinstance(step, PairStep)
    step.drops_gradients = False
    reference_folder = folder / "reference"
    batches = TensorFile(folder / "batches.safetensors")
    places: dict[str, np.ndarray] = {}
    for dtype, num_runs in RUNS.items():
        for number in range(num_runs):
            trajectory = Trajectory(places)
            _train(step, job, dtype, number, batches, reference_folder, trajectory)
            files.write_tensors(reference_folder / f"trajectory-{dtype}-{number}.safetensors", trajectory.tensors())
    files.write_tensors(reference_folder / "places.safetensors", places)
    return TrajectoryFacts(runs=RUNS, order=[name for name, _ in step.model.named_parameters() if name in places])


def _train(
    step: PairStep, job: Job, dtype: str, run_number: int, batches: TensorFile, folder: Path, trajectory: Trajectory
) -> None:
    """Train the reference for the job's number of steps, and add each step to a trajectory.

    Args:
        step: step of the reference.
        job: job of the pair.
        dtype: dtype of the run.
        run_number: number of the run in this dtype, counted from 0.
        batches: batches of all steps, with tensors named `STEP|NAME`.
        folder: folder of the reference's files. Draws of the first run are written there, and later runs replay them.
        trajectory: trajectory of the run; it gets the losses, gradients and parameters of each step.
    """
    assert job.pair is not None
    nudge = run_number if dtype == "float64" else run_number and run_number + RUNS["float64"]
    step.load(dtype, nudge)
    with user_code.running(step.source):
        optimizer, schedule = create_optimizer(step, job)
    for step_number in range(1, job.pair.steps + 1):
        step.batch = {name: torch.from_numpy(value) for name, value in batch_of_step(batches, step_number).items()}
        draws_path = folder / f"draws-step-{step_number}.safetensors"
        draws = step.draws[TRAINING] = Draws(job.seed, step_number - 1)
        if draws_path.exists():
            draws.tensors = TensorFile(draws_path)  # type: ignore[assignment]  # nothing is drawn again
        tensors: dict[str, np.ndarray] = {}
        with (
            reorder_sums(dtype, run_number) if run_number else contextlib.nullcontext(),
            ConstantRounding(job.rounded[:: min(run_number, len(job.rounded))])
            if job.rounded and dtype == "float64" and run_number
            else contextlib.nullcontext(),
            user_code.running(step.source, alone=False),
        ):
            step.forward_and_backward(tensors.__setitem__, nudge, has_hooks=False)
        if not draws_path.exists():
            files.write_tensors(draws_path, draws.tensors)
        trajectory.add_loss(tensors.pop("loss"))
        gradients = {name.removeprefix("gradient:"): value for name, value in tensors.items()}
        if not trajectory.places:  # the first step of the first run; a parameter may be used only in later steps
            parameters = {name: value for name, value in step.model.named_parameters() if value.requires_grad}
            zeros = {name: np.broadcast_to(0.0, value.shape) for name, value in parameters.items()}
            trajectory.places |= {name: choose_elements(name, gradients.get(name, zeros[name])) for name in zeros}
        trajectory.add_gradients(gradients)
        if not hasattr(step.source, "optimizer"):
            for parameter in step.model.parameters():
                if parameter.grad is not None:  # torch's AdamW takes no sparse gradients
                    parameter.grad = parameter.grad.to_dense()
        with user_code.running(step.source), round_like_paddle(optimizer, dtype, run_number, step_number):
            optimizer.step()
        if schedule is not None:
            schedule.step()
        for name, parameter in step.model.named_parameters():
            trajectory.add_parameter(name, to_numpy(parameter))


def create_optimizer(step: PairStep, job: Job) -> tuple[torch.optim.Optimizer, Any]:
    """Return the optimizer that the user's file creates, with its schedule of learning rates or None.

    If the file has no ``optimizer`` function, the optimizer is torch's AdamW, without a schedule.

    Args:
        step: step of the reference.
        job: job of the pair, with the settings of AdamW.

    Raises:
        UserCodeError: the file's ``optimizer`` function does not return a torch optimizer, alone or with a schedule.
    """
    if not hasattr(step.source, "optimizer"):
        return make_optimizer(list(step.model.parameters()), job.training), None
    result = step.source.optimizer(step.model)
    optimizer, schedule = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(optimizer, torch.optim.Optimizer) or not (schedule is None or hasattr(schedule, "step")):
        raise user_code.UserCodeError(
            f"{user_code.display_path(step.source)}: optimizer() gave {type(result).__name__}; "
            "it is to give a torch optimizer, or an optimizer and its schedule"
        )
    return optimizer, schedule


@contextlib.contextmanager
def round_like_paddle(optimizer: torch.optim.Optimizer, dtype: str, run_number: int, step: int) -> Iterator[None]:
    """Let some runs update with Paddle's rounding inside the ``with`` block, since no port can avoid it.

    The last run in float64 rounds the optimizer's settings to float32, because kernels differ in the settings that they
    round. All float32 runs except the first correct Adam's bias in float32 (:func:`.optimizer.scale_error`). Both kinds
    of runs clip gradients without the 1e-6 that torch adds to the norm.

    Args:
        optimizer: optimizer of the run. Its settings are restored after the block.
        dtype: dtype of the run.
        run_number: number of the run in this dtype, counted from 0.
        step: number of the training step, counted from 1.
    """
    is_rounded = run_number == RUNS["float64"] - 1 if dtype == "float64" else run_number > 0
    initial_groups = [dict(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if dtype == "float64" and is_rounded:
            group.update({name: _to_float32(value) for name, value in group.items() if name not in ("params", "lr")})
        elif is_rounded and len(group.get("betas", ())) == 2:
            beta1, beta2 = group["betas"]
            group["lr"] = group["lr"] * (1 + scale_error(beta1, beta2, step))
    with clip_by_exact_norm() if is_rounded else contextlib.nullcontext():
        yield
    for group, values in zip(optimizer.param_groups, initial_groups, strict=True):
        group.update(values)


@contextlib.contextmanager
def clip_by_exact_norm() -> Iterator[None]:
    """Let torch clip gradients by their exact norm inside the ``with`` block.

    Torch adds 1e-6 to the norm, and Paddle does not. The relative difference of an update is up to 1e-6 divided by the
    norm.
    """
    module, name = torch.nn.utils.clip_grad, "_clip_grads_with_norm_"
    original = getattr(module, name, None)
    if original is None:  # before torch 2.6
        yield
        return
    restore = set_attribute(
        module, name, lambda parameters, max_norm, norm, *args: original(parameters, max_norm, norm - 1e-6, *args)
    )
    try:
        yield
    finally:
        restore()


def _to_float32(value: Any) -> Any:
    """Return a setting of an optimizer, with its floats rounded to float32."""
    if isinstance(value, tuple):
        return tuple(map(_to_float32, value))
    return float(np.float32(value)) if isinstance(value, float) else value
