"""The reference's kernels as seen from the port's process: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.parity.job.kernel_messages import receive, send


class KernelServer:
    """Starts :mod:`toolkit.parity.reference.kernels` and asks it.

    To be started before Paddle's environment is set (:func:`toolkit.runtime.configure`): the reference's own worker
    runs without those variables, and some of them choose another path through the same mathematics library.

    Args:
        job: the job folder.
        python: the interpreter that has torch.

    Attributes:
        calls: how often each kernel was asked for its outputs.
    """

    def __init__(self, job: Path, python: str) -> None:
        self.calls: Counter[str] = Counter()
        self._connection, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [python, "-m", "toolkit.parity.reference.kernels", str(job), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def __enter__(self) -> KernelServer:
        return self

    def __exit__(self, *problem: object) -> None:
        self._connection.close()
        self._process.wait()

    def forward(self, kernel: str, options: Mapping[str, Any], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of a kernel (see ``KERNELS`` of the server).

        Raises:
            RuntimeError: it failed, or the server did.
        """
        self.calls[kernel] += 1
        return self._ask({"kernel": kernel, "options": dict(options)}, inputs)

    def backward(
        self,
        kernel: str,
        options: Mapping[str, Any],
        inputs: Sequence[np.ndarray],
        gradients: Sequence[np.ndarray],
        wanted: Sequence[int],
    ) -> list[np.ndarray]:
        """The gradients of those inputs whose numbers are ``wanted``, given that of every output.

        Raises:
            RuntimeError: as :meth:`forward`.
        """
        words = {"kernel": kernel, "options": dict(options), "wanted": list(wanted)}
        return self._ask(words, [*inputs, *gradients])

    def _ask(self, words: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        try:
            send(self._connection, words, arrays)
            answer = receive(self._connection)
        except OSError as problem:
            raise RuntimeError(f"the reference's kernels are not to be had: {problem}") from None
        if answer is None:
            raise RuntimeError("the reference's kernels are not to be had: their process has ended")
        said, values = answer
        if "failed" in said:
            raise RuntimeError(f"the reference's kernel failed: {said['failed']}")
        return values
