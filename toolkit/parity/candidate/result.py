"""The port's computations in a gate, without a fault and with each mutant in force.

They are the step in each dtype, the port's own draws, loaded weights, newly initialized weights and tokens. Nothing is
measured here. All results are sent to the comparator (:mod:`toolkit.parity.exchange.handover`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.families import part
from models.files import hub
from models.port import lora
from toolkit.machine import runtime
from toolkit.parity.candidate import generators, judged_trainer, loop_errors
from toolkit.parity.candidate.family_step import PortedStep, ported_class
from toolkit.parity.candidate.step import PLAIN, make_step, step_class
from toolkit.parity.candidate.tokens import tokenizer_places, tokens
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.measure.initial_values import NUM_MODELS, sample_values
from toolkit.parity.mutants import Mutant, find_mutant


def run(job: Job, folder: Path, sender: Sender, kernels: object = None) -> None:
    """Run the port in every dtype of the job, its mutants, and its tokenizer, and send all results.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
        sender: sending end of the pipe to the comparator.
        kernels: not used.
    """
    sender.begin()
    sender.send_json("tokens", tokens(job.tokenizer, job.model))  # meanwhile the reference computes R64
    sender.send_json("tokenizer places", tokenizer_places(job.tokenizer, job.model))
    _run_streamed(job, folder, sender) if job.streamed else _run_whole(job, folder, sender)
    sender.begin()


def _run_whole(job: Job, folder: Path, sender: Sender) -> None:
    """Run the port with the whole model in memory, in every dtype, and with each mutant.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
    """
    kind = step_class(job.model)
    early = issubclass(kind, PortedStep) and job.at_once
    if early:
        _send_parts_without_reference(job, folder, sender)
    files.wait_for_reference(folder, "order.json" if job.at_once else "result.json")
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    for dtype in job.dtypes:
        sender.begin("", dtype)
        send_dtype(job, folder, sender, truth, dtype, sends_replays=not early)
        if job.brief:
            gc.collect()  # frees the port, whose objects refer to each other
    sender.begin()
    if issubclass(kind, PortedStep):
        if not early:
            _send_draws_and_trainer(job, folder, sender)
        sender.send_json("loops", loop_errors.cached_errors())
        send_loaded_weights(job, sender)
        send_initial_values(job, sender)
    sender.send_json("leaks", kind.leaks())
    sender.send_json("limited lines", kind.limited_lines())
    _send_mutants(job, folder, sender, truth)


def _send_draws_and_trainer(job: Job, folder: Path, sender: Sender) -> None:
    """Send counts of the port's own random draws, and the description of the trainer.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
    """
    generators.send_draws(job, folder, sender)
    sender.send_json("judged", judged_trainer.of_run(job, folder))


def _send_parts_without_reference(job: Job, folder: Path, sender: Sender) -> None:
    """Send the results that do not need R64, while the reference computes R64 and leaves processor time free.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
    """
    files.wait_for_reference(folder, "constants.safetensors")
    step = make_step(job, folder, job.dtypes[0])
    backwards = step.backwards
    step.places()  # reads the source code once for all dtypes
    del step
    _send_draws_and_trainer(job, folder, sender)
    if not job.brief:
        for dtype in job.dtypes:
            sender.begin("", dtype)
            send_replays(backwards, job, folder, sender, dtype)
    sender.begin()


def _run_streamed(job: Job, folder: Path, sender: Sender) -> None:
    """Run the port stage by stage, with all mutants in force at once, since each stage is computed only once.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
    """
    with contextlib.ExitStack() as faults:
        for name in job.mutants:
            faults.enter_context(find_mutant(name).in_force())
        family_part(job.model, "candidate_stages").run(job, folder, sender)


def send_loaded_weights(job: Job, sender: Sender) -> None:
    """Send the weights that the port's loader reads from the checkpoint, if the job has one.

    Args:
        job: description of the comparison.
        sender: connection to the comparator.
    """
    sender.send_json("loader", None)
    if job.checkpoint is not None:
        config = part(job.model, "schema").resolve(job.checkpoint_config or job.config)
        tensors = hub.read_tensors(Path(job.checkpoint))
        sender.send_arrays("loaded", part(job.model, "weights").select(tensors, config, job.head).items())


def send_initial_values(job: Job, sender: Sender) -> None:
    """Send samples of the values of each parameter in a few newly initialized models (:meth:`.Samples.tensors`).

    The parameters are initialized as in training.

    Args:
        job: description of the comparison.
        sender: connection to the comparator.
    """
    sender.send_json("new place", f"models/{job.model}/weights.py")
    config = part(job.model, "schema").resolve(job.config)
    models = (_new_model(job, config, job.seed + number) for number in range(NUM_MODELS))
    sender.send_arrays("new values", sample_values(models).tensors().items())


def _new_model(job: Job, config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return the parameters of a newly initialized model by name, and those that an adapter adds."""
    weights = part(job.model, "weights")
    new = weights.initial_weights(config, job.head, seed)
    if job.lora is None:
        return new
    return {**new, **dict(lora.draw_adapter(weights.parameters(config, job.head), lora.LoRA.from_json(job.lora), seed))}


