"""The request for a gate, which the commands create from options and recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from toolkit.parity.job.job import ComparisonSettings


@dataclass(frozen=True)
class GateRequest(ComparisonSettings):
    """Settings and inputs of a gate.

    Attributes:
        weights: float32 weights by Hugging Face's names, with the weights of a LoRA adapter. Values are anything that
            ``np.asarray`` accepts. Empty for a pair, whose files create the weights and the batch.
        batch: one training batch: ``input_ids`` and ``attention_mask``, int64 (B, T), and ``labels`` as for
            :func:`models.operations.losses.classification` or, for question answering, ``start_positions`` and
            ``end_positions``, int64 (B,).
        labels: labels of the run's first examples, by their keys in a batch; None for the labels in ``batch``.
        threads: number of threads of each side; None for the number of physical cores.
        not_run: differences between the run and the gate, in words.
        streamed: whether CTRL is compared stage by stage; None to do so if it is too large for memory.
        length_notes: compared part of the position table, and reason for padded texts, in words.
        length: number of first tokens of each text that are compared; None for as many as fit into memory.
        max_memory: memory limit of both workers together in GB; None for most of the machine's memory.
        reference_python: interpreter of the reference; None for the gate's interpreter.
        port_python: interpreter of a pair's port; None for the gate's interpreter.
        trace: whether to judge the port operation by operation even if nothing differs
            (:mod:`toolkit.parity.followup.trace`).
        widened: whether synthetic examples are added to ``batch``, whose examples seldom show a fault
            (:func:`toolkit.parity.request.build.batch_of`).
        reuse: whether an unchanged pair is judged from cached measurements
        (:mod:`toolkit.parity.pairs.measurement_cache`). pair_names: the user's names of the port's parameters or their
        pieces, by the reference's parameter. pair_layouts: the user's order of the port's axes, by the pattern of the
        reference's modules and draws.
    """

    weights: Mapping[str, np.ndarray]
    batch: Mapping[str, np.ndarray]
    _: KW_ONLY
    labels: Mapping[str, np.ndarray] | None = None
    threads: int | None = None
    not_run: tuple[str, ...] = ()
    streamed: bool | None = None
    length_notes: tuple[str, ...] = ()
    length: int | None = None
    max_memory: float | None = None
    reference_python: str | None = None
    port_python: str | None = None
    trace: bool = False
    widened: bool = False
    reuse: bool = False
    pair_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pair_layouts: Mapping[str, str | Sequence[int]] = field(default_factory=dict)


def dtypes_of(dtype: str, precision: str = "float32") -> tuple[str, ...]:
    """Return the names of the dtypes that a gate judges.

    Args:
        dtype: a dtype; ``both`` for float64 and float32; or ``all`` for these and bfloat16. bfloat16 is never judged
            without float64.
        precision: precision of the run, which is judged in any case.
    """
    dtypes = {
        "both": ("float64", "float32"),
        "all": ("float64", "float32", "bfloat16"),
        "bfloat16": ("float64", "bfloat16"),
    }.get(dtype, (dtype,))
    return dtypes if precision == "float32" or precision in dtypes else (*dtypes, precision)
