"""Check that the run about to train is the run that the gate compared.

The gate's port process also has a port and a trainer. It describes both (:mod:`toolkit.training.trainer_description`),
and makes a step on the run's own examples. The report stores the description (``judged`` in ``parity.json``). Here the
model and trainer of the run are described in the same way and make the same step. Any difference is reported, such as a
lost dropout rate, class weights or an untrained parameter, and nothing trains.
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
from toolkit.finetune.assembly import AssembledRun
from toolkit.finetune.gate import first_examples
from toolkit.machine import runtime
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import REPORT
from toolkit.run_folder.read import read_json, reading
from toolkit.training.trainer_description import describe_trainer, digest_step

if TYPE_CHECKING:
    from toolkit.parity import JudgedTrainer
    from toolkit.training.trainer import Finetuner

MISMATCH_MESSAGE = "what is about to train is not what the gate judged"
NOT_COMPARED_MESSAGE = "what trains is not compared with what was judged"


def check_matches_gate(recipe: Recipe, job: AssembledRun, trainer: Finetuner, folder: Path, console: Console) -> None:
    """Check that the run about to train is the run that the gate compared, with the weights that the gate used.

    The trainer must not have made a step yet.

    Raises:
        ParityDrift: they differ; the error names the first difference.
    """
    from toolkit.parity import JudgedTrainer, randomize_constants

    report, remedy = folder / REPORT / "parity.json", "run the same command again"
    with reading(report, remedy):
        content = read_json(report, remedy)["judged"]
        gate_record = JudgedTrainer(**content) if content else None
    note: str | None = f"{NOT_COMPARED_MESSAGE}: the model is so large that the gate made no port as training does"
    if gate_record is not None:
        examples = collate(first_examples(job, gate_record.examples))
        gate_weights, has_random_constants = randomize_constants(job.first_weights, recipe.seed)
        load = families.part(recipe.model.name, "weights").load
        if has_random_constants:
            load(trainer.model, gate_weights)
        note = compare_with_gate(
            trainer, examples, recipe.runtime.threads or runtime.default_num_threads(), gate_record
        )
        if has_random_constants:
            load(trainer.model, job.first_weights)
    if note:
        console.print(f"note   {note}", highlight=False, soft_wrap=True)


def compare_with_gate(
    trainer: Finetuner, batch: Mapping[str, np.ndarray], threads: int, gate_record: JudgedTrainer
) -> str | None:
    """Check that a trainer before its first step equals the gate's trainer, and that its first step does.

    The results of the step must be bitwise the same.

    Args:
        trainer: trainer of the run.
        batch: the run's own examples of the step, a micro-batch.
        threads: number of threads of the run.
        gate_record: the gate's description of its trainer and step.

    Returns:
        A note on the parts that were not compared, and the reason; None if everything was.

    Raises:
        ParityDrift: they differ; the error names the first difference.
    """
    length = int(np.shape(batch["input_ids"])[1])
    if length != gate_record.length:
        return f"{NOT_COMPARED_MESSAGE}: the gate read {gate_record.length:,} of {length:,} tokens"
    fields = describe_trainer(trainer)
    for name in {**gate_record.fields, **fields}:
        before, now = gate_record.fields.get(name, "not there"), fields.get(name, "not there")
        if before != now:
            raise ParityDrift(
                f"{MISMATCH_MESSAGE}: {name}: {now}, where the gate judged {before}"
                f"{_source_location(trainer.model, name)}"
            )
    has_same_setting = (runtime.current_device(), threads, runtime.num_processes()) == (
        gate_record.device,
        gate_record.threads,
        1,
    )
    if runtime.current_device() != "cpu" or not has_same_setting:
        return (
            "the first step of training is not compared: it is the gate's to the bit on a CPU alone, in one "
            "process with as many threads"
        )
    step = first_step(trainer, batch)
    for name in {**gate_record.step, **step}:
        if step.get(name) != gate_record.step.get(name):
            tensor_name = "the loss" if name == "loss" else f"the gradient of {name}"
            raise ParityDrift(f"{MISMATCH_MESSAGE}: {tensor_name} of its first step is another")
    return None


def first_step(trainer: Finetuner, batch: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Run a training step from the run's seed, and return the SHA-256s of its loss and gradients, by name.

    :func:`digest_step` chooses the names. The gradients are cleared, and no parameter is updated.

    Args:
        trainer: trainer of the run.
        batch: tensors of the batch, by name.
    """
    import paddle

    runtime.seed_everything(trainer.recipe.seed)
    loss = trainer.training_step(trainer.model, {name: paddle.to_tensor(value) for name, value in batch.items()})
    digests = digest_step(trainer.model, loss)
    trainer.optimizer.clear_grad()
    return digests


def _source_location(model: Any, field: str) -> str:
    """Return the source location of the class of a field's layer."""
    layers = {path or "model": layer for path, layer in model.named_sublayers(include_self=True)}
    owner = next((layers[path] for path in (field, field.rpartition(".")[0]) if path in layers), None)
    if owner is None:
        return ""
    kind = type(owner)
    file, (_, line) = Path(inspect.getfile(kind)), inspect.getsourcelines(kind)
    return f" ({kind.__name__}, {'/'.join(file.parts[-3:])}:{line})"
