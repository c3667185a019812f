"""What is measured of the port: every tensor against the truth, its own backward against plain autograd."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from toolkit import runtime
from toolkit.parity.candidate import generators
from toolkit.parity.candidate.checkpoint import loading_problems
from toolkit.parity.candidate.initialisation import new_weights
from toolkit.parity.candidate.step import PLAIN, Step, make_step, step_class
from toolkit.parity.candidate.tokens import tokenizer_places, tokens
from toolkit.parity.job import files
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import (
    CandidateDtype,
    CandidateResult,
    GeneratorStats,
    MutantResult,
    NewWeights,
    Replayed,
)
from toolkit.parity.job.tensor_file import TensorFile, are_one
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.evaluation import TRAINING, named
from toolkit.parity.measure.latest import Latest
from toolkit.parity.measure.naming import is_gradient
from toolkit.parity.mutants import by_name


def run(job: Job, folder: Path, kernels: object = None) -> CandidateResult:
    """The port in every dtype of the job, its mutants, and what its tokenizer makes of the job's texts."""
    tokenized = tokens(job.tokenizer)  # while the reference still computes
    result = _run_streamed(job, folder) if job.streamed else _run_whole(job, folder)
    result.tokens, result.tokenizer_places = tokenized, tokenizer_places(job.tokenizer)
    return result


def _run_whole(job: Job, folder: Path) -> CandidateResult:
    """The port with the whole model in memory, in every dtype, and its mutants."""
    early = step_class(job.model).is_ported and job.at_once
    own = _with_own_draws(job, folder) if early else OwnDraws()
    files.wait_for_reference(folder, "order.json" if job.at_once else "result.json")
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    kind = step_class(job.model)
    right: dict[str, np.ndarray] = {}
    dtypes = {
        dtype: measure_dtype(
            job,
            folder,
            truth,
            dtype,
            seen_values=None if kind.is_ported or dtype != "float64" else right,
            replay=own.replays.get(dtype),
        )
        for dtype in job.dtypes
    }
    return CandidateResult(
        dtypes=dtypes,
        generators=own.generators or _generators(job, folder),
        loading_problems=loading_problems(job, folder) if kind.is_ported else {},
        new_weights=new_weights(job, folder) if kind.is_ported else NewWeights(),
        mutants=_measure_mutants(job, folder, truth, right),
        leaks=kind.leaks(),
    )


@dataclass
class OwnDraws:
    """What the port does with its own generator: what was counted of its draws, and by dtype what :func:`replayed`
    gives; nothing of either where it has not been done yet."""

    generators: GeneratorStats | None = None
    replays: dict[str, dict[str, Replayed]] = field(default_factory=dict)


def _with_own_draws(job: Job, folder: Path) -> OwnDraws:
    """What asks nothing of R64, done while the reference still computes that: it has the processor to itself else."""
    files.wait_for_reference(folder, "constants.safetensors")
    step = make_step(job, folder, job.dtypes[0])
    backwards = step.backwards
    step.places()  # looked up in the source once, and needed in every dtype
    del step
    own = OwnDraws(_generators(job, folder))
    if not job.brief:
        own.replays = {dtype: replayed(backwards, job, folder, dtype) for dtype in job.dtypes}
    return own


def _generators(job: Job, folder: Path) -> GeneratorStats:
    """The port's own random draws; a user's are Paddle's, and only where they are made is compared."""
    return generators.measure(job, folder) if step_class(job.model).is_ported else GeneratorStats()


def _run_streamed(job: Job, folder: Path) -> CandidateResult:
    """The port stage by stage; mutants are all in force at once, as each stage is computed once."""
    with contextlib.ExitStack() as faults:
        for name in job.mutants:
            faults.enter_context(by_name(name).in_force())
        return family_part(job.model, "candidate_stages").run(job, folder)


