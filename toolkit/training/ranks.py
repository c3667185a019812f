"""Messages between the processes that train together: sums, texts, and that the first has passed the gate.

They are the ranks of ``paddle.distributed``, started by :mod:`toolkit.finetune.launch` or by Paddle's launcher, over
gloo on CPUs and NCCL on GPUs. A process that trains alone sends nothing, and gets back what it gave.

Gradients are summed here, after all micro-batches of a step, and not by ``paddle.DataParallel``. That sends each one
from a hook of its parameter as soon as it is made. But a reversible backward, which runs each layer's forward again,
makes some in several parts.
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
from toolkit.files.digest import digest
from toolkit.machine import interruption
from toolkit.machine.runtime import is_first_process, processes, rank

#: Environment variable of the processes that :mod:`toolkit.finetune.launch` starts: the pipe that the first reads.
SUPERVISED = "TOOLKIT_SUPERVISED"
#: Exit status (EX_TEMPFAIL) that tells :mod:`toolkit.finetune.launch` that a process ended because another had.
LOST = 75
#: Seconds between two polls for what the first process announces.
INTERVAL = 0.2


class Lost(ToolkitError):
    """Another process of the run has ended. Where :mod:`toolkit.finetune.launch` watches them, it names that one."""

    def __init__(self) -> None:
        watched = SUPERVISED in os.environ
        text = "another process of this run has ended: its log says why"
        super().__init__("" if watched else f"{text}; the same command goes on from the last checkpoint")
        self.exit_status = LOST if watched else 1


_joined = False


def join() -> None:
    """Connect to the other processes. Call it early, when all have just begun: Paddle gives up one that is awaited for
    longer than ``FLAGS_stop_check_timeout`` (900 s). Raises Lost if they do not come, and UserError if another program
    has the port where they meet."""
    global _joined
    if processes() > 1:
        import paddle

        _joined = True
        if is_first_process():
            _check_meeting_place()
        with _others_alive(), contextlib.redirect_stderr(io.StringIO()):  # Paddle prints a flag that it sets itself
            paddle.distributed.init_parallel_env()


def _check_meeting_place() -> None:
    """Check that this process can bind the port where the others look for it; else Paddle aborts half a minute later
    (SIGABRT). A program that has bound it but does not listen, as :mod:`toolkit.finetune.launch`, is not in the way.

    Raises:
        UserError: it cannot.
    """
    given = [os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")]
    ends = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
    place = ":".join(filter(None, given)) if all(given) else os.environ.get("PADDLE_MASTER") or ends[0]
    port = place.rpartition(":")[2]
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", int(port)))
        except OSError as problem:
            reason = os.strerror(problem.errno or 0)
            raise UserError(f"the processes cannot meet at {place}: {reason}; run the same command again") from None
        except ValueError:
            return  # Paddle says what is wrong with it


def joined() -> bool:
    """Whether this process has joined others. Then it must end before its libraries are torn down: there Paddle's
    connections sometimes abort it (SIGABRT, without a message), after all its work is done."""
    return _joined


# -- before training: one is ahead ----------------------------------------------------------------------------------


def announce(message: dict[str, Any]) -> None:
    """As the first process, send the others what they need, and let them go on."""
    if processes() > 1:
        store = _store()
        store.set("toolkit/message", json.dumps(message))
        store.add("toolkit/announced", 1)


def await_first() -> dict[str, Any]:
    """Wait for what the first process announces, without a limit: its gate may take hours. Raises Lost if it has
    ended."""
    with _others_alive():
        store = _store()
        while not store.add("toolkit/announced", 0):
            time.sleep(INTERVAL)
        return dict(json.loads(store.get("toolkit/message")))


def _store() -> Any:
    from paddle.base import core

    return core.create_or_get_global_tcp_store()


def agree(what: str, here: str) -> None:
    """Check that all processes have the same.

    Args:
        what: in the plural.
        here: a digest of them.

    Raises:
        UserError: they have not.
    """
    everywhere = [found.decode() for found in gather(here.encode())]
    odd = [number for number, found in enumerate(everywhere) if found != everywhere[0]]
    if odd:
        raise UserError(
            f"{what} of process {odd[0]} of {len(everywhere)} are not those of process 0; all need the same files, "
            "the same versions and the same kind of processor"
        )


def digest_of_model(model: Any) -> str:
    """A SHA-256 of all parameters, buffers and given constants of a model."""
    sha256 = hashlib.sha256()
    values = {name: value.numpy() for name, value in model.state_dict().items()}
    constants = {f"constant {name}": value for name, value in getattr(model, "given_constants", {}).items()}
    for name, value in sorted({**values, **constants}.items()):
        value = np.ascontiguousarray(value)
        sha256.update(f"{name} {value.dtype} {value.shape}:".encode())
        sha256.update(value.data)
    return sha256.hexdigest()


def seed_of(seed: int, step: int = 0) -> int:
    """Seed of this process's generators: the run's in the first process, one of its own in each other.

    Args:
        seed: of the run.
        step: where a run saved by another number of processes resumes, with new seeds; 0 for a new run.
    """
    return seed if rank() == step == 0 else int(digest("process", seed, rank(), step)[:8], 16)


# -- sums and texts -------------------------------------------------------------------------------------------------


def total(numbers: Sequence[float]) -> list[float]:
    """The sum over all processes of each number, in float64, the same to the bit everywhere. Raises Lost if another
    process has ended."""
    if processes() == 1:
        return list(numbers)
    import paddle

    sums = paddle.to_tensor(np.asarray(numbers, dtype=np.float64))
    with _others_alive():
        paddle.distributed.all_reduce(sums)
        return sums.numpy().tolist()


def sum_gradients(parameters: Sequence[Any], numbers: Sequence[float]) -> list[float]:
    """Give each parameter the sum of its gradients in all processes; returns :func:`total` of ``numbers``.

    A parameter that has a gradient in one process gets one in all. One that has none anywhere keeps none, so that the
    optimizer leaves it alone as it does in one process.

    Raises:
        Lost: another process has ended.
    """
    import paddle
    from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients_with_group

    trained = [parameter for parameter in parameters if not parameter.stop_gradient]
    sums = total([*numbers, *(parameter.grad is not None for parameter in trained)])
    for parameter, found in zip(trained, sums[len(numbers) :], strict=True):
        if found and parameter.grad is None:
            parameter.grad = paddle.zeros_like(parameter)
    with _others_alive():
        fused_allreduce_gradients_with_group(trained, None, scale=1.0)
    return sums[: len(numbers)]


def gather(text: bytes) -> list[bytes]:
    """Return the text of each process, by rank. Raises Lost if another process has ended."""
    if processes() == 1:
        return [text]
    import paddle

    sizes = [int(size) for size in _gather(paddle.to_tensor(np.array([len(text)], dtype=np.int64)))]
    padded = np.zeros(max(1, *sizes), dtype=np.uint8)
    padded[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    parts = _gather(paddle.to_tensor(padded))
    return [part.numpy()[:size].tobytes() for part, size in zip(parts, sizes, strict=True)]


def from_first(value: Any) -> Any:
    """Give all processes the first's value, which must fit JSON."""
    return json.loads(gather(json.dumps(value).encode() if is_first_process() else b"")[0])


def wait_for_all() -> None:
    """Wait until all processes have come here."""
    total([0.0])


def _gather(tensor: Any) -> list[Any]:
    import paddle

    found: list[Any] = []
    with _others_alive():
        paddle.distributed.all_gather(found, tensor)
    return found


@contextlib.contextmanager
def _others_alive() -> Iterator[None]:
    """Take any error within for a lost connection: gloo's and the store's have no class of their own."""
    try:
        yield
    except Exception as problem:
        if interruption.came():  # to them as well
            raise interruption.Interrupted from problem
        raise Lost from problem
