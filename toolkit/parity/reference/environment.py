"""Settings of torch for the reference, and the versions of its packages."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
import transformers

#: Functions that torch computes with MKL's vector library (aten/src/ATen/cpu/vml.h).
MKL_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp"),
    *("log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)


def set_up(threads: int) -> None:
    """Configure torch for the reference: deterministic kernels, no TF32 and few log messages.

    Args:
        threads: number of threads of torch.
    """
    torch.set_num_threads(threads)
    choose_kernels()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # use_deterministic_algorithms would also import a compiler, which takes a second.
    torch.set_deterministic_debug_mode("warn")
    transformers.logging.set_verbosity_error()


def choose_kernels() -> None:
    """Call each function of :data:`MKL_FUNCTIONS` on a single thread.

    MKL chooses the kernel of a function in the first call. If several threads make this call at the same time, a thread
    may use a kernel of low accuracy for its share. In the reference, sines were wrong by 1e-4 and exponentials in
    float64 by 3e-9 (pytorch/pytorch#188792, MKL 2024.2).
    """
    for dtype in (torch.float32, torch.float64):
        number = torch.full([1], 0.5, dtype=dtype)  # in the domain of all functions
        for name in MKL_FUNCTIONS:
            getattr(torch, name)(number)


def read_versions() -> dict[str, str]:
    """Return the version of each package that affects the reference's results, and of Python, by name."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }


def read_flags() -> dict[str, Any]:
    """Return the values of torch's settings that :func:`set_up` has changed, by name."""
    return {
        "cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }
