"""What the gate is asked to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toolkit.parity.job.job import TokenizerJob, TrainingSettings
from toolkit.parity.job.pair import Pair


@dataclass
class GateRequest:
    """What to compare.

    Attributes:
        model: one of ``models.families.FAMILIES``; or :data:`.pair.PAIR`, and ``pair`` says whose.
        head: one of ``HEADS`` in the family's ``weights``.
        config: Hugging Face's configuration keys.
        weights: float32, under Hugging Face's names; anything that ``np.asarray`` takes.
        batch: one training batch: ``input_ids`` and ``attention_mask`` int64 (B, T), ``labels`` (those of texts as
            :func:`models.operations.losses.classification`) or, for question answering, ``start_positions`` and
            ``end_positions`` (B,).
        widened: compare on made-up examples beside those of ``batch``, which seldom reach what can go wrong
            (:func:`toolkit.parity.job.build.batch_of`).
        dtypes: ``float64`` decides whether the function is the same, ``float32`` whether it is as accurate,
            ``bfloat16`` whether it is in mixed precision.
        device: ``cpu`` or ``gpu``, for both sides.
        tokenizer: with texts of the run's data; None where there is none to compare.
        seed: of the dropout masks and rotations.
        port: settings of the port itself, as the run has them; :class:`.job.Job`.
        training: how the run changes the parameters.
        labels: those of the run's first examples, by their keys in a batch; None for those of ``batch``.
        class_weights: of the loss that trains, by label; as of :class:`.job.Job`.
        threads: of either side; None for the physical cores.
        not_run: what the run does otherwise than the gate, in words.
        streamed: compare CTRL stage by stage; None to do so where it is too large for memory.
        judge_reference_reversible: also measure the reference's own reversible backward; nothing is judged by it.
        checkpoint: the folder that ``weights`` were read from, for the reference to read, too; else None.
        checkpoint_config: the keys of the model in ``checkpoint``, where ``config`` has fewer positions.
        length_notes: what of the position table is compared, and why texts are padded, in words.
        length: tokens of each text that are compared, from the first on; None for as many as fit the memory.
        max_memory: what both workers may take together, in GB; None for most of what the machine has.
        at_once: both workers together fit the memory (:func:`.stretch.fitted`).
        origin: the hub repository and commit of ``checkpoint``, in words; None for what is not of the hub.
        reference_python: the interpreter that runs the reference; None for the one that runs the gate.
        trace: judge the port operation by operation even if nothing differs (:mod:`toolkit.parity.followup.trace`).
        widened: compare on made-up examples, too, which reach what those of ``batch`` may not
            (:func:`toolkit.parity.job.build.batch_of`).
        pair: a port and a reference of the user's, whose files make ``weights`` and ``batch``; None for a family.
        pair_names: parameters of its reference -> its port's, as the user has said.
        lora: what is adapted, as :class:`models.port.lora.LoRA` has it; ``weights`` then hold the adapter's, too.
    """

    model: str
    head: str
    config: Mapping[str, Any]
    weights: Mapping[str, np.ndarray]
    batch: Mapping[str, np.ndarray]
    dtypes: tuple[str, ...] = ("float64", "float32")
    device: str = "cpu"
    tokenizer: TokenizerJob | None = None
    seed: int = 0
    port: Mapping[str, Any] = field(default_factory=dict)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    labels: Mapping[str, np.ndarray] | None = None
    class_weights: tuple[float, ...] | None = None
    threads: int | None = None
    not_run: tuple[str, ...] = ()
    judge_reference_reversible: bool = False
    streamed: bool | None = None
    checkpoint: str | None = None
    checkpoint_config: Mapping[str, Any] | None = None
    length_notes: tuple[str, ...] = ()
    length: int | None = None
    max_memory: float | None = None
    at_once: bool = False
    origin: str | None = None
    reference_python: str | None = None
    trace: bool = False
    widened: bool = False
    pair: Pair | None = None
    pair_names: Mapping[str, str] = field(default_factory=dict)
    lora: Mapping[str, Any] | None = None


def dtypes_of(dtype: str, precision: str = "float32") -> tuple[str, ...]:
    """The dtypes of a gate.

    Args:
        dtype: ``both`` means float64, which decides, and float32; ``all`` bfloat16, too. ``bfloat16`` is never judged
            without float64.
        precision: of the run, which is judged in any case.
    """
    chosen = {
        "both": ("float64", "float32"),
        "all": ("float64", "float32", "bfloat16"),
        "bfloat16": ("float64", "bfloat16"),
    }.get(dtype, (dtype,))
    return chosen if precision == "float32" or precision in chosen else (*chosen, precision)
