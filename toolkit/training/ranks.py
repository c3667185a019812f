"""What the processes that train together tell each other: sums, texts, and that the first has passed the gate.

They are the ranks of ``paddle.distributed``, started by :mod:`toolkit.finetune.launch` or by Paddle's launcher, over
gloo on CPUs and NCCL on GPUs. A process that trains alone sends nothing, and gets back what it gave.

Gradients are summed here, after all micro-batches of a step, and not by ``paddle.DataParallel``: that sends each one
from a hook of its parameter as soon as the backward has made it, and a reversible backward, which runs each layer's
forward again, makes some in several parts.
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

#: Set for the processes that :mod:`toolkit.finetune.launch` has started, to the number of the pipe that the first
#: reads.
SUPERVISED = "TOOLKIT_SUPERVISED"
#: The exit status by which a process tells :mod:`toolkit.finetune.launch` that it ended since another one had
#: (EX_TEMPFAIL).
LOST = 75
#: Seconds between two looks at what the first process has announced.
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
    """Meet the other processes. To be called early, when all have just begun: whoever is awaited for longer than
    Paddle's ``FLAGS_stop_check_timeout`` (900 s) is given up.

    Raises:
        Lost: they do not come.
        UserError: another program is where they are to meet.
    """
    global _joined
    if processes() > 1:
        import paddle

        _joined = True
        if is_first_process():
            _check_meeting_place()
        with _others_alive(), contextlib.redirect_stderr(io.StringIO()):  # Paddle tells a flag that it has set itself
            paddle.distributed.init_parallel_env()


def _check_meeting_place() -> None:
    """See that this process can bind the port at which the others look for it, of which Paddle makes an abort half a
    minute later (SIGABRT). Whoever has bound it and does not listen, as :mod:`toolkit.finetune.launch`, is not in the
    way.

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
    """Whether this process has met others. It is to end before its libraries are taken down: there Paddle's connections
    abort one now and then (SIGABRT, without a word), after all its work is done."""
    return _joined


# -- before training: one is ahead ----------------------------------------------------------------------------------


def announce(message: dict[str, Any]) -> None:
    """As the first process, let the others go on, with what they have to know."""
    if processes() > 1:
        store = _store()
        store.set("toolkit/message", json.dumps(message))
        store.add("toolkit/announced", 1)


def await_first() -> dict[str, Any]:
    """Wait for what the first process announces, for however long it takes: that may be a gate of hours.

    Raises:
        Lost: it has ended.
    """
    with _others_alive():
        store = _store()
        while not store.add("toolkit/announced", 0):
            time.sleep(INTERVAL)
        return dict(json.loads(store.get("toolkit/message")))


def _store() -> Any:
    from paddle.base import core

    return core.create_or_get_global_tcp_store()


def agree(what: str, here: str) -> None:
    """See that all processes have the same.

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
    """What this process's generators begin with: of the first the run's seed, of each other one of its own.

    Args:
        seed: of the run.
        step: at which a run goes on whose generators were those of another number of processes; 0 for a new run.
    """
    return seed if rank() == step == 0 else int(digest("process", seed, rank(), step)[:8], 16)


# -- sums and texts -------------------------------------------------------------------------------------------------


def total(numbers: Sequence[float]) -> list[float]:
    """The sum over all processes of each number, in float64, the same to the bit everywhere.

    Raises:
        Lost: another process has ended.
    """
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
    """What each process gave, in their order.

    Raises:
        Lost: another process has ended.
    """
    if processes() == 1:
        return [text]
    import paddle

    sizes = [int(size) for size in _gather(paddle.to_tensor(np.array([len(text)], dtype=np.int64)))]
    padded = np.zeros(max(1, *sizes), dtype=np.uint8)
    padded[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    parts = _gather(paddle.to_tensor(padded))
    return [part.numpy()[:size].tobytes() for part, size in zip(parts, sizes, strict=True)]


def from_first(value: Any) -> Any:
    """The first process's value, which JSON can hold, in all."""
    return json.loads(gather(json.dumps(value).encode() if is_first_process() else b"")[0])


def wait_for_all() -> None:
    """Go on when all processes have come here."""
    total([0.0])


def _gather(tensor: Any) -> list[Any]:
    import paddle

    found: list[Any] = []
    with _others_alive():
        paddle.distributed.all_gather(found, tensor)
    return found


@contextlib.contextmanager
def _others_alive() -> Iterator[None]:
    """What fails within is the connection: gloo's and the store's errors have no class of their own."""
    try:
        yield
    except Exception as problem:
        if interruption.came():  # to them as well
            raise interruption.Interrupted from problem
        raise Lost from problem
