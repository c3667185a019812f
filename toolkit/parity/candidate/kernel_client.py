"""The reference's kernels, called from the port's process with NumPy arrays."""

from __future__ import annotations

import multiprocessing
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.parity.exchange.kernel_messages import receive, send
from toolkit.parity.processes import launch


class KernelClient:
    """Starts the process :mod:`toolkit.parity.reference.kernel_server`, and calls the reference's kernels in it.

    Start it before Paddle's environment is set (:func:`toolkit.machine.runtime.configure_paddle`): the reference's own
    worker runs without those variables, and some of them choose another code path in the mathematics library of both.

    Args:
        job: job folder.
        python: path of the Python interpreter that has torch.

    Attributes:
        calls: number of forward calls of each kernel, by the kernel's name.
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

    def __exit__(self, *exception_info: object) -> None:
        """Close the connection, and wait until the server's process has ended."""
        self._connection.close()
        self._process.wait()

    def forward(self, kernel: str, options: Mapping[str, Any], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of a kernel of the reference.

        Args:
            kernel: name of the kernel, a key of ``KERNELS`` in :mod:`toolkit.parity.reference.kernel_server`.
            options: keyword options of the kernel.
            inputs: the kernel's tensors.

        Raises:
            RuntimeError: the kernel failed, or the server's process has ended.
        """
        self.calls[kernel] += 1
        return self._ask({"kernel": kernel, "kernel_options": dict(options)}, inputs)

    def backward(
        self,
        kernel: str,
        options: Mapping[str, Any],
        inputs: Sequence[np.ndarray],
        gradients: Sequence[np.ndarray],
        input_indices: Sequence[int],
    ) -> list[np.ndarray]:
        """Return the gradients of some inputs of a kernel of the reference.

        Args:
            kernel: name of the kernel, as in :meth:`forward`.
            options: keyword options of the kernel.
            inputs: the kernel's tensors.
            gradients: gradient of each output of the kernel.
            input_indices: indices of the inputs whose gradients are returned.

        Raises:
            RuntimeError: the kernel failed, or the server's process has ended.
        """
        request = {"kernel": kernel, "kernel_options": dict(options), "input_indices": list(input_indices)}
        return self._ask(request, [*inputs, *gradients])

    def _ask(self, message: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send a request and its arrays to the server, and return the arrays of the answer."""
        try:
            send(self._connection, message, arrays)
            answer, values = receive(self._connection)
        except (OSError, EOFError) as error:
            why = str(error) or "their process has ended"
            raise RuntimeError(f"the reference's kernels are unavailable: {why}") from None
        if "failed" in answer:
            raise RuntimeError(f"the reference's kernel failed: {answer['failed']}")
        return values
