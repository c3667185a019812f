"""The reference's kernels as seen from the port's process: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

import multiprocessing
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.parity.job import launch
from toolkit.parity.job.kernel_messages import receive, send


class KernelClient:
    """Starts :mod:`toolkit.parity.reference.kernel_server` and asks it.

    Start it before Paddle's environment is set (:func:`toolkit.machine.runtime.configure_paddle`): the reference's own
    worker runs without those variables, and some of them choose another path through the same mathematics library.

    Args:
        python: the interpreter that has torch.

    Attributes:
        calls: how often each kernel was asked for its outputs.
    """

    def __init__(self, job: Path, python: str) -> None:
        self.calls: Counter[str] = Counter()
        self._connection, theirs = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            launch.module_command(python, "toolkit.parity.reference.kernel_server", str(job), str(theirs.fileno())),
            env=launch.worker_environment(),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def __enter__(self) -> KernelClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()
        self._process.wait()

    def forward(self, kernel: str, options: Mapping[str, Any], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of a kernel (see ``KERNELS`` of the server). Raises RuntimeError if it failed, or the server
        did."""
        self.calls[kernel] += 1
        return self._ask({"kernel": kernel, "options": dict(options)}, inputs)

    def backward(
        self,
        kernel: str,
        options: Mapping[str, Any],
        inputs: Sequence[np.ndarray],
        gradients: Sequence[np.ndarray],
        input_indices: Sequence[int],
    ) -> list[np.ndarray]:
        """Return the gradients of the inputs with numbers ``input_indices`` from the gradients of all
        outputs. Raises as :meth:`forward`."""
        request = {"kernel": kernel, "options": dict(options), "wanted": list(input_indices)}
        return self._ask(request, [*inputs, *gradients])

    def _ask(self, request: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        try:
            send(self._connection, request, arrays)
            answer, values = receive(self._connection)
        except (OSError, EOFError) as error:
            why = str(error) or "their process has ended"
            raise RuntimeError(f"the reference's kernels are unavailable: {why}") from None
        if "failed" in answer:
            raise RuntimeError(f"the reference's kernel failed: {answer['failed']}")
        return values