def measure_dtype(
    job: Job,
    folder: Path,
    truth: Mapping[str, np.ndarray],
    dtype: str,
    seen_values: dict[str, np.ndarray] | None = None,
    replay: dict[str, Replayed] | None = None,
) -> CandidateDtype:
    """Run the step in ``dtype`` as training will, once more unwatched, in evaluation mode and on from there for a few
    updates, and once with its other backward.

    Args:
        seen_values: where the loss and the gradients are left.
        replay: what :func:`replayed` gives, where it has been asked.
    """
    step = make_step(job, folder, dtype)
    seen: dict[str, TensorStats] = {}
    values: dict[str, np.ndarray] = {}

    def error(name: str, value: np.ndarray) -> TensorStats:
        if name in truth:
            return error_stats.difference(value, truth[name])
        return TensorStats(list(value.shape), bool(np.isfinite(value).all()))

    error_of = Latest(error, functools.partial(are_one, truth))

    def measure(name: str, value: np.ndarray) -> None:
        if is_gradient(name) or name == "loss":
            values[name] = value  # gradients of parameters, which are few beside outputs
        seen[name] = error_of(name, value)

    drawn = {TRAINING: step.run(measure)}
    if seen_values is not None:
        seen_values |= values
    result = CandidateDtype(
        parameter_errors=step.parameter_errors(), constant_errors=step.constant_errors, facts=step.facts()
    )
    if not job.brief:
        result.hooks_change_nothing = not watching_changes(step, values)
    drawn |= step.evaluate(measure)
    step.train_on(job, folder, measure, truth)
    for run, draws in drawn.items():
        result.draw_problems |= {named(run, name): problem for name, problem in draws.problems.items()}
        result.unused_draws += [named(run, name) for name in draws.unused()]
        result.facts.relu_flips |= {named(run, module): flips for module, flips in draws.relu_flips.items()}
        choices = getattr(draws, "choice_flips", {})  # of a pair
        result.facts.choice_flips |= {named(run, module): flips for module, flips in choices.items()}
        result.facts.bucket_flips |= {named(run, module): flips for module, flips in draws.bucket_flips.items()}
    result.tensors = seen
    result.places = step.places()
    backwards = step.backwards
    if backwards[0] == backwards[1]:  # there is no other
        return result
    del step, drawn, draws
    if job.spare_memory:  # before the other backward takes as much again; the Trainer is in a cycle with its callbacks
        gc.collect()
    plain, again = both_backwards(backwards, job, folder, dtype, values)
    result.recomputed = {name: apart(again, name, value) for name, value in plain.items() if is_gradient(name)}
    if backwards[0] != PLAIN:
        gradients = filter(is_gradient, plain)
        result.plain = {name: error_stats.difference(plain[name], truth[name]) for name in gradients if name in truth}
    if not job.brief:
        result.replay = replayed(backwards, job, folder, dtype) if replay is None else replay
    return result


def watching_changes(step: Step, values: Mapping[str, np.ndarray]) -> bool:
    """Whether a run that is not watched has another loss or other gradients than these, bit for bit."""
    unwatched: dict[str, np.ndarray] = {}
    step.run(unwatched.__setitem__, watched=False)
    return not all(
        name in unwatched and np.array_equal(value, unwatched[name], equal_nan=True) for name, value in values.items()
    )


def _measure_mutants(
    job: Job, folder: Path, truth: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]
) -> dict[str, MutantResult]:
    """:func:`measure_mutant` of each of the job's."""
    results = {}
    for name in job.mutants:
        results[name] = measure_mutant(job, folder, truth, name, right)
        gc.collect()  # a port is in cycles
        gc.freeze()  # what was measured stays, and would be walked over again after each of a hundred
    return results


def measure_mutant(
    job: Job, folder: Path, truth: Mapping[str, np.ndarray], name: str, right: Mapping[str, np.ndarray]
) -> MutantResult:
    """What comes out with a fault in force, in the dtype in which that shows. A port that stops by itself gives what it
    raised.

    Args:
        right: of a pair, the loss and the gradients without it in float64.
    """
    mutant = by_name(name)
    # Whether watching changes a pair's port is known, and no run more is made to see whether it changes a fault.
    job = replace(job, port={**job.port, **mutant.settings}, brief=job.brief or job.pair is not None)
    with mutant.in_force():
        try:
            if mutant.tokenizer:
                return MutantResult(tokens=tokens(job.tokenizer))
            if mutant.loader:
                return MutantResult(loading_problems=loading_problems(job, folder))
            if mutant.initialisation:
                return MutantResult(new_weights=new_weights(job, folder))
            values: dict[str, np.ndarray] = {}
            measured = measure_dtype(job, folder, truth, mutant.dtype, values)
            moved = {name: apart(values, name, value) for name, value in right.items()}
            return MutantResult(dtypes={mutant.dtype: measured}, generators=_generators(job, folder), moved=moved)
        except Exception as error:
            return MutantResult(raised=f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")


def both_backwards(
    backwards: tuple[str, str], job: Job, folder: Path, dtype: str, values: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The gradients of plain autograd, and of a backward that computes layers again.

    Args:
        backwards: the ways in which the port makes its gradients.
        values: the gradients by the first of them.
    """
    first, second = backwards
    other: dict[str, np.ndarray] = {}
    make_step(job, folder, dtype, second).run(other.__setitem__, watched=False)
    return (values, other) if first == PLAIN else (other, values)


def replayed(backwards: tuple[str, str], job: Job, folder: Path, dtype: str) -> dict[str, Replayed]:
    """The gradients of the two backwards of :func:`both_backwards`, with the port's own generator in place of the
    recorded draws.

    Recorded draws repeat by name whatever the port does; here only a port that replays its generator comes out equal.
    It is asked with streams that lose nothing on the way back: a ReLU whose sign turns where plain ones have lost their
    digits says nothing of a generator.
    """
    job = replace(job, port={key: value for key, value in job.port.items() if key != "residual"})
    gradients = {}
    for backward in backwards:
        own = make_step(job, folder, dtype, backward)
        runtime.seed_everything(job.seed)
        gradients[backward] = own.own_gradients()
    plain = gradients.pop(PLAIN)
    again = gradients.popitem()[1]
    return {name: Replayed(apart(again, name, value), error_stats.describe(value)) for name, value in plain.items()}


def apart(again: Mapping[str, np.ndarray], name: str, plain: np.ndarray) -> TensorStats:
    """How far a gradient that was made by computing layers again lies from plain autograd's."""
    return error_stats.difference(again[name], plain) if name in again else TensorStats([], missing=True)
