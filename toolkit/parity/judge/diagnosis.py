"""Explanation of tensors whose float32 value is noise in the reference, so that users look for no bug there.

A tensor whose float32 value is off by more than a tenth (:data:`.bounds.UNINFORMATIVE`) is judged only in float64. The
cause is in the weights. If attention puts all its weight on one position, the backward of softmax subtracts equal
numbers. A residual stream that has grown by orders of magnitude absorbs the numbers that are added to it. Some
gradients are zero by cancellation, such as the gradient of a key's bias, which softmax ignores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from toolkit.parity.exchange.results import SATURATED_BELOW, Note
from toolkit.parity.judge.bounds import is_measured, largest_noise
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.naming import TensorName, is_gradient

#: Path of a module within a layer: the match is the layer's path, the group its number.
LAYER = re.compile(r"^.*?\.(?:layers|layer|blocks|h)\.(\d+)\b")
#: Smallest share of saturated rows (:data:`.results.SATURATED_BELOW`) of an attention that counts as saturated, and
#: smallest factor of growth of a residual stream that counts as grown.
MIN_SATURATED_SHARE, MIN_GROWTH = 0.1, 1e3
#: Relative noise of R64 beyond which a gradient consists only of rounding.
NOTHING_BUT_ROUNDING = 1e-3


def explain_lost_digits(
    tensors: Mapping[str, TensorRecord], saturation: Mapping[str, float], names: Sequence[str]
) -> list[Note]:
    """Return notes on the tensors whose float32 value is noise in the reference, and on the causes.

    Args:
        tensors: records of the reference's tensors, in execution order.
        saturation: share of saturated rows by attention module.
        names: names of the tensors whose float32 value is noise.
    """
    if not names:
        return []
    notes = [Note("uninformative", {"count": len(names), "first": names[0]})]
    cancelled_gradients = [name for name in names if is_gradient(name) and _is_rounding(tensors[name])]
    if cancelled_gradients:
        notes.append(Note("cancelled", {"count": len(cancelled_gradients), "first": cancelled_gradients[0]}))
    rest = set(names) - set(cancelled_gradients)
    for kind, direction in (("output", "on"), ("gradient", "down")):
        lost_tensors = [name for name in tensors if name in rest and _is(name, kind)]
        if lost_tensors:
            first_lost = TensorName.parse(lost_tensors[0] if kind == "output" else lost_tensors[-1])
            causes = _causes(tensors, saturation, first_lost.module, kind)
            data = {
                "count": len(lost_tensors),
                "kind": kind,
                "place": _layer(first_lost.module) or str(first_lost),
                "direction": direction,
                "causes": "; ".join(causes) or "neither saturated attention nor a grown residual stream explains it",
            }
            notes.append(Note("lost", data))
    return notes


def _is(name: str, kind: str) -> bool:
    """Return whether a name is a gradient (kind ``gradient``) or another tensor of the step (kind ``output``)."""
    return is_gradient(name) == (kind == "gradient") and not TensorName.parse(name).is_of_training


def _is_rounding(tensor_record: TensorRecord) -> bool:
    """Return whether R64's value of a tensor consists only of rounding."""
    if not is_measured(tensor_record, "float64"):
        return False
    return largest_noise(tensor_record, "float64") > NOTHING_BUT_ROUNDING * (tensor_record.rms or 0.0)


def _causes(
    tensors: Mapping[str, TensorRecord], saturation: Mapping[str, float], first_lost_module: str, kind: str
) -> list[str]:
    """Return the reasons why float32 loses its digits in some modules.

    Args:
        tensors: records of the reference's tensors, in execution order.
        saturation: share of saturated rows by attention module.
        first_lost_module: module where float32 starts to be noise.
        kind: ``gradient`` for causes between this module and the loss, ``output`` for causes between it and the input.
    """
    index = _index(first_lost_module)

    def between(module: str) -> bool:
        """Return whether a module lies between the first lost module and the end that ``kind`` names."""
        own = _index(module)
        return index is None or own is None or (own >= index if kind == "gradient" else own <= index)

    causes = []
    shares = {module: share for module, share in saturation.items() if share >= MIN_SATURATED_SHARE and between(module)}
    if shares:
        worst = max(shares, key=shares.__getitem__)
        causes.append(
            f"attention is saturated in {worst}, where {shares[worst]:.0%} of the rows give all other positions less "
            f"than {SATURATED_BELOW:.0e}"
        )
    records = [(TensorName.parse(name), record.rms) for name, record in tensors.items()]
    streams = [(rms, _layer(name.module)) for name, rms in records if _is_stream(name) and rms is not None]
    if streams and streams[0][0]:
        largest, layer = max(streams, key=lambda stream: stream[0])
        if (growth := largest / streams[0][0]) >= MIN_GROWTH:
            causes.append(f"the residual stream grows {growth:.0e} times, to {largest:.1e}, by {layer}")
    return causes


def _is_stream(name: TensorName) -> bool:
    """Return whether a tensor is a residual stream after a layer.

    Such a tensor is the output of a layer, or one of the two streams of a reversible layer.
    """
    return name.kind == "stream" or (name.kind == "output" and LAYER.fullmatch(name.module) is not None)


def _layer(module: str) -> str:
    """Return the path of the layer that contains a module, such as ``encoder.layers.3``; empty if none does."""
    match = LAYER.match(module)
    return match[0] if match else ""


def _index(module: str) -> int | None:
    """Return the number of the layer that contains a module; None outside of all layers."""
    match = LAYER.match(module)
    return int(match[1]) if match else None
