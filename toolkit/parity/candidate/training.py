"""Updates of the parameters by the run's own Trainer, with the settings of the run's recipe.

Only the port's forward is replaced, by a function whose loss has R64's gradients (see
:mod:`toolkit.parity.measure.updates`). The run's own code does the rest: loop, accumulation, micro-batch weights,
clipping, optimizer, weight decay, and learning-rate schedule with its warm-up.
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
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Place
from toolkit.parity.job.job import Job
from toolkit.parity.measure.evaluation import FINAL_LOSS
from toolkit.parity.measure.naming import append_number
from toolkit.parity.measure.updates import clean_examples, count_loss_terms, pick_updates, scale_gradient, weigh_terms
from toolkit.recipe import keys as recipe_keys
from toolkit.recipe import recipe
from toolkit.terminal.console import LiteralConsole
from toolkit.training import optimizer, trainer

#: Key of the tensor in a batch that holds the indices of its examples.
EXAMPLE = "example"
#: Number of steps between evaluations: so large that the Trainer never evaluates.
NEVER = 10**9


def train_on(step: Step, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
    """Train the model of a step for the job's number of updates, and measure the results.

    These are the parameters after each update, the learning rates of the whole run, and the loss after the last update.

    Args:
        step: the port's step, whose model is trained.
        job: the job.
        folder: job folder.
        measure: called with the name and value of each tensor.
        truth: R64's tensors by name, with its gradients.
    """
    labels = files.read_tensors(folder / "labels.safetensors")
    finetuner = make_finetuner(
        step.model, job, examples_of(labels), folder / "candidate", uses_mixed_precision=step.dtype == "bfloat16"
    )
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
    """Return the source locations of the updates and of the learning-rate schedule, by kind of tensor.

    Example: ``updated`` -> the place of the optimizer. :class:`.naming.TensorName` has the kinds.

    Args:
        kind: name of the optimizer, such as ``adamw``.
    """
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
    model: nn.Layer,
    job: Job,
    examples: list[dict[str, np.ndarray]],
    folder: Path,
    *,
    uses_mixed_precision: bool = False,
) -> trainer.Finetuner:
    """Return the Trainer with a run's settings, without any output on the terminal.

    Args:
        model: the port's model.
        job: the job, with the run's settings.
        examples: training examples (:func:`examples_of`).
        folder: folder for the Trainer's files.
        uses_mixed_precision: whether the run trains with bfloat16 products.
    """
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
    """Return the examples of an update as the Trainer reads them, each with its index (:data:`EXAMPLE`).

    Args:
        labels: labels and other inputs by key, (N, ...) each.
    """
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
    """Inside the ``with`` block the model's loss on a micro-batch has gradients that are scaled from R64's.

    Args:
        model: the port's model, whose forward is replaced.
        truth: R64's tensors by name, with its gradients.
        terms: number of loss terms of each example, or its class weight, (N,); see :func:`.updates.count_loss_terms`.
        finetuner: the Trainer, which knows the number of the update and the optimizer.
        on_micro_batch: called with each micro-batch, as NumPy arrays by key.
    """
    table = model.parameter_table  # the property builds it on each access

    def forward(**micro_batch: paddle.Tensor) -> Any:
        """Return a loss whose gradient is the gradient of an update for the examples in this micro-batch."""
        on_micro_batch({key: value.numpy() for key, value in micro_batch.items()})
        present = np.zeros(len(terms))
        np.add.at(present, micro_batch[EXAMPLE].numpy(), 1)
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
    """Return the schedule's learning rates of the updates of :func:`.updates.pick_updates`, float64 (N,).

    Args:
        finetuner: trainer with the schedule.
        max_steps: number of updates of the whole run.
    """
    rates = []
    for update in pick_updates(max_steps):
        finetuner.lr_scheduler.step(update - 1)
        rates.append(finetuner.lr_scheduler.get_lr())
    return np.array(rates, np.float64)


class _ForwardInputs(trainer.TrainerCallback):
    """Callback that measures the inputs of each example in each update, as the model's forward received them.

    The comparable form is described in :func:`.updates.clean_examples`.

    Args:
        examples: inputs that the examples should have, by key, (N, ...) each.
        terms: number of loss terms of each example, (N,).
        truth: R64's tensors by name; only inputs that it has are measured.
        measure: called with the name and value of each tensor.
    """

    def __init__(
        self, examples: Mapping[str, np.ndarray], terms: np.ndarray, truth: Mapping[str, np.ndarray], measure: Measure
    ) -> None:
        # An older bundle does not have these tensors.
        self.examples = {key: value for key, value in examples.items() if f"trained:{key}" in truth}
        self.terms = terms
        self.measure = measure
        self.inputs_by_name: dict[str, np.ndarray] = {}

    def note_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        """Record the inputs of the examples in a micro-batch, given the micro-batch's tensors by key."""
        for key in self.examples.keys() & batch.keys():
            rows = self.inputs_by_name.setdefault(key, np.full(self.examples[key].shape, -1, batch[key].dtype))
            rows[batch[EXAMPLE]] = batch[key]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure the recorded inputs after an update, and forget them.

        Args:
            args: arguments of the training; not used.
            state: progress of the training.
            control: decisions of the Trainer.
            **_: further arguments of the Trainer; not used.
        """
        for name, value in clean_examples(self.inputs_by_name, self.terms).items():
            self.measure(append_number(name, state.global_step), value)
        self.inputs_by_name.clear()


class _AfterEachUpdate(trainer.TrainerCallback):
    """Callback that measures the parameters after each update, and ends the training after ``updates``."""

    def __init__(self, finetuner: trainer.Finetuner, updates: int, measure: Measure) -> None:
        self.finetuner = finetuner
        self.updates = updates
        self.measure = measure

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure the parameters after an update, and stop the training after the last.

        Args:
            args: arguments of the training; not used.
            state: progress of the training.
            control: decisions of the Trainer.
            **_: further arguments of the Trainer; not used.
        """
        for name, value in weights.dump(self.finetuner.model):
            self.measure(append_number(f"updated:{name}", state.global_step), value)
        if isinstance(self.finetuner.optimizer, optimizer.Lion):
            self._hand_on_moments(state.global_step)
        control.should_training_stop = state.global_step >= self.updates
        control.should_evaluate = control.should_save = False

    def _hand_on_moments(self, update: int) -> None:
        """Measure the moment of each parameter in the optimizer Lion: the parameters show only its sign.

        Args:
            update: number of the update, from 1.
        """
        moments, table = self.finetuner.optimizer._accumulators["moment1"], self.finetuner.model.parameter_table
        for name, parameter in self.finetuner.model.named_parameters():
            if parameter.name in moments:
                value = weights.to_paddle(moments[parameter.name].numpy(), table[name].role)
                self.measure(append_number(f"moment:{name}", update), value)


class _BeforeTheFirstUpdate(trainer.TrainerCallback):
    """Callback that measures the gradients that the optimizer gets in the first update, before clipping."""

    def __init__(self, model: nn.Layer, measure: Measure) -> None:
        self.model = model
        self.measure = measure

    def on_optimizer_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure the accumulated gradient of each parameter before the first update.

        Args:
            args: arguments of the training; not used.
            state: progress of the training.
            control: decisions of the Trainer.
            **_: further arguments of the Trainer; not used.
        """
        if state.global_step:
            return
        table = self.model.parameter_table
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and name in table:
                value = weights.to_paddle(parameter.grad.numpy(), table[name].role)
                self.measure(f"accumulated:{name}", value)
