"""How much of each text a gate covers: all, or a first stretch that fits the memory.

A gate of google/reformer-enwik8 on the 65,536 tokens that it trains on would take more than 100 GB. A port's faults
show on fewer tokens, too, if they are several chunks of every kind of attention and some of them are padding. So the
memory of both workers is estimated from the shapes before they start. If it is more than there is, both get only the
first tokens of each text, and the first rows of a position table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from models.families import family as known_family
from models.families import part
from toolkit.errors import Inconclusive, UserError
from toolkit.machine.memory import count_parameters, format_gigabytes, physical_memory
from toolkit.parity.job.build import is_brief, is_streamed, shape_of, spares_memory
from toolkit.parity.job.family import ported
from toolkit.parity.job.request import GateRequest

#: Share of the machine's memory that a gate may take by default.
SHARE = 0.85
#: Least chunks of the longest kind in a stretch: so many that not all see each other.
CHUNKS = 4
#: Bytes that each worker takes with nothing to do, and for each parameter: as all of these, fitted to the peaks of both
#: workers on models of 10^6 to 2 * 10^7 parameters. Of google/reformer-enwik8 on 2,048 tokens 19.3 GB are estimated,
#: 16.8 were seen; of 16,384 tokens of a narrow model 4.6 GB, and 7.8.
IDLE, PER_PARAMETER = 900e6, 45
#: Bytes per element that a layer computes (:func:`models.reformer.schema.layer_elements`): of every layer if all
#: activations are kept, in the reference and in the port; of the largest layer if it is recomputed.
REFERENCE_KEEPS, PORT_KEEPS, AGAIN = 76, 38, 60
#: Bytes of each position's hidden state for each layer that is computed again.
STREAMS = 80
#: Bytes of each number of the output layer, and of each score, stage by stage. Of CTRL's own vocabulary 5.4 GB are
#: estimated on 5 texts of 54 tokens and 18.6 on 4 of 512; 5.4 and 18.2 were seen.
PER_TABLE, PER_SCORE = 8, 30
#: Required ratio of memory to the two workers' estimate for them to run at once: of 2 layers on 16,384 tokens 3.4 GB
#: each were estimated, 3.9 taken.
ROOM_FOR_BOTH = 1.4
#: Shorter lengths tried before a gate that does not fit is described; a mistaken length has more.
MAX_TRIED = 2048


def fit_to_memory(request: GateRequest) -> tuple[GateRequest, str]:
    """The request over as much of the texts as is asked for, or as fits the memory; and in words what that takes.
    Raises UserError if the length that is asked for does not fit, and Inconclusive if not even the shortest stretch
    does."""
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
    """Return a gate's memory in words, and the covered part of the texts. Raises as :func:`fit_to_memory`."""
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
    """About how many bytes the larger worker takes stage by stage: at the output layer, which no stage divides."""
    texts, length = shape_of(request)
    table, _ = ported(request.model).stage_elements(request.config)
    vocabulary = part(request.model, "schema").resolve(request.config)["vocab_size"]
    return IDLE + PER_TABLE * table + PER_SCORE * texts * length * vocabulary


def memory_of(request: GateRequest) -> float:
    """Return about how many bytes the gate takes: both workers together if they run at once, otherwise the larger."""
    config = part(request.model, "schema").resolve(request.config)
    texts, length = shape_of(request)
    layers = part(request.model, "schema").layer_elements(config, length)
    width = part(request.model, "schema").hidden_width(config)
    idle = IDLE + PER_PARAMETER * count_parameters(request.model, config, request.head)
    again = idle + texts * (AGAIN * max(layers) + STREAMS * length * width * len(layers))
    if is_brief(request):
        return again
    port = idle + texts * PORT_KEEPS * sum(layers)
    if spares_memory(request):
        return max(again, port)
    return idle + texts * REFERENCE_KEEPS * sum(layers) + port


def _at_once(request: GateRequest, room: float | None) -> GateRequest:
    """Return the request, whose workers run at once in spite of its long text if there is room for both."""
    if room is None or is_brief(request) or not spares_memory(request):
        return request
    # The reference keeps activations in float32 alone, and the port all: each takes at most the result of memory_of.
    return replace(request, at_once=ROOM_FOR_BOTH * 2 * memory_of(request) <= room)


def most_memory(request: GateRequest) -> float | None:
    """Return the bytes that the gate may take; None if the system does not report its memory."""
    if request.max_memory is not None:
        return request.max_memory * 1e9
    memory = physical_memory()
    return None if memory is None else SHARE * memory


def shorter_lengths(request: GateRequest) -> Iterator[int]:
    """Yield the lengths shorter than the texts that the model can be compared on, the longest first."""
    unit = _unit(request)
    length = request.batch["input_ids"].shape[1]
    yield from range((length - 1) // unit * unit, 0, -unit)


def stretch(request: GateRequest, length: int) -> GateRequest:
    """Return the request over the first ``length`` tokens of each text, the positions cut as for training on so few."""
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
    """Return the shortest length of a comparison that is not below the requested length."""
    unit = _unit(request)
    return min(full_length, -(-(request.length or full_length) // unit) * unit)


def _unit(request: GateRequest) -> int:
    config = part(request.model, "schema").resolve(request.config)
    return part(request.model, "lengths").stretch_unit(config, CHUNKS)


def _first(value: np.ndarray, full_length: int, length: int) -> np.ndarray:
    """Return the part of a batch's array for the first tokens: answers beyond them are then ignored."""
    return value[:, :length] if value.ndim > 1 and value.shape[1] == full_length else value


def _room(room: float) -> str:
    return f"it may take {format_gigabytes(room)} (parity.max_memory)"
