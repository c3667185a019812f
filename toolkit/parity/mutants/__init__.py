"""The faults that real ports, tokenizers, loaders, new weights and training loops have, each as a change to the running
port: the gate is judged by what it does to them.

A mutant is applied in the Paddle worker's process, for the time of one step. ``expected`` names where the gate must say
the fault lies: a part of the name of the finding nearest to the cause.
"""

from __future__ import annotations

from toolkit.parity.mutants import change, generic
from toolkit.parity.mutants.batch import CTRL_BATCH, REFORMER_BATCH
from toolkit.parity.mutants.class_weights import CLASS_WEIGHTS
from toolkit.parity.mutants.ctrl import CTRL
from toolkit.parity.mutants.draws import CTRL_DRAWS, REFORMER_DRAWS
from toolkit.parity.mutants.evaluation import CTRL_EVALUATION, REFORMER_EVALUATION
from toolkit.parity.mutants.fault import Mutant
from toolkit.parity.mutants.initialisation import CTRL_INITIALISATION, REFORMER_INITIALISATION
from toolkit.parity.mutants.loading import CTRL_LOADING, REFORMER_LOADING
from toolkit.parity.mutants.lora import LORA
from toolkit.parity.mutants.precision import PRECISION
from toolkit.parity.mutants.reformer import REFORMER
from toolkit.parity.mutants.settings import REFORMER_SETTINGS
from toolkit.parity.mutants.tokenizers import CTRL_TOKENIZER, REFORMER_TOKENIZER
from toolkit.parity.mutants.trainer import TRAINER
from toolkit.parity.mutants.training import TRAINING

__all__ = ["CATALOGUES", "CLASS_WEIGHTS", "LORA", "PRECISION", "Mutant", "by_name"]

#: By family; those of mixed precision, which no other dtype shows, are apart.
CATALOGUES = {
    "reformer": (
        *REFORMER,
        *REFORMER_BATCH,
        *REFORMER_EVALUATION,
        *REFORMER_SETTINGS,
        *REFORMER_DRAWS,
        *TRAINING,
        *TRAINER,
        *REFORMER_TOKENIZER,
        *REFORMER_LOADING,
        *REFORMER_INITIALISATION,
    ),
    "ctrl": (
        *CTRL,
        *CTRL_BATCH,
        *CTRL_EVALUATION,
        *CTRL_DRAWS,
        *TRAINING,
        *TRAINER,
        *CTRL_TOKENIZER,
        *CTRL_LOADING,
        *CTRL_INITIALISATION,
    ),
}


def by_name(name: str) -> Mutant:
    """The mutant of that name: of the catalogues, of class weights, of an adapter, a change of one parameter, or a
    fault of a pair's port. Raises KeyError."""
    if made := change.of_name(name) or generic.of_name(name):
        return made
    catalogues = (*CATALOGUES.values(), *CLASS_WEIGHTS.values(), LORA, *PRECISION.values())
    return {mutant.name: mutant for catalogue in catalogues for mutant in catalogue}[name]
