"""The choice of the operations of the ports on a CPU.

- ``compiled``: composed of Paddle's fast operations and, in float32, of compiled loops
(:mod:`models.operations.loops`).
  It needs Numba and Paddle's OpenMP, and is the default with them.
- ``composed``: composed of Paddle's fast operations only. It is the default without Numba.
- ``paddle``: Paddle's own kernels, as on a GPU. So the GPU code of the ports runs, and is gated, on machines without a
  GPU. It is slower, and Paddle's CPU kernels lose digits (see :mod:`models.operations.ops` and
  :mod:`models.operations.activations`).

Only this module reads the environment variable ``TOOLKIT_KERNELS``, which overrides the default.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

VARIABLE = "TOOLKIT_KERNELS"
COMPILED, COMPOSED, PADDLE = "compiled", "composed", "paddle"
CHOICES = (COMPILED, COMPOSED, PADDLE)
#: Number of rows that are summed at a time, before the sums of these blocks are added.
BLOCK_ROWS = 128
#: Number of columns that are summed at a time; compiled loops add the sums of these blocks in float64.
BLOCK_COLUMNS = 4096
#: Names under which compiled loops call functions of Paddle's OpenMP; torch's OpenMP uses the original names.
THREADS = {name: f"paddle_{name}" for name in ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")}
#: Name under which compiled loops call the matrix product of MKL in Paddle's wheel.
PRODUCT = "paddle_cblas_sgemm"


def chosen_kernels() -> str:
    """Return the chosen operations for a CPU, an element of :data:`CHOICES`.

    Raises:
        ValueError: the variable has another value, or its choice is not available.
    """
    choice = os.environ.get(VARIABLE)
    if not choice:
        return COMPILED if can_compile() else COMPOSED
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE}={choice}: is no choice; there are {', '.join(CHOICES)}")
    if choice == COMPILED and not can_compile():
        raise ValueError(f"{VARIABLE}={choice}: needs Numba (pip install numba) and Paddle's CPU wheel for Linux")
    return choice


@functools.cache
def can_compile() -> bool:
    """Return whether Numba and the OpenMP of Paddle's matrix products are installed, without importing them."""
    paddle = importlib.util.find_spec("paddle")
    if paddle is None or paddle.origin is None or importlib.util.find_spec("numba") is None:
        return False
    return (Path(paddle.origin).parent / "libs" / "libiomp5.so").exists()
