"""Faults of the compiled loops (:mod:`models.loops`): one that keeps too few digits. Only float32 shows them, and each
must be named by what its loop computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from toolkit.parity.mutants.fault import Mutant

#: Of a float32 number, added and taken away again, it leaves 12 bits: what is lost is 1e-4 of the number.
SPLITTER = 2.0**12 + 1


def _port() -> SimpleNamespace:
    import paddle

    from models import compiled

    return SimpleNamespace(paddle=paddle, compiled=compiled)


def _coarse(port: SimpleNamespace, value: Any) -> Any:
    """With 12 bits instead of 24 (Dekker 1971); what is no float32 as it is."""
    if isinstance(value, tuple):
        return tuple(_coarse(port, one) for one in value)
    if value is None or value.dtype != port.paddle.float32:
        return value
    large = value * SPLITTER
    return large - (large - value)


def _of_loop(name: str, port: SimpleNamespace) -> list[tuple[Any, str, Callable]]:
    loop = getattr(port.compiled, name)
    return [(port.compiled, name, lambda *given: _coarse(port, loop(*given)))]


def _faults(**functions: str) -> tuple[Mutant, ...]:
    """Of functions of :mod:`models.compiled`, and in words what each computes."""
    return tuple(
        Mutant(
            f"float32-{name.replace('_', '-')}",
            f"{what} keeps 12 bits",
            "",
            partial(_of_loop, name),
            _port,
            dtype="float32",
        )
        for name, what in functions.items()
    )


#: By compiled loop, of :data:`models.compiled.LOOPS`.
LOOPS: dict[str, tuple[Mutant, ...]] = {
    "softmax": _faults(softmax="attention's softmax", softmax_backward="the backward of attention's softmax"),
    "cross_entropy": _faults(
        cross_entropy="the cross entropy", cross_entropy_backward="the backward of the cross entropy"
    ),
    "layer_norm": _faults(layer_norm="layer norm", layer_norm_backward="the backward of layer norm"),
    "keys": _faults(keys="LSH's keys", keys_backward="the backward of LSH's keys"),
    "dropout": _faults(keep="what dropout scales"),
    "bias": _faults(add_row="a sum with a bias"),
    "axial_positions": _faults(
        scale_columns="the axial position table", scale_columns_backward="the gradient of the axial position table"
    ),
    "streams": _faults(add_on_grid="a residual stream as layers read it"),
}
