"""Masked attention scores: what is measured of them, and which the mask has set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from toolkit.parity.measure.naming import TensorName

#: Effective value of a masked score: the lowest that Reformer uses.
LOWEST = -1e9
#: Scores before the masks: the first of these that an attention has.
BEFORE = ("scaled_scores", "scores")
#: Kind of the scores that masks leave as they are.
UNMASKED_KIND = "unmasked_scores"


def split_masked_scores(
    name: str, value: np.ndarray, true: np.ndarray, truth: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """What is measured of a tensor: names, its values and R64's.

    Args:
        true: R64's of that name.
        truth: R64's others, read from file on each access.

    Masked scores are measured twice. Once all of them, clipped at :data:`LOWEST`: beside CTRL's -1.8e308 for padding,
    its -1e4 for the future would vanish. Once only those that the masks leave as they are: beside -1e9, an error of
    these would vanish.
    """
    if TensorName.parse(name).kind != "masked_scores":
        yield name, value, true
        return
    yield name, np.maximum(value, LOWEST), np.maximum(true, LOWEST)
    unmasked = find_unmasked(name, true, truth)
    if unmasked is not None and unmasked.any() and value.shape == true.shape:
        yield str(TensorName.parse(name)._replace(kind=UNMASKED_KIND)), value[unmasked], true[unmasked]


def find_unmasked(name: str, true: np.ndarray, truth: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Mask of R64's masked scores that are the scores themselves; None for any other tensor. See :func:`compared`."""
    parsed = TensorName.parse(name)
    if parsed.kind != "masked_scores":
        return None
    call = parsed.call.partition("@")[0]
    names = (str(parsed._replace(kind=kind, call=call)) for kind in BEFORE)
    before = next((one for one in names if one in truth), None)
    return None if before is None else true == truth[before]
