"""What a run is made of: its examples, tokenizer, configuration and first weights, from a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models import families
from toolkit.identity import identity_of
from toolkit.recipe import Recipe
from toolkit.revisions import weights_folder
from toolkit.tasks import task_of

if TYPE_CHECKING:
    from toolkit.tasks import Prepared, Task

#: Training texts on which the gate compares the tokenizers.
GATE_TEXTS = 64


@dataclass(frozen=True)
class Job:
    """Everything a run is made of, before anything is computed.

    Attributes:
        task: the recipe's task.
        tokenizer: of the recipe.
        prepared: the examples.
        config: the port's configuration.
        weights: the first weights, in Hugging Face's names and layout, float32.
        new_weights: names of those that the checkpoint did not have; all of them where there is no checkpoint.
        texts: of the training split, for the tokenizer's part of the gate.
        checkpoint: the folder that the first weights were read from; None for new ones.
        identity: the content of all that comes from files (:mod:`toolkit.identity`).
    """

    task: Task
    tokenizer: Any
    prepared: Prepared
    config: Any
    weights: dict[str, np.ndarray]
    new_weights: list[str]
    texts: list[str]
    checkpoint: Path | None
    identity: dict[str, Any]


def assemble(recipe: Recipe) -> Job:
    """Load the data, the tokenizer, the configuration and the first weights.

    Raises:
        UserError: at the recipe's line, if one of them is not as the recipe says.
    """
    from toolkit.data import build_tokenizer
    from toolkit.model_config import build_config

    task = task_of(recipe)
    splits = task.load_splits(recipe)
    texts = task.texts(splits["train"])
    tokenizer = build_tokenizer(recipe, texts, task.control_codes(splits["train"]))
    prepared = task.prepare(recipe, tokenizer, splits)
    config = build_config(recipe, tokenizer, prepared.label_names)
    checkpoint = weights_folder(recipe)
    weights, new = first_weights(recipe, config, checkpoint)
    identity = identity_of(recipe, splits, tokenizer, checkpoint)
    return Job(task, tokenizer, prepared, config, weights, new, list(texts[:GATE_TEXTS]), checkpoint, identity)


def first_weights(recipe: Recipe, config: Any, checkpoint: Path | None) -> tuple[dict[str, np.ndarray], list[str]]:
    """The weights to start from: the checkpoint's, and new ones by the recipe's seed for what it does not have.

    Args:
        checkpoint: the folder to read; None for new weights alone.

    Returns:
        Name -> float32 array in Hugging Face's layout, and the names of the new ones.
    """
    from models.hub import read_tensors
    from toolkit.model_config import head_of

    weights, head = families.part(recipe.model.name, "weights"), head_of(recipe)
    if checkpoint is None:
        new = weights.initial_weights(config, head, recipe.seed)
        return new, list(new)
    try:
        found = weights.select(read_tensors(checkpoint), config, head)
    except (OSError, ValueError) as problem:
        raise recipe.error("model.weights", " ".join(str(problem).split())) from None
    new = weights.initial_weights(config, head, recipe.seed)
    found = {name: np.asarray(value, dtype=np.float32) for name, value in found.items()}
    return {**new, **found}, [name for name in new if name not in found]
