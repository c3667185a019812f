"""Setup of torch for the reference, and its versions."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
import transformers


def set_up(threads: int) -> None:
    """Set threads, deterministic kernels, no TF32, few logs."""
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports a compiler, too: a second
    transformers.logging.set_verbosity_error()


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
