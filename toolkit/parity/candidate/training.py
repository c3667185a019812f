"""Updates of the parameters, made by the Trainer's own loop as the run's recipe sets it up.

Only the port's forward is replaced, by a function whose loss has R64's gradients (see
:mod:`toolkit.parity.measure.updates`). The loop, accumulation, micro-batch weights, clipping, optimizer, weight decay,
learning-rate schedule and its warm-up are the run's own.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from models.port import weights
from toolkit import tasks
from toolkit.parity.candidate.places import place_of_code
from toolkit.parity.candidate.step import Measure, Step, ignore
from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import Place
from toolkit.parity.measure.evaluation import FINAL_LOSS
from toolkit.parity.measure.naming import append_number
from toolkit.parity.measure.updates import clean_examples, count_loss_terms, pick_updates, scale_gradient, weigh_terms
from toolkit.recipe import keys as recipe_keys
from toolkit.recipe import recipe
from toolkit.terminal.console import LiteralConsole
from toolkit.training import optimizer, trainer

#: The key of a batch that holds the indices of its examples.
EXAMPLE = "example"
#: Step so late that no evaluation comes.
NEVER = 10**9


def train_on(step: Step, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
    """Train a step's model for the job's number of updates. Measure the parameters after each, the learning rates of
    the whole run, and the loss after the last update."""
    labels = files.read_tensors(folder / "labels.safetensors")
    finetuner = make_finetuner(step.model, job, examples_of(labels), folder / "candidate", step.dtype == "bfloat16")
    terms = count_loss_terms(job.task, labels, job.class_weights)
    forward_inputs = _ForwardInputs(labels, terms, truth, measure)
    finetuner.add_callback(forward_inputs)
    finetuner.add_callback(_AfterEachUpdate(finetuner, job.updates, measure))
    if "bfloat16" in job.dtypes:
        finetuner.add_callback(_BeforeTheFirstUpdate(step.model, measure))
    step.model.clear_gradients()
    with apply_gradients(step.model, truth, terms, finetuner, forward_inputs.note_batch):
        finetuner.fit()
    measure("learning_rate", rates_of(finetuner, job.training.max_steps))
    step.model.train()
    with paddle.no_grad(), step.replay_draws(ignore, FINAL_LOSS):
        measure(append_number("loss", 2), step.model(**step.batch).loss.numpy())


def training_places(kind: str) -> dict[str, Place]:
    """Return the places of the updates and of the learning-rate schedule, by the kind of the optimizer's tensors."""
    loop = place_of_code("", trainer.Finetuner.training_step).where
    optimizer_places = ", ".join(
        place_of_code(kind, code).where for code in (optimizer.create, optimizer.OPTIMIZERS[kind])
    )
    update_place = Place(kind, f"{optimizer_places}; the loop around it: {loop}")
    schedule = place_of_code("the Trainer's arguments", trainer._training_arguments)
    return {
        "updated": update_place,
        "moment": update_place,
        "trained": Place("the Trainer's loop", loop),
        "accumulated": Place("the Trainer's loop", loop),
        "learning_rate": schedule,
    }


def make_finetuner(
    model: nn.Layer, job: Job, examples: list[dict[str, np.ndarray]], folder: Path, uses_mixed_precision: bool = False
) -> trainer.Finetuner:
    """Make the trainer of a run's settings, silent; ``mixed`` for mixed precision."""
    save_best = recipe_keys.TASK_KEYS[job.task]["train.save_best"]
    train = recipe_keys.Train(
        **asdict(job.training),
        eval_batch_size=job.training.batch_size,
        eval_steps=NEVER,
        save_best=save_best,
        precision="bfloat16" if uses_mixed_precision else "float32",
    )
    data = recipe_keys.Data(dataset="json", max_length=1)
    model_section = recipe_keys.Model.model_validate({"name": job.model})
    run_recipe = recipe.Recipe.model_validate(
        {"task": job.task, "seed": job.seed, "model": model_section, "data": data, "train": train}
    )
    console = LiteralConsole(file=io.StringIO())
    return trainer.Finetuner(model, run_recipe, folder, tasks.task_of(run_recipe), console, train_dataset=examples)


