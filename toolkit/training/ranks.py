"""Exchange messages between the processes that train together: sums, texts, and that the first has passed the gate.

They are the ranks of ``paddle.distributed``, started by :mod:`toolkit.finetune.launch` or by Paddle's launcher, over
gloo on CPUs and NCCL on GPUs. In a run with one process, each function returns the process's own value.

Gradients are summed here, after all micro-batches of a step, and not by ``paddle.DataParallel``. That class sends each
gradient from a hook of its parameter as soon as it is computed. But a reversible backward runs the forward of each
layer again, and computes some gradients in several parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from toolkit.errors import ToolkitError, UserError
from toolkit.files.digest import digest_parts
from toolkit.machine import interruption
from toolkit.machine.runtime import is_first_process, num_processes, process_rank

#: Environment variable of the processes that :mod:`toolkit.finetune.launch` starts: the file descriptor of the pipe
#: that the first process reads. It is empty for all other processes.
SUPERVISOR_PIPE_VARIABLE = "TOOLKIT_SUPERVISED"
#: Exit status (EX_TEMPFAIL) of a process that ended because another process had ended.
LOST_PROCESS_STATUS = 75
#: Seconds between two polls for the first process's announcement.
POLL_SECONDS = 0.2


class LostProcessError(ToolkitError):
    """Another process of the run has ended.

    The message is empty under :mod:`toolkit.finetune.launch`, which watches the processes and names the process that
    ended.
    """

    def __init__(self) -> None:
        is_supervised = SUPERVISOR_PIPE_VARIABLE in os.environ
        text = "another process of this run has ended: its log says why"
        super().__init__("" if is_supervised else f"{text}; the same command goes on from the last checkpoint")
        self.exit_status = LOST_PROCESS_STATUS if is_supervised else 1


def join() -> None:
    """Connect to the other processes.

    Call it early, when all processes have just started: Paddle stops waiting for a process after
    ``FLAGS_stop_check_timeout`` (900 s).

    Raises:
        LostProcessError: the other processes did not connect.
        UserError: another program uses the port that the processes connect to.
    """
    if num_processes() > 1:
        import paddle

        if is_first_process():
            _check_port()
        with _lost_connection_errors(), contextlib.redirect_stderr(io.StringIO()):  # hide the flag that Paddle prints
            paddle.distributed.init_parallel_env()


def _check_port() -> None:
    """Check that this process can bind the port that the other processes connect to.

    Otherwise Paddle aborts half a minute later (SIGABRT). A program that has bound the port without listening, as
    :mod:`toolkit.finetune.launch` has, is not a problem.

    Raises:
        UserError: the port cannot be bound.
    """
    master_address = [os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")]
    endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
    address = (
        ":".join(filter(None, master_address))
        if all(master_address)
        else os.environ.get("PADDLE_MASTER") or endpoints[0]
    )
    port = address.rpartition(":")[2]
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(port)))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise UserError(f"the processes cannot meet at {address}: {reason}; run the same command again") from None
        except ValueError:
            return  # Paddle reports an invalid port itself


# -- before training: the first process is ahead --------------------------------------------------------------------


def announce(message: dict[str, Any]) -> None:
    """Send a message from the first process to all others, which wait for it in :func:`await_first`.

    Args:
        message: keys and values that can be written as JSON.
    """
    if num_processes() > 1:
        store = _store()
        store.set("toolkit/message", json.dumps(message))
        store.add("toolkit/announced", 1)


def await_first() -> dict[str, Any]:
    """Wait for the message of the first process, and return it.

    The wait is unlimited, because the gate may take hours.

    Raises:
        LostProcessError: the first process has ended.
    """
    with _lost_connection_errors():
        store = _store()
        while not store.add("toolkit/announced", 0):
            time.sleep(POLL_SECONDS)
        return dict(json.loads(store.get("toolkit/message")))


def _store() -> Any:
    """Return the key-value store through which the processes of a run communicate."""
    from paddle.base import core

    return core.create_or_get_global_tcp_store()


def agree(description: str, own_digest: str) -> None:
    """Check that a digest is the same in all processes.

    Args:
        description: plural noun that names the hashed things in the message.
        own_digest: this process's digest.

    Raises:
        UserError: the digests differ.
    """
    digests = [digest.decode() for digest in gather(own_digest.encode())]
    differing_ranks = [number for number, digest in enumerate(digests) if digest != digests[0]]
    if differing_ranks:
        raise UserError(
            f"{description} of process {differing_ranks[0]} of {len(digests)} are not those of process 0; all need the "
            "same files, the same versions and the same kind of processor"
        )


def digest_of_model(model: Any) -> str:
    """Return a SHA-256 of all parameters, buffers and replayed constants of a model."""
    sha256 = hashlib.sha256()
    values = {name: value.numpy() for name, value in model.state_dict().items()}
    constants = {f"constant {name}": value for name, value in getattr(model, "given_constants", {}).items()}
    for name, value in sorted({**values, **constants}.items()):
        value = np.ascontiguousarray(value)
        sha256.update(f"{name} {value.dtype} {value.shape}:".encode())
        sha256.update(value.data)
    return sha256.hexdigest()


def seed_of(seed: int, step: int = 0) -> int:
    """Return the seed of this process's generators: the run's seed in the first process, a derived seed in the others.

    Args:
        seed: seed of the run.
        step: first step of a run that is resumed with another number of processes, and so with new seeds; 0 for a new
            run.
    """
    return seed if process_rank() == step == 0 else int(digest_parts("process", seed, process_rank(), step)[:8], 16)


# -- sums and texts -------------------------------------------------------------------------------------------------


def total(numbers: Sequence[float]) -> list[float]:
    """Return the sum of each number over all processes, in float64. The result is bitwise the same in all processes.

    Args:
        numbers: this process's summands.

    Raises:
        LostProcessError: another process has ended.
    """
    if num_processes() == 1:
        return list(numbers)
    import paddle

    sums = paddle.to_tensor(np.asarray(numbers, dtype=np.float64))
    with _lost_connection_errors():
        paddle.distributed.all_reduce(sums)
        return sums.numpy().tolist()


def sum_gradients(parameters: Sequence[Any], numbers: Sequence[float]) -> list[float]:
    """Replace each parameter's gradient by its sum over all processes; return :func:`total` of `numbers`.

    A parameter that has a gradient in one process gets a gradient in all. A parameter without a gradient in any process
    keeps none, so that the optimizer leaves it unchanged, as in one process.

    Args:
        parameters: parameters of the model. Those with `stop_gradient` are left out.
        numbers: this process's summands.

    Raises:
        LostProcessError: another process has ended.
    """
    import paddle
    from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients_with_group

    trained_parameters = [parameter for parameter in parameters if not parameter.stop_gradient]
    sums = total([*numbers, *(parameter.grad is not None for parameter in trained_parameters)])
    for parameter, num_gradients in zip(trained_parameters, sums[len(numbers) :], strict=True):
        if num_gradients and parameter.grad is None:
            parameter.grad = paddle.zeros_like(parameter)
    with _lost_connection_errors():
        fused_allreduce_gradients_with_group(trained_parameters, None, scale=1.0)
    return sums[: len(numbers)]


def gather(text: bytes) -> list[bytes]:
    """Return the text of each process, by rank.

    Raises:
        LostProcessError: another process has ended.
    """
    if num_processes() == 1:
        return [text]
    import paddle

    sizes = [int(size) for size in _gather_tensors(paddle.to_tensor(np.array([len(text)], dtype=np.int64)))]
    padded_text = np.zeros(max(1, *sizes), dtype=np.uint8)
    padded_text[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    parts = _gather_tensors(paddle.to_tensor(padded_text))
    return [part.numpy()[:size].tobytes() for part, size in zip(parts, sizes, strict=True)]


def from_first(value: Any) -> Any:
    """Return the first process's value in all processes. It must be valid JSON."""
    return json.loads(gather(json.dumps(value).encode() if is_first_process() else b"")[0])


def wait_for_all() -> None:
    """Wait until all processes have called this function."""
    total([0.0])


def _gather_tensors(tensor: Any) -> list[Any]:
    """Return the tensors of all processes, in the order of their ranks."""
    import paddle

    tensors: list[Any] = []
    with _lost_connection_errors():
        paddle.distributed.all_gather(tensors, tensor)
    return tensors


@contextlib.contextmanager
def _lost_connection_errors() -> Iterator[None]:
    """Convert any error of the block to `LostProcessError`, because gloo and the store have no error class for it."""
    try:
        yield
    except Exception as error:
        if interruption.has_signal():  # the signal went to the other processes as well
            raise interruption.SignalInterrupt from error
        raise LostProcessError from error
