"""Where the reference's float32 stops to say anything, and why: for the report, so that nobody hunts a bug there.

A tensor of which float32 is off by more than a tenth (:data:`.bounds.UNINFORMATIVE`) is judged in float64 alone. What
makes it so is in the weights: attention that puts all its weight on one position leaves the backward of softmax a
difference of equal numbers; a residual stream that has grown by orders of magnitude swallows what is added to it; and
some gradients are zero by cancellation, such as that of a key's bias, to which softmax is blind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LAYER = re.compile(r"^.*?\.(?:layers|h)\.(\d+)\b")
#: A row of attention is saturated where all positions but one share less than this: float32 has 4 bits left for them.
SATURATED_BELOW = 2.0**-20
#: Attention counts as saturated from this share of its rows on; a residual stream as grown from this factor on.
SATURATED_SHARE, GROWN = 0.1, 1e3
#: A gradient whose float64 is itself off by this share is nothing but rounding.
NOTHING_BUT_ROUNDING = 1e-3


def lost(tensors: Mapping[str, Mapping[str, Any]], saturation: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Sentences for a report: where float32's information ends, and the cause.

    Args:
        tensors: of the reference, in the order of execution, with ``rms`` and ``noise``.
        saturation: by attention module, the share of its rows that are saturated.
        names: of the tensors in which float32 is noise.
    """
    sentences = []
    cancelled = [name for name in names if name.startswith("gradient:") and _is_rounding(tensors[name])]
    if cancelled:
        what = "is" if len(cancelled) == 1 else "are"
        sentences.append(
            f"{len(cancelled)} of the tensors that float32 says nothing of {what} zero by cancellation, the first of "
            f"them {cancelled[0]}: in float64, too, rounding is all there is"
        )
    for kind, direction in (("output", "on"), ("gradient", "down")):
        concerned = [n for n in tensors if n in set(names) - set(cancelled) and _is(n, kind)]
        if not concerned:
            continue
        begins = concerned[0] if kind == "output" else concerned[-1]
        layer = _layer(begins)
        place = layer if layer else begins
        causes = _causes(tensors, saturation, begins, kind)
        why = "; ".join(causes) if causes else "neither saturated attention nor a grown residual stream explains it"
        sentences.append(f"float32 loses {len(concerned)} {kind}s, from {place} {direction}: {why}")
    return sentences


def _is(name: str, kind: str) -> bool:
    return name.startswith("gradient:") == (kind == "gradient") and not name.startswith(("updated:", "loss#"))


def _is_rounding(tensor: Mapping[str, Any]) -> bool:
    return max(tensor["noise"]["float64"]) > NOTHING_BUT_ROUNDING * tensor["rms"]


def _causes(
    tensors: Mapping[str, Mapping[str, Any]], saturation: Mapping[str, float], begins: str, kind: str
) -> list[str]:
    """What stands in the way of float32 between the tensor where it ends and the loss (or the input, of an output)."""
    index = _index(begins)

    def between(name: str) -> bool:
        own = _index(name)
        return index is None or own is None or (own >= index if kind == "gradient" else own <= index)

    causes = []
    shares = {module: share for module, share in saturation.items() if share >= SATURATED_SHARE and between(module)}
    if shares:
        worst = max(shares, key=shares.__getitem__)
        causes.append(
            f"attention is saturated in {worst}, where {shares[worst]:.0%} of the rows give all other positions less "
            f"than {SATURATED_BELOW:.0e}"
        )
    streams = [name for name in tensors if _is_stream(name) and tensors[name]["rms"] is not None]
    if streams and tensors[streams[0]]["rms"]:
        largest = max(streams, key=lambda name: tensors[name]["rms"])
        grown = tensors[largest]["rms"] / tensors[streams[0]]["rms"]
        if grown >= GROWN:
            causes.append(
                f"the residual stream grows {grown:.0e} times, to {tensors[largest]['rms']:.1e}, by {_layer(largest)}"
            )
    return causes


def _is_stream(name: str) -> bool:
    """The residual stream after a layer: Reformer's two, or the output of CTRL's layer."""
    return name.startswith("stream:") or re.fullmatch(r"output:transformer\.h\.\d+", name) is not None


def _layer(name: str) -> str:
    """The layer that a tensor or module belongs to, as a path; "" for one outside of all layers."""
    found = LAYER.match(name.partition(":")[2] or name)
    return found[0] if found else ""


def _index(name: str) -> int | None:
    found = LAYER.match(name)
    return int(found[1]) if found else None
