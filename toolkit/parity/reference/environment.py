"""Setup of torch for the reference, and its versions."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
import transformers

#: The functions that torch computes with MKL's vector library (aten/src/ATen/cpu/vml.h).
OF_MKL = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp"),
    *("log", "log10", "log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)


def set_up(threads: int) -> None:
    """Set threads, deterministic kernels, no TF32, few logs."""
    torch.set_num_threads(threads)
    choose_kernels()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports a compiler, too: a second
    transformers.logging.set_verbosity_error()


def choose_kernels() -> None:
    """Call each function of :data:`OF_MKL` on one thread.

    MKL chooses a function's kernel in its first call. If several threads make that call at once, one of them may take a
    kernel of low accuracy for its share: sines wrong by 1e-4, exponentials in float64 by 3e-9, in the reference
    (pytorch/pytorch#188792, MKL 2024.2).
    """
    for dtype in (torch.float32, torch.float64):
        number = torch.full([1], 0.5, dtype=dtype)  # within the domain of all
        for name in OF_MKL:
            getattr(torch, name)(number)


def versions() -> dict[str, str]:
    """Versions of the packages that determine the reference's results."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }


def flags() -> dict[str, Any]:
    """The settings of :func:`set_up`, as torch reports them."""
    return {
        "cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }
