"""`toolkit parity`: the gate on a model of any size with weights of any kind, without a recipe or a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.bitwise import run_exact
from toolkit.parity.gate import GateRequest, is_streamed, run_gate
from toolkit.parity.job import bundle
from toolkit.parity.job.kernel_messages import chosen_kinds
from toolkit.parity.job.synthetic import KINDS
from toolkit.parity.options import DEFAULT_KIND, devices, dtypes_of, make_request, reference_interpreter
from toolkit.parity.trials.limits import find_limits, is_seen, print_limits
from toolkit.parity.trials.mutation import print_trials, trial_request, try_mutants
from toolkit.parity.trials.sweep import RANDOM, sweep, varied

#: The options that a trial of the gate takes; all others describe what it has of its own.
TRIAL_TAKES = ("model", "device", "weights_from", "seed", "reference_python")
SWEEP_TAKES = (*TRIAL_TAKES, "sweeps")
SWEEP_OF_A_CHECKPOINT_TAKES = (*SWEEP_TAKES, "head", "length", "overrides")


def command(
    *,
    given: Mapping[str, str],
    device: str,
    output: Path,
    mutants: bool,
    limits: bool,
    sweeps: int | None,
    ops: str | None,
    trace: bool,
    console: Console,
    **options: Any,
) -> int:
    """Run the gate on each device, or put the gate itself on trial; returns the exit status, the worst of them.

    Args:
        given: of the options that the user gave, by name, what was typed: a trial does not take all of them.
        options: those of :func:`.options.make_request`.

    Raises:
        UserError: a configuration that cannot be, weights that do not fit, a device that is not there.
    """
    if sweeps is not None:
        return max(_sweep(place, given, sweeps, console, **options) for place in devices(device))
    if mutants:
        trials = (_trial_request("--mutants", given, place, options) for place in devices(device))
        return max(_try_mutants(trial, console) for trial in trials)
    if limits:
        trials = (_trial_request("--limits", given, place, options) for place in devices(device))
        return max(_find_limits(trial, console) for trial in trials)
    kinds = None if ops is None else _kinds(ops, options["dtype"], device, trace)
    request = dataclasses.replace(make_request(**options), trace=trace)
    if kinds is not None:
        return run_exact(request, kinds, output / "cpu", console).exit_status
    return max(
        run_gate(dataclasses.replace(request, device=place), output / place, console).exit_status
        for place in devices(device)
    )


def refuse_all_but(taken: Collection[str], given: Mapping[str, str], beside: str, why: str) -> None:
    """Raise :class:`UserError` for an option that says what ``beside`` has already settled.

    Args:
        given: by the option's name, what was typed.
    """
    for name, typed in given.items():
        if name not in taken:
            raise UserError(f"{typed}: not beside {beside}, {why}; leave it away")


def record(*, device: str, output: Path, console: Console, **options: Any) -> None:
    """Run the reference alone, and leave a bundle.

    Args:
        options: those of :func:`.options.make_request`.

    Raises:
        UserError: as :func:`command`; a model that cannot be recorded; a folder that is something else.
    """
    bundle.record(dataclasses.replace(make_request(**options), device=device), output, console)


def replay(folder: Path, device: str, dtype: str | None, output: Path, console: Console) -> int:
    """Run the port against a recorded reference on each device; returns the exit status, the worst of them.

    Args:
        device: of the port; the reference may have run on another.
        dtype: ``float64``, ``float32`` or ``both``; None for those that the bundle was recorded for.

    Raises:
        UserError: the bundle is none, was changed, or cannot be read here; a device that is not there.
    """
    recorded = bundle.open_recording(folder)
    chosen = recorded.asked.dtypes if dtype is None else dtypes_of(dtype)
    return max(
        run_gate(
            dataclasses.replace(recorded.asked, dtypes=chosen, device=place), output / place, console, recorded
        ).exit_status
        for place in devices(device)
    )


def _kinds(ops: str, dtype: str | None, device: str, trace: bool) -> list[str]:
    """The kinds of kernels that ``--ops`` names, if it can be followed here."""
    if dtype == "float64":
        raise UserError("--ops: compares float32 bit for bit; leave --dtype float64 away")
    if device != "cpu":
        raise UserError(f"--ops: takes the reference's kernels on the CPU; leave --device {device} away")
    if trace:
        raise UserError("--ops: names by itself what differs; leave --trace away")
    return chosen_kinds(ops)


def _sweep(device: str, given: Mapping[str, str], count: int, console: Console, **options: Any) -> int:
    """Right ports of random shapes; or, of a checkpoint, its model on random batches."""
    model, kind, seed = options["model"], options["weights_from"], options["seed"]
    if kind in (None, *KINDS):
        refuse_all_but(SWEEP_TAKES, given, "--sweep", "which draws models of its own and leaves no report")
        alike = {"device": device, "reference_python": reference_interpreter(options["reference_python"])}

        def make(seed: int) -> GateRequest:
            return dataclasses.replace(RANDOM[model](seed, kind), **alike)
    else:
        why = "which draws batches for a checkpoint's own model, judges by both dtypes and leaves no report"
        refuse_all_but(SWEEP_OF_A_CHECKPOINT_TAKES, given, "--sweep", why)
        request = dataclasses.replace(make_request(**options), device=device)
        if is_streamed(request):
            raise UserError("--sweep: a model this large is not compared as a whole; gate it once, without --sweep")
        fixed = [override.partition("=")[0] for override in options["overrides"]]

        def make(seed: int) -> GateRequest:
            return varied(request, seed, fixed)

    return int(bool(sweep(make, range(seed, seed + count), console)))


def _try_mutants(request: GateRequest, console: Console) -> int:
    trials = try_mutants(request, console)
    print_trials(trials, console)
    return int(not all(trial.passed for trial in trials))


def _find_limits(request: GateRequest, console: Console) -> int:
    found = find_limits(request, console)
    print_limits(found, console)
    return int(not all(is_seen(limit) for limit in found))


def _trial_request(option: str, given: Mapping[str, str], device: str, options: Mapping[str, Any]) -> GateRequest:
    """The small model that ``--mutants`` and ``--limits`` change."""
    why = "which changes a small model of its own in float64 and leaves no report"
    refuse_all_but((*TRIAL_TAKES, option.removeprefix("--")), given, option, why)
    kind = options["weights_from"] or DEFAULT_KIND
    if kind not in KINDS:
        raise UserError(f"{option}: runs on weights of its own, --weights {', '.join(KINDS)}; not {kind}")
    python = reference_interpreter(options["reference_python"])
    return trial_request(options["model"], kind, options["seed"], device, python)
