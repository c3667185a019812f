"""What the options of `toolkit parity --port P --reference-model R` describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.parity.job import user_code
from toolkit.parity.job.bundle import Recording
from toolkit.parity.job.interpreter import interpreter_of
from toolkit.parity.job.pair import PAIR, TIME_LIMIT, Pair
from toolkit.parity.job.request import GateRequest
from toolkit.parity.pairs.map_file import read_map
from toolkit.recipe.yaml_source import parse_pairs


def pair_request(
    *,
    port: str | None,
    reference_model: str,
    config: dict[str, Any],
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
        port, reference_model: a Python file or a module's name; both have ``build(config)``, one of them
            ``batch(config, rng)``, and each may have ``loss(model, batch)``. Without a port, the reference is to be
            recorded.
        config: what both files' ``build`` is given.
        map_file: parameters of the reference -> the port's, as ``toolkit parity map`` prints them.
        time_limit: seconds; by default :data:`.pair.TIME_LIMIT`.
        forward_only: compare what both compute in evaluation mode, and nothing that trains them.
        any_framework: record for ports in any framework.
        small: record without weights, and of large tensors a sketch.
        steps: that each side then trains by itself, with its file's ``optimizer(model)`` if both have one.

    Raises:
        UserError: a file is none of these.
    """
    sources = {"port": port, "reference": reference_model}
    functions = {side: user_code.functions_of(source) for side, source in sources.items() if source is not None}
    owners = [side for side, found in functions.items() if "batch" in found]
    if not owners:
        said = f"{reference_model}: has no" if port is None else f"{port}: neither it nor {reference_model} has"
        raise UserError(f"{said} batch(config, rng) that gives a dict of arrays")
    if len(owners) > 1:
        raise UserError(f"{port} and {reference_model} both have batch(config, rng); keep one, which both are given")
    if steps:
        _check_trains(sources, forward_only)
    told = read_map(map_file)
    return GateRequest(
        model=PAIR,
        head="",
        config=config,
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
            has_loss=any("loss" in found for found in functions.values()),
            accept=told.accept,
            forward_only=forward_only,
            any_framework=any_framework,
            small=small,
            steps=steps,
        ),
        pair_names=told.parameters,
        pair_layouts=told.layouts,
    )


def _check_trains(sources: Mapping[str, str | None], forward_only: bool) -> None:
    """Check that both sides can be trained alike."""
    if forward_only:
        raise UserError("--steps: trains both sides, and --forward-only compares none of what trains them")
    having = [source for source in sources.values() if source and user_code.functions_of(source, user_code.TRAINING)]
    if len(having) == 1:
        raise UserError(
            f"{having[0]}: has optimizer(model), and the other file has none; --steps needs both or neither"
        )


def replayed(
    recording: Recording,
    port: str | None,
    map_file: Path | None,
    time_limit: float | None = None,
    port_python: str | None = None,
) -> GateRequest:
    """Return the comparison with a recording: of the port that was recorded for, or of one of the user's.

    Args:
        port, map_file, time_limit, port_python: as :func:`pair_request`; None for a family here.

    Raises:
        UserError: a port is missing, superfluous, or no side of a pair.
    """
    asked = recording.asked
    if recording.lacks_weights:
        raise UserError(f"{recording.folder}: is recorded --small, without weights; name them with --weights FILE")
    if asked.pair is None:
        given = {"--port": port, "--map": map_file, "--time-limit": time_limit, "--port-python": port_python}
        for option in (name for name, value in given.items() if value):
            raise UserError(f"{option}: {recording.folder} is a recording of {asked.model}, whose port is the one here")
        return asked
    if not port:
        raise UserError(f"{recording.folder}: is a recording of a reference of yours; name its port with --port FILE")
    if asked.pair.any_framework:
        raise UserError(f"{recording.folder}: is recorded --any-framework, with epsilons that Paddle's kernels round")
    functions = user_code.functions_of(port)
    if "batch" in functions:
        raise UserError(f"{port}: has batch(config, rng), but {recording.folder} holds the batch; remove it")
    has_loss = asked.pair.has_loss or "loss" in functions
    told, limit = read_map(map_file), time_limit or TIME_LIMIT
    pair = replace(asked.pair, port=port, time_limit=limit, has_loss=has_loss, accept=told.accept)
    python = interpreter_of(port_python, "port")
    return replace(asked, pair=pair, pair_names=told.parameters, pair_layouts=told.layouts, port_python=python)


def choices_of(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each key in ``KEY=VALUE`` words, where a key may be repeated.

    Raises:
        UserError: a word is not of this form.
    """
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        for key, value in parse_pairs([pair], "hidden_size=32").items():
            found.setdefault(key, []).append(value)
    return found
