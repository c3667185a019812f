"""What the optimizer is given in the short training that both sides go through after the step."""

from __future__ import annotations

import numpy as np

#: What shares of R64's gradients the optimizer is given in each update; the elements of each take them in turn. With
#: the same gradients twice, the decay rates of Adam's moments would cancel out; with half of all of them, that of the
#: second moment still would wherever both are clipped to the same norm.
SHARES = ((1.0,), (-0.5, 0.25))


def given_gradient(gradient: np.ndarray, update: int) -> np.ndarray:
    """What the optimizer is given of one of R64's gradients, in the layout of the reference, in an update from 1 on."""
    shares = SHARES[update - 1]
    given = gradient.flatten()
    for first, share in enumerate(shares):
        given[first :: len(shares)] *= share
    return given.reshape(gradient.shape)
