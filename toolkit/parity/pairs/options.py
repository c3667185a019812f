"""Turn the options of `toolkit parity --port P --reference-model R` into the request of a gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.parity.bundle.bundle import Recording
from toolkit.parity.job import user_code
from toolkit.parity.job.pair import PAIR, TIME_LIMIT, Pair
from toolkit.parity.pairs.map_file import read_map
from toolkit.parity.processes.interpreter import interpreter_of
from toolkit.parity.request.request import GateRequest
from toolkit.recipe.yaml_source import parse_pairs


def pair_request(
    *,
    port: str | None,
    reference_model: str,
    model_config: dict[str, Any],
    seed: int,
    dtypes: tuple[str, ...] = ("float64", "float32"),
    device: str = "cpu",
    map_file: Path | None = None,
    reference_python: str | None = None,
    port_python: str | None = None,
    trace: bool = False,
    time_limit: float | None = None,
    forward_only: bool = False,
    any_framework: bool = False,
    small: bool = False,
    steps: int = 0,
) -> GateRequest:
    """Return the comparison of a user's port and reference.

    Args:
        port: Python file or module name of the port; None to record the reference. Both sides define
            ``build(config)``, one of them defines ``batch(config, rng)``, and each may define ``loss(model, batch)``.
        reference_model: Python file or module name of the reference.
        model_config: argument of ``build`` on both sides.
        seed: seed of the weights, the batch and the draws.
        dtypes: dtypes to judge.
        device: ``cpu`` or ``gpu``.
        map_file: file in the format that ``toolkit parity map`` prints.
        reference_python: interpreter of the reference; None for this interpreter.
        port_python: interpreter of the port; None for this interpreter.
        trace: whether to run the operation trace without a difference, too.
        time_limit: seconds for each step; by default :data:`.pair.TIME_LIMIT`.
        forward_only: whether to compare only the evaluation mode, without training.
        any_framework: whether to record for ports in any framework.
        small: whether to record without weights, and only a sketch of large tensors.
        steps: number of steps that each side then trains independently, with the file's ``optimizer(model)`` if both
            files define one.

    Raises:
        UserError: a file does not define these functions.
    """
    sources = {"port": port, "reference": reference_model}
    functions = {side: user_code.functions_of(source) for side, source in sources.items() if source is not None}
    owners = [side for side, function_names in functions.items() if "batch" in function_names]
    if not owners:
        missing_text = f"{reference_model}: has no" if port is None else f"{port}: neither it nor {reference_model} has"
        raise UserError(f"{missing_text} batch(config, rng) that gives a dict of arrays")
    if len(owners) > 1:
        raise UserError(f"{port} and {reference_model} both have batch(config, rng); keep one, which both are given")
    if steps:
        _check_trains(sources, forward_only=forward_only)
    user_map = read_map(map_file)
    return GateRequest(
        model=PAIR,
        head="",
        config=model_config,
        weights={},
        batch={},
        dtypes=dtypes,
        device=device,
        seed=seed,
        reference_python=interpreter_of(reference_python, "reference"),
        port_python=interpreter_of(port_python, "port"),
        trace=trace,
        pair=Pair(
            port or "",
            reference_model,
            owners[0],
            time_limit=time_limit or TIME_LIMIT,
            has_loss=any("loss" in function_names for function_names in functions.values()),
            accept=user_map.accept,
            forward_only=forward_only,
            any_framework=any_framework,
            small=small,
            steps=steps,
        ),
        pair_names=user_map.parameters,
        pair_layouts=user_map.layouts,
    )


def _check_trains(sources: Mapping[str, str | None], *, forward_only: bool) -> None:
    """Check that both sides can be trained in the same way.

    Args:
        sources: file or module of each side.
        forward_only: whether only the forward is compared.
    """
    if forward_only:
        raise UserError("--steps: trains both sides, and --forward-only compares none of what trains them")
    having = [source for source in sources.values() if source and user_code.functions_of(source, user_code.TRAINING)]
    if len(having) == 1:
        raise UserError(
            f"{having[0]}: has optimizer(model), and the other file has none; --steps needs both or neither"
        )


def replay_request(
    recording: Recording,
    port: str | None,
    map_file: Path | None,
    time_limit: float | None = None,
    port_python: str | None = None,
) -> GateRequest:
    """Return the comparison of a port with a recorded reference.

    Args:
        recording: recorded reference of a family of this toolkit, or of a user's pair.
        port: Python file or module name of the port; None for a family, whose port is part of this toolkit.
        map_file: file in the format that ``toolkit parity map`` prints; None for a family.
        time_limit: seconds for each step; None for a family.
        port_python: interpreter of the port; None for this interpreter.

    Raises:
        UserError: a port is missing, not needed, or does not fit the recording.
    """
    recorded_request = recording.request
    if recording.lacks_weights:
        raise UserError(f"{recording.folder}: is recorded --small, without weights; name them with --weights FILE")
    if recorded_request.pair is None:
        pair_options = {"--port": port, "--map": map_file, "--time-limit": time_limit, "--port-python": port_python}
        for option in (name for name, value in pair_options.items() if value):
            raise UserError(
                f"{option}: {recording.folder} is a recording of {recorded_request.model}, whose port is the one here"
            )
        return recorded_request
    if not port:
        raise UserError(f"{recording.folder}: is a recording of a reference of yours; name its port with --port FILE")
    if recorded_request.pair.any_framework:
        raise UserError(f"{recording.folder}: is recorded --any-framework, with epsilons that Paddle's kernels round")
    functions = user_code.functions_of(port)
    if "batch" in functions:
        raise UserError(f"{port}: has batch(config, rng), but {recording.folder} holds the batch; remove it")
    has_loss = recorded_request.pair.has_loss or "loss" in functions
    user_map, limit = read_map(map_file), time_limit or TIME_LIMIT
    pair = replace(recorded_request.pair, port=port, time_limit=limit, has_loss=has_loss, accept=user_map.accept)
    python = interpreter_of(port_python, "port")
    return replace(
        recorded_request, pair=pair, pair_names=user_map.parameters, pair_layouts=user_map.layouts, port_python=python
    )


def choices_of(words: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each key in ``KEY=VALUE`` words, where a key may be repeated.

    Raises:
        UserError: a word is not of this form.
    """
    values_by_key: dict[str, list[Any]] = {}
    for pair in words:
        for key, value in parse_pairs([pair], "hidden_size=32").items():
            values_by_key.setdefault(key, []).append(value)
    return values_by_key
