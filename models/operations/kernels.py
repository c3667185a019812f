"""The choice of the ports' operations on a CPU: those composed here, or Paddle's own, as on a GPU.

``compiled``, the default with Numba and Paddle's OpenMP, are the composed ones, some of them compiled loops in float32
(:mod:`models.operations.loops`); ``composed`` are made of Paddle's operations alone. ``TOOLKIT_KERNELS=paddle`` takes
Paddle's own. So the ports' GPU code (which operation they call, with what) is run and gated on machines without a GPU.
It is slower, and Paddle's CPU kernels lose digits (see :mod:`models.operations.ops` and
:mod:`models.operations.activations`). Only this module reads the variable.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

VARIABLE = "TOOLKIT_KERNELS"
COMPILED, COMPOSED, PADDLE = "compiled", "composed", "paddle"
CHOICES = (COMPILED, COMPOSED, PADDLE)
#: Rows that a compiled loop sums in float32 before the sums are added up.
BLOCK_ROWS = 128
#: Columns that it sums in float32; these sums are then added in float64.
BLOCK_COLUMNS = 4096
#: Functions of OpenMP that compiled loops call, by names of our own: torch's OpenMP has the same ones.
THREADS = {name: f"paddle_{name}" for name in ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")}
#: MKL's product of matrices, from Paddle's wheel, by our name.
PRODUCT = "paddle_cblas_sgemm"


def chosen() -> str:
    """Return the operations for a CPU, of :data:`CHOICES`. Raises ValueError if the variable has another value, or one
    not available here."""
    found = os.environ.get(VARIABLE)
    if not found:
        return COMPILED if can_compile() else COMPOSED
    if found not in CHOICES:
        raise ValueError(f"{VARIABLE}={found}: is no choice; there are {', '.join(CHOICES)}")
    if found == COMPILED and not can_compile():
        raise ValueError(f"{VARIABLE}={found}: needs Numba (pip install numba) and Paddle's CPU wheel for Linux")
    return found


@functools.cache
def can_compile() -> bool:
    """Whether Numba and the threads of Paddle's matrix products are available. Imports neither."""
    paddle = importlib.util.find_spec("paddle")
    if paddle is None or paddle.origin is None or importlib.util.find_spec("numba") is None:
        return False
    return (Path(paddle.origin).parent / "libs" / "libiomp5.so").exists()
