"""Whose operations the ports take on a CPU: those composed here, or Paddle's own, as on a GPU.

``TOOLKIT_KERNELS=paddle`` takes Paddle's. So what the ports do on a GPU (which operation they call, with what) is run
and gated on machines that have none. It is slower, and Paddle's CPU kernels lose the digits that :mod:`models.ops` and
:mod:`models.activations` tell of. This is the one place that reads the variable.
"""

from __future__ import annotations

import os

VARIABLE = "TOOLKIT_KERNELS"
COMPOSED, PADDLE = "composed", "paddle"
CHOICES = (COMPOSED, PADDLE)


def chosen() -> str:
    """Which operations a CPU takes, one of :data:`CHOICES`.

    Raises:
        ValueError: the variable says something else.
    """
    found = os.environ.get(VARIABLE) or COMPOSED
    if found not in CHOICES:
        raise ValueError(f"{VARIABLE}={found}: is no choice; there are {', '.join(CHOICES)}")
    return found
