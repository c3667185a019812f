"""Faults that real ports have, each as a change to the running port. The gate is judged by whether it catches them.

A fault is in the model, its tokenizer, the loading of a checkpoint, the initial weights or the training loop. A mutant
is in force in the port's process, during one step. The gate must locate it: the name of the finding nearest to the
cause must contain ``expected``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from models.families import FAMILIES
from toolkit.parity.job.family_part import family_part
from toolkit.parity.mutants import change, generic
from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.loops import BELOW_THE_NOISE, LOOPS, OF_ADAMW

__all__ = [
    "BELOW_THE_NOISE",
    "LOOPS",
    "OF_ADAMW",
    "Mutant",
    "catalogue",
    "faults_of_heads",
    "faults_of_loops",
    "faults_of_precision",
    "find_mutant",
    "keys_of_head",
]


@functools.cache
def catalogue(model: str) -> tuple[Mutant, ...]:
    """Return the faults of a family that both float64 and float32 show."""
    return family_part(model, "mutants").CATALOGUE


def faults_of_heads(model: str) -> dict[str, tuple[Mutant, ...]]:
    """Return the faults of each head that is not the head of the family's trials."""
    return getattr(family_part(model, "mutants"), "OF_HEADS", {})


def keys_of_head(model: str, head: str) -> Mapping[str, Any]:
    """Return the configuration keys that the trials of this head override."""
    return getattr(family_part(model, "mutants"), "KEYS_OF_HEADS", {}).get(head, {})


@functools.cache
def faults_of_precision(model: str) -> tuple[Mutant, ...]:
    """Return the faults of a family that only bfloat16 mixed precision shows."""
    return family_part(model, "mutants").PRECISION


@functools.cache
def faults_of_loops(model: str) -> tuple[Mutant, ...]:
    """Return the faults of a family's compiled loops that are smaller than the float32 noise of a step."""
    return family_part(model, "mutants").LOOPS


def find_mutant(name: str) -> Mutant:
    """Return the mutant with this name.

    It is a fault of a catalogue, a change of one parameter (:mod:`.change`), or a fault of a pair's port
    (:mod:`.generic`). Raises KeyError if no mutant has the name.
    """
    if named_mutant := change.parse_mutant(name) or generic.parse_mutant(name):
        return named_mutant
    from toolkit.parity.mutants import (
        shared_faults,  # it reads YAML; the interpreter of a user's port may lack the package
    )

    catalogues = (
        *map(catalogue, FAMILIES),
        *map(faults_of_precision, FAMILIES),
        *(head_faults for model in FAMILIES for head_faults in faults_of_heads(model).values()),
        *shared_faults.CLASS_WEIGHTS.values(),
        shared_faults.LABEL_SMOOTHING,
        *shared_faults.OPTIMIZERS.values(),
        shared_faults.LORA,
        *LOOPS.values(),
        BELOW_THE_NOISE.values(),
        OF_ADAMW,
    )
    return {mutant.name: mutant for catalogue_mutants in catalogues for mutant in catalogue_mutants}[name]
