"""What the options of `toolkit parity --port P --reference-model R` describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.parity.job import user_code
from toolkit.parity.job.interpreter import reference_interpreter
from toolkit.parity.job.pair import PAIR, Pair
from toolkit.parity.job.request import GateRequest
from toolkit.parity.pairs.map_file import read_map


def pair_request(
    *,
    port: str,
    reference_model: str,
    config: dict[str, Any],
    seed: int,
    dtypes: tuple[str, ...] = ("float64", "float32"),
    device: str = "cpu",
    map_file: Path | None = None,
    reference_python: str | None = None,
    trace: bool = False,
) -> GateRequest:
    """The comparison of a port and a reference of the user's.

    Args:
        port, reference_model: a Python file or a module's name; both have ``build(config)``, one of them
            ``batch(config, rng)``, and each may have ``loss(model, batch)``.
        config: what both files' ``build`` is given.
        map_file: parameters of the reference -> the port's, as ``toolkit parity map`` prints them.

    Raises:
        UserError: a file that is none of these.
    """
    functions = {"port": user_code.functions_of(port), "reference": user_code.functions_of(reference_model)}
    owners = [side for side, found in functions.items() if "batch" in found]
    if not owners:
        raise UserError(f"{port}: neither it nor {reference_model} has batch(config, rng) that gives a dict of arrays")
    if len(owners) > 1:
        raise UserError(f"{port} and {reference_model} both have batch(config, rng); keep one, which both are given")
    return GateRequest(
        model=PAIR,
        head="",
        config=config,
        weights={},
        batch={},
        dtypes=dtypes,
        device=device,
        seed=seed,
        reference_python=None if reference_python is None else reference_interpreter(reference_python),
        trace=trace,
        pair=Pair(port, reference_model, owners[0]),
        pair_names={} if map_file is None else read_map(map_file),
    )
