"""Separate measurement of masked attention scores, and of the scores that the mask leaves unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from toolkit.parity.measure.naming import TensorName

#: Effective value of a masked score: the lowest that Reformer uses.
LOWEST = -1e9
#: Kinds of tensors with the scores before the mask. The first that an attention has is used.
PLAIN_KINDS = ("scaled_scores", "scores")
#: Kind of the part with the scores that the mask leaves unchanged.
UNMASKED_KIND = "unmasked_scores"


def split_masked_scores(
    name: str, scores: np.ndarray, true_scores: np.ndarray, truth: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the parts of a tensor that are measured separately: the part's name, its values and R64's values.

    Masked scores have two parts. The first has all scores, clipped at :data:`LOWEST`: compared with CTRL's -1.8e308 for
    padding, its -1e4 for the future would vanish. The second has only the scores that the mask leaves unchanged:
    compared with -1e9, an error of these would vanish. All other tensors are one part.

    Args:
        name: name of the tensor.
        scores: the port's values, of any shape.
        true_scores: values of R64's tensor of this name.
        truth: R64's tensors by name, read from file on each access.
    """
    if TensorName.parse(name).kind != "masked_scores":
        yield name, scores, true_scores
        return
    yield name, np.maximum(scores, LOWEST), np.maximum(true_scores, LOWEST)
    is_unmasked = find_unmasked(name, true_scores, truth)
    if is_unmasked is not None and is_unmasked.any() and scores.shape == true_scores.shape:
        yield str(TensorName.parse(name)._replace(kind=UNMASKED_KIND)), scores[is_unmasked], true_scores[is_unmasked]


def find_unmasked(name: str, true_scores: np.ndarray, truth: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the mask of the scores that R64's attention mask leaves unchanged; None for any other tensor.

    Args:
        name: name of the tensor.
        true_scores: values of R64's tensor of this name; the result has its shape.
        truth: R64's tensors by name, read from file on each access.
    """
    tensor_name = TensorName.parse(name)
    if tensor_name.kind != "masked_scores":
        return None
    call = tensor_name.call.partition("@")[0]
    names = (str(tensor_name._replace(kind=kind, call=call)) for kind in PLAIN_KINDS)
    plain_name = next((candidate for candidate in names if candidate in truth), None)
    return None if plain_name is None else true_scores == truth[plain_name]
