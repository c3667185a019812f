"""Choice of the number of tokens of each text that a gate covers.

A gate of google/reformer-enwik8 on the 65,536 tokens that it trains on would take more than 100 GB. A port's faults
show on fewer tokens, too, if they are several chunks of every kind of attention and some of them are padding. So the
memory of both workers is estimated from the shapes before they start. If it is more than the machine has, both get only
the first tokens of each text, and the first rows of a position table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from models.families import family as known_family
from models.families import part
from toolkit.errors import Inconclusive, UserError
from toolkit.machine.memory import physical_memory
from toolkit.machine.model_memory import ModelShape, gate_memory_bytes, stage_memory_bytes
from toolkit.machine.sizes import format_gigabytes
from toolkit.parity.job.family import ported_family
from toolkit.parity.request.build import is_brief, is_streamed, shape_of, spares_memory
from toolkit.parity.request.request import GateRequest

#: Share of the machine's memory that a gate may take by default.
SHARE = 0.85
#: Smallest number of attention chunks, of the longest kind, in a shortened text. With so many, not all chunks see each
#: other.
CHUNKS = 4
#: Required ratio of the memory to the estimate for both workers, if they are to run at the same time. For 2 layers on
#: 16,384 tokens, 3.4 GB were estimated for each worker and 3.9 GB were measured.
ROOM_FOR_BOTH = 1.4
#: Largest number of shorter lengths that are tried for the description of a gate. A mistaken length, which is far too
#: long, has more.
MAX_TRIED = 2048


def fit_to_memory(request: GateRequest) -> tuple[GateRequest, str]:
    """Return a request whose texts fit into memory, and its memory in words.

    The returned request covers the requested length, or otherwise as many first tokens of each text as fit.

    Args:
        request: request with whole texts.

    Raises:
        UserError: the requested length does not fit.
        Inconclusive: not even the shortest length that shows faults fits.
    """
    length = request.batch["input_ids"].shape[1]
    if request.length is not None:
        request = stretch(request, _requested_length(request, length))
    if is_streamed(request):
        return request, ""
    room = most_memory(request)
    required_bytes = memory_of(request)
    if room is None or required_bytes <= room:
        request = _at_once(request, room)
        return request, f"about {format_gigabytes(required_bytes * (2 if request.at_once else 1))} of memory"
    if request.length is not None:
        raise UserError(
            f"a gate over {request.length:,} tokens takes about {format_gigabytes(required_bytes)}; {_room(room)}"
        )
    for shorter in shorter_lengths(request):
        shorter_request = stretch(request, shorter)
        if (required_bytes := memory_of(shorter_request)) <= room:
            memory = f"about {format_gigabytes(required_bytes)} of memory"
            return shorter_request, f"{memory} over the first {shorter:,} of {length:,} tokens"
    raise Inconclusive(
        f"the gate takes about {format_gigabytes(required_bytes)} of memory over the shortest texts that show "
        f"what can be wrong; {_room(room)}. Fewer examples (parity.examples) take less; a larger machine can "
        "record the reference (toolkit parity record)"
    )


def gate_memory(request: GateRequest) -> str:
    """Return the memory of a gate and the covered part of its texts, in words.

    Args:
        request: request with whole texts.

    Raises:
        UserError: the requested length does not fit into memory.
        Inconclusive: not even the shortest length that shows faults fits.
    """
    if not is_streamed(request):
        required_bytes, room = memory_of(request), most_memory(request)
        if (
            room is not None
            and required_bytes > room
            and request.batch["input_ids"].shape[1] // _unit(request) > MAX_TRIED
        ):
            return f"about {format_gigabytes(required_bytes)} over whole texts; {_room(room)}"
        return fit_to_memory(request)[1]
    memory = format_gigabytes(streamed_memory_of(request))
    return f"about {memory} in the larger of its two processes: it goes stage by stage"


def streamed_memory_of(request: GateRequest) -> float:
    """Return the estimated number of bytes of the larger worker in a gate stage by stage."""
    num_weights, _ = ported_family(request.model).stage_elements(request.config)
    vocab_size = part(request.model, "schema").resolve(request.config)["vocab_size"]
    return stage_memory_bytes(num_weights, math.prod(shape_of(request)) * vocab_size)


def memory_of(request: GateRequest) -> float:
    """Return the estimated number of bytes of a gate whose model is compared as a whole (:mod:`.model_memory`)."""
    config = part(request.model, "schema").resolve(request.config)
    texts, length = shape_of(request)
    shape = ModelShape.of(request.model, config, request.head, length, texts)
    return gate_memory_bytes(shape, is_reduced=is_brief(request), runs_in_turn=spares_memory(request))


def _at_once(request: GateRequest, room: float | None) -> GateRequest:
    """Return the request, with ``at_once`` set if there is memory for both workers of a long text.

    Args:
        request: request whose gate fits into memory.
        room: number of bytes that the gate may take; None if it is not known.
    """
    if room is None or is_brief(request) or not spares_memory(request):
        return request
    # The reference keeps activations in float32 alone, and the port all: each takes at most the result of memory_of.
    return replace(request, at_once=ROOM_FOR_BOTH * 2 * memory_of(request) <= room)


def most_memory(request: GateRequest) -> float | None:
    """Return the number of bytes that the gate may take; None if the system does not report its memory."""
    if request.max_memory is not None:
        return request.max_memory * 1e9
    memory = physical_memory()
    return None if memory is None else SHARE * memory


def shorter_lengths(request: GateRequest) -> Iterator[int]:
    """Yield the lengths in tokens, shorter than the texts, that the model can be compared with; the longest first."""
    unit = _unit(request)
    length = request.batch["input_ids"].shape[1]
    yield from range((length - 1) // unit * unit, 0, -unit)


def stretch(request: GateRequest, length: int) -> GateRequest:
    """Return the request with only the first ``length`` tokens of each text.

    The position table is cut as for a training on so few tokens.

    Args:
        request: request with whole texts.
        length: number of tokens of each text, at most the length of the texts.
    """
    full_length = request.batch["input_ids"].shape[1]
    if length == full_length:
        return request
    config = part(request.model, "schema").resolve(request.config)
    keys = part(request.model, "lengths").stretch_config(config, length, full_length)
    is_cut = known_family(request.model).table_key in keys
    weights = part(request.model, "positions").cut_weights(request.weights, keys) if is_cut else request.weights
    note = f"compared on the first {length:,} of the {full_length:,} tokens of each text"
    return replace(
        request,
        config={**request.config, **keys},
        weights=weights,
        batch={key: _first(np.asarray(value), full_length, length) for key, value in request.batch.items()},
        checkpoint_config=request.checkpoint_config or (request.config if is_cut and request.checkpoint else None),
        length_notes=(*request.length_notes, note),
    )


def _requested_length(request: GateRequest, full_length: int) -> int:
    """Return the shortest length in tokens that is comparable and not below the requested length."""
    unit = _unit(request)
    return min(full_length, -(-(request.length or full_length) // unit) * unit)


def _unit(request: GateRequest) -> int:
    """Return the number of tokens that the length of a shortened text must be a multiple of."""
    config = part(request.model, "schema").resolve(request.config)
    return part(request.model, "lengths").stretch_unit(config, CHUNKS)


def _first(value: np.ndarray, full_length: int, length: int) -> np.ndarray:
    """Return the part of a batch's array for the first tokens of each text.

    An array without an axis of tokens is returned unchanged. Answers beyond the first tokens are then ignored.

    Args:
        value: array of the batch, (B,) or (B, T).
        full_length: number of tokens T of each text.
        length: number of first tokens.
    """
    return value[:, :length] if value.ndim > 1 and value.shape[1] == full_length else value


def _room(room: float) -> str:
    """Return the end of a message with the number of bytes that the gate may take."""
    return f"it may take {format_gigabytes(room)} (parity.max_memory)"
