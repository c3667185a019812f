"""The request for a gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from toolkit.parity.job.job import ComparisonSettings


@dataclass(frozen=True)
class GateRequest(ComparisonSettings):
    """Settings and inputs of a gate.

    Attributes:
        weights: float32, under Hugging Face's names, a LoRA adapter's among them; anything that ``np.asarray`` takes.
            The files of a pair create its weights and its ``batch``.
        batch: one training batch: ``input_ids`` and ``attention_mask`` int64 (B, T), ``labels`` (labels of texts
            as for :func:`models.operations.losses.classification`) or, for question answering, ``start_positions`` and
            ``end_positions`` (B,).
        labels: labels of the run's first examples, by their keys in a batch; None for the labels in ``batch``.
        threads: number of threads of each side; None for the number of physical cores.
        not_run: differences between the run and the gate, in words.
        streamed: whether CTRL is compared stage by stage; None to do so if it is too large for memory.
        length_notes: compared part of the position table, and reason for padded texts, in words.
        length: tokens of each text that are compared, from the first on; None for as many as fit the memory.
        max_memory: memory limit of both workers together in GB; None for most of the machine's memory.
        reference_python: the interpreter that runs the reference; None for the gate's interpreter.
        port_python: likewise, that runs a pair's port.
        trace: judge the port operation by operation even if nothing differs (:mod:`toolkit.parity.followup.trace`).
        widened: whether synthetic examples are added to ``batch``, whose examples seldom show a fault
            (:func:`toolkit.parity.job.build.batch_of`).
        reuse: whether an unchanged pair is judged from cached measurements (:mod:`toolkit.parity.pairs.cached`).
        pair_names: parameters of a pair's reference -> its port's, or pieces of these, as given by the user.
        pair_layouts: pattern of its modules and draws -> the axes of the port's, as given by the user.
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
    """Return the dtypes of a gate.

    Args:
        dtype: ``both`` means float64, which decides, and float32; ``all`` bfloat16, too. ``bfloat16`` is never judged
            without float64.
        precision: of the run, which is judged in any case.
    """
    dtypes = {
        "both": ("float64", "float32"),
        "all": ("float64", "float32", "bfloat16"),
        "bfloat16": ("float64", "bfloat16"),
    }.get(dtype, (dtype,))
    return dtypes if precision == "float32" or precision in dtypes else (*dtypes, precision)
