"""The messages of the port's process: their kinds, and the type of each kind's content.

:class:`.handover.Sender` sends them; methods marked by :func:`toolkit.parity.comparator.handler.handles` handle them. A
message with an array has the tensor's name; the comment describes the array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.parity.exchange.results import CandidateFacts, Execution, JudgedTrainer, Place, Tokens
from toolkit.parity.measure.loop_accuracy import LoopError


@dataclass(frozen=True)
class DrawRequest:
    """The port's request for a draw of R64 that replaces its own draw.

    Attributes:
        what: the kind of draw in words, such as ``a dropout mask``.
        shape: shape of the draw.
        rate: rate of a dropout mask; None for other draws.
    """

    what: str
    shape: list[int]
    rate: float | None = None


@dataclass(frozen=True)
class OwnDraw:
    """A draw that the port's own generator has made.

    Attributes:
        shape: shape that the port asks for.
        rate: rate of a dropout mask; None for rotations.
        is_seeded: whether a fixed seed makes rotations the same each time.
    """

    shape: list[int]
    rate: float | None = None
    is_seeded: bool = False


@dataclass(frozen=True)
class CallOrigin:
    """The origin of a call of a Paddle function in a user's port.

    Attributes:
        where: source location of the call.
        inputs: numbers of the earlier calls that computed its inputs, counted in the order of the calls.
        layer: name of the layer that calls the function.
        num_tensors: number of tensors among its arguments.
    """

    where: str
    inputs: list[int]
    layer: str
    num_tensors: int


#: Kind of the message that begins a part of the result; kind of the message that ends a job.
BEGIN, END = "begin", "end"
#: Type of the content of each kind of message, by the kind; None for messages without content.
CONTENT: dict[str, Any] = {
    BEGIN: list[str],  # the names of the part: a mutant and a dtype, or a stage and a dtype
    END: None,
    # the step in a dtype
    "tensor": None,  # an output, a loss, a gradient or an updated parameter
    "held": None,  # a parameter after the model was built
    "constant": None,  # a table that the model computes once
    "unwatched": None,  # a tensor of the step without hooks
    "second": None,  # a gradient of the other backward
    "own plain": None,  # a gradient of plain autograd with the port's own draws
    "own again": None,  # the same gradient by the recomputing backward
    "is plain first": bool,
    "facts": CandidateFacts,
    "places": dict[str, Place],
    "asked": DrawRequest,
    "signs": None,  # signs of a ReLU's inputs
    "buckets": None,  # buckets of a module's vectors
    "choice": list[int],  # indices that were chosen along the last axis of scores of this shape
    # the operations in isolation
    "awaited": list[str],
    "lines": dict[str, str],
    "call": CallOrigin,  # the output of a function
    "computed_by": dict[str, int],
    "entered_at": dict[str, str],
    # the port's own draws
    "draws step": None,
    "mask": OwnDraw,  # bool, True for a kept element
    "rotation": OwnDraw,  # normal numbers
    "sequence": None,  # bool (masks, cells), True for a dropped cell
    # the rest of a job
    "loader": None,
    "loaded": None,  # a parameter that the port's loader reads
    "new place": str,
    "new values": None,  # some values of a randomly initialized parameter
    "tokens": list[Tokens] | None,
    "tokenizer places": dict[str, Place],
    "loops": list[LoopError],
    "leaks": list[str],
    "limited lines": list[str],
    "judged": JudgedTrainer | None,
    "raised": str,
    "execution": Execution,
    # a model larger than memory, stage by stage
    "done": None,
    "rows": list[Any],  # rows of the output layer's gradient from this row on, and whether the layer is tied
    "own rows": list[Any],  # the embedding's gradient; its whole shape, and whether it is tied
    "all rows": list[int],
    # a follow-up with the reference's kernels
    "used": str,  # `loop` or `kernel`
    "calls": dict[str, int],
}