def send_dtype(
    job: Job,
    folder: Path,
    sender: Sender,
    truth: Mapping[str, np.ndarray],
    dtype: str,
    *,
    sends_replays: bool = True,
    checks_hooks: bool = True,
) -> None:
    """Run everything that is compared in one dtype, and send the tensors.

    These are the step with hooks as in training, the step without hooks, the evaluations, a few updates, and the step
    with the other backward.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
        sender: sending end of the pipe to the comparator.
        truth: R64's tensors by name; the updates use its gradients.
        dtype: ``float64``, ``float32`` or ``bfloat16``.
        sends_replays: whether to call :func:`send_replays`.
        checks_hooks: whether to run the step without hooks.
    """
    step = make_step(job, folder, dtype)
    step.sender = sender

    def tensor(name: str, value: np.ndarray) -> None:
        """Send a tensor of the step, an evaluation or an update."""
        sender.send_array("tensor", name, value)

    step.run(tensor)
    sender.send_arrays("held", step.parameter_values())
    sender.send_arrays("constant", step.constants.items())
    sender.send_json("facts", step.facts())
    if checks_hooks and not job.brief:
        step.run(lambda name, value: sender.send_array("unwatched", name, value), with_hooks=False)
    step.evaluate(tensor)
    step.train_on(job, folder, tensor, truth)
    sender.send_json("places", step.places())
    backwards = step.backwards
    if not isinstance(step, PortedStep):
        return
    del step
    if job.spare_memory:  # before the other backward takes as much again; the Trainer is in a cycle with its callbacks
        gc.collect()
    sender.send_json("is plain first", backwards[0] == PLAIN)
    other = make_step(job, folder, dtype, backwards[1])
    other.run(lambda name, value: sender.send_array("second", name, value), with_hooks=False)
    del other
    if sends_replays and not job.brief:
        send_replays(backwards, job, folder, sender, dtype)


def send_replays(backwards: tuple[str, str], job: Job, folder: Path, sender: Sender, dtype: str) -> None:
    """Send the gradients of both backwards with the port's own random draws.

    Recorded draws repeat by name in any port. Here only a port that replays its generator in the recomputing backward
    gives equal gradients. The residual streams are wide, which lose nothing in the backward. Plain streams lose digits,
    and a ReLU sign that flips because of that does not indicate a fault of the generator. A port with a single backward
    runs it twice.

    Args:
        backwards: names of the two backwards (:attr:`.step.Step.backwards`).
        job: the job.
        folder: job folder.
        sender: sending end of the pipe to the comparator.
        dtype: ``float64``, ``float32`` or ``bfloat16``.
    """
    job = replace(job, port={key: value for key, value in job.port.items() if key != "residual"})
    kinds = ("own plain", "own again") if backwards[0] == PLAIN else ("own again", "own plain")
    for backward, kind in zip(backwards, kinds, strict=True):
        own = ported_class(job.model)(job, folder, dtype, backward)
        runtime.seed_everything(job.seed)
        sender.send_arrays(kind, own.own_gradients())


def _send_mutants(job: Job, folder: Path, sender: Sender, truth: Mapping[str, np.ndarray]) -> None:
    """Send the results of each of the job's mutants.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
        truth: R64's tensors by name.
    """
    for name in job.mutants:
        send_mutant(job, folder, sender, truth, name)
        gc.collect()  # frees the port, whose objects refer to each other


def needs_replays(mutant: Mutant) -> bool:
    """Return whether a trial of a fault compares two backwards that replay the port's own draws."""
    return mutant.draws or mutant.culprit == "replay" or bool(mutant.harmless)


def needs_draws(mutant: Mutant) -> bool:
    """Return whether the trial of a mutant includes the port's own draws.

    It does if the draws may show the fault, or if the change is harmless and no part of a gate may report it.
    """
    return mutant.draws or bool(mutant.harmless)


def send_mutant(job: Job, folder: Path, sender: Sender, truth: Mapping[str, np.ndarray], name: str) -> None:
    """Send the port's results with a mutant in force, or the error that the port raises.

    Only the part of the gate and the dtype that can show the fault are run.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
        sender: sending end of the pipe to the comparator.
        truth: R64's tensors by name.
        name: name of the mutant.
    """
    mutant = find_mutant(name)
    job = replace(job, port={**job.port, **mutant.settings}, brief=job.brief or job.pair is not None)
    sender.begin(name)
    with mutant.in_force():
        try:
            if mutant.tokenizer:
                sender.send_json("tokens", tokens(job.tokenizer, job.model))
            elif mutant.loader:
                send_loaded_weights(job, sender)
            elif mutant.initialization:
                send_initial_values(job, sender)
            else:
                sender.begin(name, mutant.dtype)
                parts = {"sends_replays": needs_replays(mutant), "checks_hooks": False}
                send_dtype(job, folder, sender, truth, mutant.dtype, **parts)
                sender.begin(name)
                if issubclass(step_class(job.model), PortedStep):
                    if needs_draws(mutant):
                        generators.send_draws(job, folder, sender)
                    if mutant.dtype == "float32":
                        sender.send_json("loops", loop_errors.measure_errors())
        except BrokenPipeError:
            raise
        except Exception as error:
            sender.begin(name)
            sender.send_json("raised", f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
