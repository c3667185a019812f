"""Where the reference's float32 stops being informative, and why: for the report, so that nobody hunts a bug there.

A tensor whose float32 value is off by more than a tenth (:data:`.bounds.UNINFORMATIVE`) is judged in float64 alone. The
cause is in the weights: if attention puts all its weight on one position, the backward of softmax subtracts equal
numbers; a residual stream that has grown by orders of magnitude absorbs what is added to it; and some gradients are
zero by cancellation, such as that of a key's bias, which softmax ignores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolkit.parity.job.results import SATURATED_BELOW, Note
from toolkit.parity.judge.bounds import is_measured, largest_noise
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.naming import TensorName, is_gradient

LAYER = re.compile(r"^.*?\.(?:layers|layer|blocks|h)\.(\d+)\b")
#: Least share of saturated rows in saturated attention; least growth factor of a grown residual stream.
SATURATED_SHARE, GROWN = 0.1, 1e3
#: A gradient whose float64 is itself off by this share is nothing but rounding.
NOTHING_BUT_ROUNDING = 1e-3


def lost(tensors: Mapping[str, TensorRecord], saturation: Mapping[str, float], names: Sequence[str]) -> list[Note]:
    """Return notes on where float32 stops being informative, and why.

    Args:
        tensors: the reference's, in execution order.
        saturation: attention module -> share of its rows that are saturated.
        names: those of the tensors in which float32 is noise.
    """
    if not names:
        return []
    notes = [Note("uninformative", {"count": len(names), "first": names[0]})]
    cancelled = [name for name in names if is_gradient(name) and _is_rounding(tensors[name])]
    if cancelled:
        notes.append(Note("cancelled", {"count": len(cancelled), "first": cancelled[0]}))
    rest = set(names) - set(cancelled)
    for kind, direction in (("output", "on"), ("gradient", "down")):
        concerned = [name for name in tensors if name in rest and _is(name, kind)]
        if concerned:
            begins = TensorName.parse(concerned[0] if kind == "output" else concerned[-1])
            causes = _causes(tensors, saturation, begins.module, kind)
            data = {
                "count": len(concerned),
                "kind": kind,
                "place": _layer(begins.module) or str(begins),
                "direction": direction,
                "causes": "; ".join(causes) or "neither saturated attention nor a grown residual stream explains it",
            }
            notes.append(Note("lost", data))
    return notes


def _is(name: str, kind: str) -> bool:
    return is_gradient(name) == (kind == "gradient") and not TensorName.parse(name).is_of_training


def _is_rounding(tensor: TensorRecord) -> bool:
    if not is_measured(tensor, "float64"):
        return False
    return largest_noise(tensor, "float64") > NOTHING_BUT_ROUNDING * (tensor.rms or 0.0)


def _causes(tensors: Mapping[str, TensorRecord], saturation: Mapping[str, float], begins: str, kind: str) -> list[str]:
    """Return why float32 loses its digits between module ``begins`` and the loss (for an output: the input)."""
    index = _index(begins)

    def between(module: str) -> bool:
        own = _index(module)
        return index is None or own is None or (own >= index if kind == "gradient" else own <= index)

    causes = []
    shares = {module: share for module, share in saturation.items() if share >= SATURATED_SHARE and between(module)}
    if shares:
        worst = max(shares, key=shares.__getitem__)
        causes.append(
            f"attention is saturated in {worst}, where {shares[worst]:.0%} of the rows give all other positions less "
            f"than {SATURATED_BELOW:.0e}"
        )
    named = [(TensorName.parse(name), record.rms) for name, record in tensors.items()]
    streams = [(rms, _layer(name.module)) for name, rms in named if _is_stream(name) and rms is not None]
    if streams and streams[0][0]:
        largest, layer = max(streams, key=lambda stream: stream[0])
        if (grown := largest / streams[0][0]) >= GROWN:
            causes.append(f"the residual stream grows {grown:.0e} times, to {largest:.1e}, by {layer}")
    return causes


def _is_stream(name: TensorName) -> bool:
    """The residual stream after a layer: two of a reversible layer, or its output."""
    return name.kind == "stream" or (name.kind == "output" and LAYER.fullmatch(name.module) is not None)


def _layer(module: str) -> str:
    """Return the path of the layer that contains a module; "" outside of all layers."""
    found = LAYER.match(module)
    return found[0] if found else ""


def _index(module: str) -> int | None:
    found = LAYER.match(module)
    return int(found[1]) if found else None