def examples_of(labels: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the examples of an update: each its labels, its other inputs, and its number."""
    count = len(next(iter(labels.values())))
    return [{EXAMPLE: np.array(row), **{key: value[row] for key, value in labels.items()}} for row in range(count)]


@contextlib.contextmanager
def apply_gradients(
    model: nn.Layer,
    truth: Mapping[str, np.ndarray],
    terms: np.ndarray,
    finetuner: trainer.Finetuner,
    on_micro_batch: Callable[[Mapping[str, np.ndarray]], None],
) -> Iterator[None]:
    """Inside the ``with`` block the model's loss on a micro-batch has given gradients.

    Args:
        truth: R64's tensors by name, with its gradients.
        terms: number of loss terms of each example, or its class weight, (N,); see :func:`.updates.count_loss_terms`.
        on_micro_batch: called with each micro-batch.
    """

    table = model.parameter_table  # the property builds it on each access

    def forward(**batch: paddle.Tensor) -> Any:
        on_micro_batch({key: value.numpy() for key, value in batch.items()})
        present = np.zeros(len(terms))
        np.add.at(present, batch[EXAMPLE].numpy(), 1)
        shares, update = weigh_terms(terms * present), finetuner.state.global_step + 1
        products = []
        for name, parameter in model.named_parameters():
            if f"gradient:{name}" in truth and name in table:
                update_gradient = scale_gradient(
                    truth[f"gradient:{name}"], update, shares, finetuner.recipe.train.optimizer
                )
                gradient = weights.to_paddle(update_gradient, table[name].role)
                products.append((parameter * paddle.to_tensor(gradient).astype(parameter.dtype)).sum())
        return {"loss": paddle.add_n(products)}

    model.forward = forward
    try:
        yield
    finally:
        del model.forward


def rates_of(finetuner: trainer.Finetuner, max_steps: int) -> np.ndarray:
    """Return the learning rates of the updates of :func:`.updates.pick_updates` by the schedule: float64 (N,)."""
    rates = []
    for update in pick_updates(max_steps):
        finetuner.lr_scheduler.step(update - 1)
        rates.append(finetuner.lr_scheduler.get_lr())
    return np.array(rates, np.float64)


class _ForwardInputs(trainer.TrainerCallback):
    """Measures the inputs that each update's forwards received for its examples (:func:`.updates.clean_examples`)."""

    def __init__(
        self, examples: Mapping[str, np.ndarray], terms: np.ndarray, truth: Mapping[str, np.ndarray], measure: Measure
    ) -> None:
        # An older bundle does not have these tensors.
        self.examples = {key: value for key, value in examples.items() if f"trained:{key}" in truth}
        self.terms = terms
        self.measure = measure
        self.inputs_by_name: dict[str, np.ndarray] = {}

    def note_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        """Record the inputs of a micro-batch's examples."""
        for key in self.examples.keys() & batch.keys():
            rows = self.inputs_by_name.setdefault(key, np.full(self.examples[key].shape, -1, batch[key].dtype))
            rows[batch[EXAMPLE]] = batch[key]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for name, value in clean_examples(self.inputs_by_name, self.terms).items():
            self.measure(append_number(name, state.global_step), value)
        self.inputs_by_name.clear()


class _AfterEachUpdate(trainer.TrainerCallback):
    """Measures the parameters after each update, and ends the training after ``updates``."""

    def __init__(self, finetuner: trainer.Finetuner, updates: int, measure: Measure) -> None:
        self.finetuner = finetuner
        self.updates = updates
        self.measure = measure

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for name, value in weights.dump(self.finetuner.model):
            self.measure(append_number(f"updated:{name}", state.global_step), value)
        if isinstance(self.finetuner.optimizer, optimizer.Lion):
            self._hand_on_moments(state.global_step)
        control.should_training_stop = state.global_step >= self.updates
        control.should_evaluate = control.should_save = False

    def _hand_on_moments(self, update: int) -> None:
        """Measure Lion's moments: the parameters show only their signs."""
        moments, table = self.finetuner.optimizer._accumulators["moment1"], self.finetuner.model.parameter_table
        for name, parameter in self.finetuner.model.named_parameters():
            if parameter.name in moments:
                value = weights.to_paddle(moments[parameter.name].numpy(), table[name].role)
                self.measure(append_number(f"moment:{name}", update), value)


class _BeforeTheFirstUpdate(trainer.TrainerCallback):
    """Measures the gradients that the optimizer gets in the first update, before clipping."""

    def __init__(self, model: nn.Layer, measure: Measure) -> None:
        self.model = model
        self.measure = measure

    def on_optimizer_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step:
            return
        table = self.model.parameter_table
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and name in table:
                value = weights.to_paddle(parameter.grad.numpy(), table[name].role)
                self.measure(f"accumulated:{name}", value)
