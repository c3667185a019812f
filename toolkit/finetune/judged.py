"""Check that what is about to train is what the gate has judged.

The gate's port process has a port and a trainer, too. Both are described there (:mod:`toolkit.training.described`), and
the port makes a step on the run's own examples as it does when it is judged. The report keeps that (``judged`` in
``parity.json``). Here what is about to train is described, and its trainer makes that step. Any difference is named,
such as a lost dropout rate, class weights or an untrained parameter, and nothing trains.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from models import families
from toolkit.data.batches import collate
from toolkit.errors import ParityDrift
from toolkit.finetune.assembly import Assembled
from toolkit.finetune.gate import first_examples
from toolkit.machine import runtime
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT
from toolkit.run_folder.read import read_json, reading
from toolkit.training.described import describe_trainer, digest_step

if TYPE_CHECKING:
    from toolkit.parity import Judged
    from toolkit.training.trainer import Finetuner

REFUSED = "what is about to train is not what the gate judged"
UNCOMPARED = "what trains is not compared with what was judged"


def see_judged(recipe: Recipe, job: Assembled, trainer: Finetuner, folder: Path, console: Console) -> None:
    """Check that what is about to train is what the gate has judged, on the weights that it had there. The trainer has
    made no step yet. Raises ParityDrift, which names the first difference, if it is not."""
    from toolkit.parity import Judged, randomize_constants

    report, remedy = folder / REPORT / "parity.json", "run the same command again"
    with reading(report, remedy):
        content = read_json(report, remedy)["judged"]
        judged = Judged(**content) if content else None
    unseen: str | None = f"{UNCOMPARED}: the model is so large that the gate made no port as training does"
    if judged is not None:
        examples = collate(first_examples(job, judged.examples))
        given, randomized = randomize_constants(job.first_weights, recipe.seed)
        load = families.part(recipe.model.name, "weights").load
        if randomized:
            load(trainer.model, given)
        unseen = compare(trainer, examples, recipe.runtime.threads or runtime.threads(), judged)
        if randomized:
            load(trainer.model, job.first_weights)
    if unseen:
        console.print(f"note   {unseen}", highlight=False, soft_wrap=True)


def compare(trainer: Finetuner, batch: Mapping[str, np.ndarray], threads: int, judged: Judged) -> str | None:
    """Check that a trainer that has made no step equals the judged one, and that its first step is the same to the bit.

    Args:
        batch: the run's own examples of that step, of one micro-batch.

    Returns:
        What was not compared, and why; None where all was.

    Raises:
        ParityDrift: the first difference.
    """
    length = int(np.shape(batch["input_ids"])[1])
    if length != judged.length:
        return f"{UNCOMPARED}: the gate read {judged.length:,} of {length:,} tokens"
    here = describe_trainer(trainer)
    for name in {**judged.fields, **here}:
        then, now = judged.fields.get(name, "not there"), here.get(name, "not there")
        if then != now:
            raise ParityDrift(f"{REFUSED}: {name}: {now}, where the gate judged {then}{_place(trainer.model, name)}")
    as_there = (runtime.device(), threads, runtime.processes()) == (judged.device, judged.threads, 1)
    if runtime.device() != "cpu" or not as_there:
        return (
            "the first step of training is not compared: it is the gate's to the bit on a CPU alone, in one "
            "process with as many threads"
        )
    step = first_step(trainer, batch)
    for name in {**judged.step, **step}:
        if step.get(name) != judged.step.get(name):
            what = "the loss" if name == "loss" else f"the gradient of {name}"
            raise ParityDrift(f"{REFUSED}: {what} of its first step is another")
    return None


def first_step(trainer: Finetuner, batch: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return :func:`digest_step` of a step from the run's seed; clear its gradients."""
    import paddle

    runtime.seed_everything(trainer.recipe.seed)
    loss = trainer.training_step(trainer.model, {name: paddle.to_tensor(value) for name, value in batch.items()})
    found = digest_step(trainer.model, loss)
    trainer.optimizer.clear_grad()
    return found


def _place(model: Any, field: str) -> str:
    """Where the class of a field's layer is defined."""
    layers = {path or "model": layer for path, layer in model.named_sublayers(include_self=True)}
    owner = next((layers[path] for path in (field, field.rpartition(".")[0]) if path in layers), None)
    if owner is None:
        return ""
    kind = type(owner)
    file, (_, line) = Path(inspect.getfile(kind)), inspect.getsourcelines(kind)
    return f" ({kind.__name__}, {'/'.join(file.parts[-3:])}:{line})"
