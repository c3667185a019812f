"""`toolkit parity`: the gate on a model of any size with weights of any kind, without a recipe or a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from models.families import part
from models.hub import resolve_folder, stored_tensors
from models.schema import ConfigError
from models.weights import WeightsError, new_values
from toolkit import runtime
from toolkit.errors import ToolkitError, UserError
from toolkit.parity import interpreter, recording
from toolkit.parity.exact import run_exact
from toolkit.parity.gate import GateRequest, is_streamed, run_gate
from toolkit.parity.judging import print_trials, trial_request, try_mutants
from toolkit.parity.kernels import chosen_kinds
from toolkit.parity.limits import find_limits, is_seen, print_limits
from toolkit.parity.stress import KINDS, StressWeights, random_batch
from toolkit.parity.sweep import RANDOM, sweep, varied
from toolkit.quiet import silence_startup

#: The layout of google/reformer-crime-and-punishment, with every kind of dropout switched on. CTRL's own defaults are
#: those of Salesforce/ctrl.
REFORMER = {
    "hidden_size": 256,
    "num_attention_heads": 2,
    "attention_head_size": 64,
    "feed_forward_size": 512,
    "axial_pos_embds_dim": [64, 192],
    "hidden_dropout_prob": 0.05,
    "local_attention_probs_dropout_prob": 0.05,
    "lsh_attention_probs_dropout_prob": 0.05,
}
ATTENTION = {"local": ["local"], "lsh": ["lsh"], "mixed": ["local", "lsh"]}
#: What is compared unless the command line says otherwise.
DEFAULTS = {
    "reformer": {"head": "sequence_classification", "layers": 6, "length": 1024, "batch_size": 2},
    "ctrl": {"head": "causal_lm", "layers": 48, "length": 256, "batch_size": 1},
}

#: The weights that are compared unless the command line says otherwise.
DEFAULT_KIND = "heavy-tailed"
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
        options: those of :func:`make_request`.

    Raises:
        UserError: a configuration that cannot be, weights that do not fit, a device that is not there.
    """
    if sweeps is not None:
        return max(_sweep(place, given, sweeps, console, **options) for place in devices(device))
    if mutants:
        refuse_all_but((*TRIAL_TAKES, "mutants"), given, "--mutants", "which changes a small model of its own")
        return max(_try_mutants(place, console, **options) for place in devices(device))
    if limits:
        refuse_all_but((*TRIAL_TAKES, "limits"), given, "--limits", "which changes a small model of its own")
        return max(_find_limits(place, console, **options) for place in devices(device))
    kinds = None if ops is None else _kinds(ops, options["dtype"], device)
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
        options: those of :func:`make_request`.

    Raises:
        UserError: as :func:`command`; a model that cannot be recorded; a folder that is something else.
    """
    recording.record(dataclasses.replace(make_request(**options), device=device), output, console)


def replay(bundle: Path, device: str, dtype: str | None, output: Path, console: Console) -> int:
    """Run the port against a recorded reference on each device; returns the exit status, the worst of them.

    Args:
        device: of the port; the reference may have run on another.
        dtype: ``float64``, ``float32`` or ``both``; None for those that the bundle was recorded for.

    Raises:
        UserError: the bundle is none, was changed, or cannot be read here; a device that is not there.
    """
    recorded = recording.open_recording(bundle)
    chosen = recorded.asked.dtypes if dtype is None else dtypes_of(dtype)
    return max(
        run_gate(
            dataclasses.replace(recorded.asked, dtypes=chosen, device=place), output / place, console, recorded
        ).exit_status
        for place in devices(device)
    )


def make_request(
    *,
    model: str,
    dtype: str | None,
    head: str | None,
    attention: str | None,
    layers: int | None,
    length: int | None,
    batch_size: int | None,
    weights_from: str | None,
    seed: int,
    overrides: Sequence[str],
    reference_reversible: bool,
    reference_python: str | None,
) -> GateRequest:
    """What the options describe, on the CPU.

    Raises:
        UserError: a configuration that cannot be, weights that do not fit.
        Inconclusive: the reference's interpreter cannot run it.
    """
    python = reference_interpreter(reference_python)
    head = _head(model, head)
    length = length or DEFAULTS[model]["length"]
    weights_from = weights_from or DEFAULT_KIND
    if attention and model != "reformer":
        raise UserError(f"--attention: is for reformer, whose layers differ; those of {model} are alike")
    if reference_reversible and model != "reformer":
        raise UserError(f"--reference-reversible: is for reformer; {model} has no reversible backward")
    config = configuration(model, head, attention or "mixed", layers, length, overrides, weights_from)
    return GateRequest(
        model=model,
        head=head,
        config=config,
        weights=chosen_weights(model, config, head, seed, weights_from),
        batch=random_batch(config, head, batch_size or DEFAULTS[model]["batch_size"], length, seed, model),
        dtypes=dtypes_of(dtype or "both"),
        seed=seed,
        judge_reference_reversible=reference_reversible,
        reference_python=python,
    )


def dtypes_of(dtype: str) -> tuple[str, ...]:
    """``both`` means float64, which decides, and float32."""
    return ("float64", "float32") if dtype == "both" else (dtype,)


def reference_interpreter(path: str | None) -> str | None:
    """What ``--reference-python`` names, as an absolute path, once it has said that it can run the reference.

    Raises:
        UserError: it is not an interpreter.
        Inconclusive: it is one that lacks torch or transformers.
    """
    if path is None:
        return None
    try:
        found = interpreter.locate(path)
        interpreter.versions_of(found)
    except ToolkitError as problem:
        raise type(problem)(f"--reference-python: {problem}") from None
    return found


def _kinds(ops: str, dtype: str | None, device: str) -> list[str]:
    """The kinds of kernels that ``--ops`` names, if it can be followed here."""
    if dtype == "float64":
        raise UserError("--ops: compares float32 bit for bit; leave --dtype float64 away")
    if device != "cpu":
        raise UserError(f"--ops: takes the reference's kernels on the CPU; leave --device {device} away")
    return chosen_kinds(ops)


def _sweep(device: str, given: Mapping[str, str], count: int, console: Console, **options: Any) -> int:
    """Right ports of random shapes; or, of a checkpoint, its model on random batches."""
    model, kind, seed = options["model"], options["weights_from"], options["seed"]
    if kind in (None, *KINDS):
        refuse_all_but(SWEEP_TAKES, given, "--sweep", "which draws models of its own")
        alike = {"device": device, "reference_python": reference_interpreter(options["reference_python"])}

        def make(seed: int) -> GateRequest:
            return dataclasses.replace(RANDOM[model](seed, kind), **alike)
    else:
        refuse_all_but(SWEEP_OF_A_CHECKPOINT_TAKES, given, "--sweep", "which draws batches and judges by both dtypes")
        request = dataclasses.replace(make_request(**options), device=device)
        if is_streamed(request):
            raise UserError("--sweep: a model this large is not compared as a whole; gate it once, without --sweep")
        fixed = [override.partition("=")[0] for override in options["overrides"]]

        def make(seed: int) -> GateRequest:
            return varied(request, seed, fixed)

    return int(bool(sweep(make, range(seed, seed + count), console)))


def _try_mutants(
    device: str,
    console: Console,
    *,
    model: str,
    weights_from: str | None,
    seed: int,
    reference_python: str | None,
    **_: Any,
) -> int:
    trials = try_mutants(_trial_request("--mutants", model, weights_from, seed, device, reference_python), console)
    print_trials(trials, console)
    return int(not all(trial.passed for trial in trials))


def _find_limits(
    device: str,
    console: Console,
    *,
    model: str,
    weights_from: str | None,
    seed: int,
    reference_python: str | None,
    **_: Any,
) -> int:
    found = find_limits(_trial_request("--limits", model, weights_from, seed, device, reference_python), console)
    print_limits(found, console)
    return int(not all(is_seen(limit) for limit in found))


def _trial_request(
    option: str, model: str, kind: str | None, seed: int, device: str, reference_python: str | None
) -> GateRequest:
    kind = kind or DEFAULT_KIND
    if kind not in KINDS:
        raise UserError(f"{option}: runs on weights of its own, --weights {', '.join(KINDS)}; not {kind}")
    return trial_request(model, kind, seed, device, reference_interpreter(reference_python))


def _head(model: str, head: str | None) -> str:
    known = part(model, "weights").HEADS
    if head not in (None, *known):
        raise UserError(f"--head {head}: {model} has {', '.join(known)}")
    return head or DEFAULTS[model]["head"]


def configuration(
    model: str,
    head: str,
    attention: str,
    layers: int | None,
    length: int,
    overrides: Sequence[str],
    weights_from: str,
) -> dict[str, Any]:
    """Configuration keys: a checkpoint's own, else the family's layout for ``length`` tokens, with overrides on top."""
    schema = part(model, "schema")
    if weights_from in KINDS:
        depth = layers or DEFAULTS[model]["layers"]
        config = _reformer(ATTENTION[attention], depth, length) if model == "reformer" else _ctrl(depth, length)
    else:
        silence_startup()  # the configuration's class imports Paddle
        runtime.configure("cpu")
        try:
            config = part(model, "config").CONFIG_CLASS.from_pretrained(weights_from).to_hf()
        except (FileNotFoundError, ConfigError) as error:
            raise UserError(f"--weights {weights_from}: {error}") from None
        if layers is not None:
            raise UserError("--layers: the checkpoint has its own; leave it away, or take --weights random")
    if model == "reformer":
        config["is_decoder"] = head == "causal_lm"
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UserError(f"{override}: expected KEY=VALUE, for example {_example(model)}")
        config[key] = yaml.safe_load(value)
    try:
        resolved = schema.resolve(config)
        schema.check_training_length(resolved, length)
    except ConfigError as error:
        raise UserError(str(error)) from None
    return config


def _reformer(kinds: Sequence[str], layers: int, length: int) -> dict[str, Any]:
    rows = next(f for f in range(int(length**0.5), 0, -1) if length % f == 0)
    return {
        **REFORMER,
        "attn_layers": [kinds[index % len(kinds)] for index in range(layers)],
        "axial_pos_shape": [rows, length // rows],
        "max_position_embeddings": length,
    }


def _ctrl(layers: int, length: int) -> dict[str, Any]:
    return {"n_layer": layers, "n_positions": max(256, length), "pad_token_id": 0}


def _example(model: str) -> str:
    return {"reformer": "num_hashes=4", "ctrl": "dff=1024"}[model]


def chosen_weights(
    model: str, config: Mapping[str, Any], head: str, seed: int, weights_from: str
) -> Mapping[str, np.ndarray]:
    """Weights of one of the kinds of :mod:`.stress`, or a checkpoint's (a head that it lacks gets new ones)."""
    resolved = part(model, "schema").resolve(config)
    if weights_from in KINDS:
        return StressWeights(resolved, head, seed, weights_from, model)
    weights = part(model, "weights")
    try:
        found = weights.select(stored_tensors(resolve_folder(weights_from)), resolved, head)
    except (FileNotFoundError, WeightsError) as error:
        raise UserError(f"--weights {weights_from}: {error}") from None
    table = weights.parameters(resolved, head)
    missing = {name: parameter for name, parameter in table.items() if name not in found}
    return {**found, **dict(new_values(missing, weights.deviations(resolved), seed))}


def devices(wanted: str) -> list[str]:
    """The devices to run on: ``all`` is the CPU, and the GPU where Paddle sees one.

    Raises:
        UserError: a GPU was asked for by name and there is none.
    """
    if wanted == "cpu":
        return ["cpu"]
    found = runtime.configure("auto" if wanted == "all" else wanted)
    return ["cpu", "gpu"][: 1 + (found == "gpu")] if wanted == "all" else [found]
