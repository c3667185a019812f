"""Subclass PaddleNLP's Trainer: whole-batch accumulation, exact resume, quiet and cheap steps.

The Trainer's loop, schedules, clipping and fleet support are used unchanged. These parts are replaced:

- *Accumulation.* The Trainer averages the means of its micro-batches, and carries the gradients of an epoch's last,
  incomplete group into the next epoch. Here a batch of the loop is the whole accumulated batch; :meth:`training_step`
  splits it into micro-batches and weights their losses. Loss and gradient are therefore the same as for one large
  batch.
- *Resume.* See :mod:`toolkit.run_folder.checkpoint` and :mod:`toolkit.training.sampler`.
- *Evaluations and checkpoints.* :class:`ScheduleCallback` evaluates every `eval_steps` steps and always at the end. It
  saves a checkpoint with each evaluation, every minute, and when a signal asks it to stop
  (:mod:`toolkit.machine.interruption`). A validation then stops between two batches. The checkpoint records this, and a
  run that resumes from it begins with that validation.
- *Several processes* (:mod:`toolkit.training.ranks`). The mean loss is over the loss terms of all processes, and
  gradients are summed after the accumulated backward. One process writes the run folder; all processes share the
  evaluations.
- *Mixed precision.* Instead of the Trainer's autocast, the ports cast themselves (:mod:`models.operations.precision`).
  Their casts are the same on every device, and the gate compares them.
- *Weight decay* applies to neither biases nor LayerNorm parameters, as in transformers.

No other file of the toolkit imports PaddleNLP.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from rich.console import Console

from models.operations import precision
from models.port import paddlenlp_entry

# isort: split
with paddlenlp_entry.deferred_import("datasets"):  # the replaced parts of the Trainer only use it in type checks
    from paddlenlp.trainer.trainer import Trainer
from paddlenlp.trainer.trainer_callback import PrinterCallback, TrainerCallback, TrainerState
from paddlenlp.trainer.trainer_utils import EvalLoopOutput
from paddlenlp.trainer.training_args import TrainingArguments

# isort: split
from toolkit.data.batches import collate, compute_loss_weights, split_batch, sum_label_weights, trim_padding
from toolkit.errors import ToolkitError
from toolkit.machine import interruption
from toolkit.machine.heap import reserve_small_blocks
from toolkit.machine.interruption import SignalInterrupt
from toolkit.machine.runtime import is_first_process, num_processes, process_rank, seed_everything
from toolkit.recipe.recipe import Recipe, require_setting
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.tracking import Tracker
from toolkit.tasks.interface import Task
from toolkit.tasks.intervals import mean_interval
from toolkit.terminal.progress import ProgressBar, format_number
from toolkit.training import optimizer, ranks
from toolkit.training.sampler import EpochPermutation
from toolkit.training.schedule import Best, Schedule, examples_of_step
from toolkit.training.shared_evaluation import EveryNth, evaluate_shared, in_own_order, longest_first, seed_of_batch
from toolkit.training.token_dropout import TokenDropout

#: Maximum number of characters of the line that is printed for a validation.
MAX_COLUMNS = 80

#: Seconds between checkpoints: the most training that a kill may cost if evaluations are far apart.
CHECKPOINT_SECONDS = 60.0

#: Advice in the message about training that diverges.
DIVERGENCE_ADVICE = "lower train.learning_rate, raise train.warmup_ratio or set train.max_grad_norm"


class DivergedError(ToolkitError):
    """The loss, a parameter, or every validation is infinite or NaN."""


class Requests(NamedTuple):
    """Actions after a step that do not follow from the step's number.

    Attributes:
        stop: whether training stops.
        save: whether a checkpoint is saved.
    """

    stop: bool
    save: bool


class Finetuner(Trainer):
    """Trainer and evaluator of one model, with the settings of a recipe.

    Args:
        model: Paddle model. Called with the collated batch's keys, it returns an output with a `loss`.
        recipe: recipe of the run.
        folder: run folder; checkpoints go into its ``checkpoints``.
        task: task of the recipe; its `num_loss_terms`, `token_counts`, `outputs`, `compute_metrics` and
            `LOWER_IS_BETTER` are used.
        console: console for progress and metrics.
        train_dataset: map-style data set; None to evaluate only. Its ``set_epoch``, if it has one, is called with the
            number of each epoch.
        eval_dataset: map-style data set of the validations during training.
        tracker: writer of the metrics; None to record none.
        num_initial_processes: number of processes at the start of the run, which sets the size of its batches; None
            for the current number.
    """

    def __init__(
        self,
        model: Any,
        recipe: Recipe,
        folder: Path,
        task: Task,
        console: Console,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tracker: Tracker | None = None,
        num_initial_processes: int | None = None,
    ) -> None:
        self.recipe = recipe
        self.num_initial_processes = num_initial_processes or num_processes()
        #: Whether all processes evaluate together. A process that evaluates alone sets it to False.
        self.shared = num_processes() > 1
        self.task = task
        self.console = console
        examples = len(train_dataset) if train_dataset is not None else 1
        self.schedule = Schedule.of(recipe, examples, self.num_initial_processes)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.tracker = tracker
        self.best = Best()
        self.seconds = 0.0
        self.last_step = 0
        self.saved_at = self.counted_at = time.monotonic()
        self._agreed = Requests(False, False)
        #: Called after each validation in training. An error that it raises ends the training.
        self.watch: Callable[[Finetuner], None] | None = None
        #: File with the initial state of the optimizer, written by :func:`.checkpoint.save_optimizer`.
        self.begins_with: Path | None = None
        #: Whether the validation due after the last step was interrupted.
        self.left = False
        self.step_loss = math.nan
        self.step_learning_rate = math.nan
        #: Outputs of the task for all examples, (N, ...) each, in the last evaluation and in the best validation.
        self.outputs: tuple[np.ndarray, ...] | None = None
        self.best_outputs: tuple[np.ndarray, ...] | None = None
        self.progress = ProgressBar(console, "", 0)
        self.save_best = require_setting(recipe.train.save_best)
        self._loss = paddle.zeros([])
        super().__init__(
            model=model,
            args=_training_arguments(recipe, folder, self.schedule),
            data_collator=collate,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            compute_metrics=self._metrics,
            callbacks=[ScheduleCallback(self)],
        )
        self.remove_callback(PrinterCallback)

    # -- called by users of this class ------------------------------------------------------------------------------

    def fit(self, resume_from: Path | None = None) -> None:
        """Train to the last step, or until early stopping.

        Args:
            resume_from: folder of the checkpoint to resume from; None to start at the first step.

        Raises:
            SignalInterrupt: a signal arrived; the state after the last complete step is saved.
            DivergedError: the loss is NaN or infinite.
        """
        if resume_from is not None:
            self.take_up(resume_from)
            if self.best.stopped or self.last_step >= self.schedule.max_steps:
                return
        reserve_small_blocks()
        with interruption.note_signals():
            try:
                self.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
            finally:
                self.progress.stop()
            self.last_step = self.state.global_step
            if self.requests().stop or interruption.has_signal():
                raise SignalInterrupt(self.state.global_step)

    def take_up(self, checkpoint_dir: Path) -> None:
        """Load the counters of a checkpoint, and finish the validation that was interrupted when it was saved."""
        state = checkpoint.read_state(checkpoint_dir)
        self.best = Best(**{key: state[key] for key in asdict(self.best)})
        self.seconds, self.last_step = state["seconds"], state["step"]
        if state.get("left"):
            self.validate(checkpoint_dir)

    def validate(self, checkpoint_dir: Path) -> None:
        """Evaluate a checkpoint's weights in a validation that training did not finish; a signal interrupts it."""
        self.state = TrainerState.load_from_json(str(checkpoint_dir / checkpoint.TRAINER_STATE))
        checkpoint.load_weights(self.model, checkpoint_dir)
        self.is_in_train, self.counted_at, self.resumed_from = True, time.monotonic(), checkpoint_dir
        with ProgressBar(self.console, "train", self.schedule.max_steps, self.state.global_step) as self.progress:
            self.evaluate()
        self.is_in_train = False

    def use_best_weights(self) -> None:
        """Load the weights of the best evaluation into the model.

        Raises:
            DivergedError: no evaluation had a finite loss and a finite value of ``train.save_best``.
        """
        if self.best.best_step is None:
            raise DivergedError(
                f"no validation had a finite loss and {self.save_best}, so there is no best model; {DIVERGENCE_ADVICE}"
                f", and train into another folder"
            )
        ranks.wait_for_all()  # the first process may still be writing the weights
        checkpoint.load_weights(self.model, self.checkpoints.best(self.best.best_step))
        ranks.wait_for_all()  # the first process removes the weights when it is done

    def measure(self, dataset: Any, split_name: str) -> dict[str, float]:
        """Return the loss and the task's metrics over a data set.

        The generators are seeded before and restored after it. So one model has the same metrics on one data set at any
        time, and measuring does not change the training that follows.

        Args:
            dataset: map-style data set.
            split_name: name of the data set, for the progress bar.
        """
        batches = len(self._get_eval_sampler(dataset))
        with ProgressBar(self.console, split_name, batches) as self.progress:
            metrics = self.evaluate(dataset, metric_key_prefix=split_name)
        return _plain_metrics(metrics, split_name)

    def intervals(
        self, metrics: Mapping[str, float], outputs: tuple[np.ndarray, ...], dataset: Any
    ) -> dict[str, list[float]]:
        """Return the 95% confidence interval of each metric of the last measurement, [low, high], by name.

        Args:
            metrics: metrics of the measurement, from :meth:`measure`.
            outputs: outputs of the measurement.
            dataset: data set that was measured.
        """
        losses = np.array([float(loss.astype("float32")) for loss in self._batch_losses])
        loss_interval = mean_interval(metrics["loss"], losses, len(self._get_eval_sampler(dataset)))
        intervals = {"loss": loss_interval, **self.task.confidence_intervals(outputs, dataset)}
        return {name: interval for name, interval in intervals.items() if interval}

    # -- called by the callback -------------------------------------------------------------------------------------

    def record(self, split_name: str, metrics: dict[str, float]) -> None:
        """Write a row of metrics for the step just done.

        Args:
            split_name: name of the data set that was measured.
            metrics: metrics by name.
        """
        if self.tracker is not None:
            place = {"step": self.state.global_step, "epoch": round(self.state.epoch, 4), "split": split_name}
            self.tracker.write({**place, **metrics, "seconds": round(self.seconds, 3)})

    def judge(self, metrics: dict[str, float]) -> bool:
        """Return whether a validation is the best so far, and update the best weights or the patience accordingly.

        A validation with a loss that is not finite is never the best, whatever its other metrics are.
        """
        name, patience = self.save_best, self.recipe.train.early_stopping_patience
        is_better = self.best.better(metrics[name], lower_is_better=self.task.LOWER_IS_BETTER[name])
        if is_better and math.isfinite(metrics["loss"]):
            if is_first_process():
                state = self.resumed_from if self.optimizer is None else self.optimizer
                has_usable_state = (
                    getattr(self.model, "adapter", None) is None and not self.sharding
                )  # no run can continue from these states
                self.checkpoints.save_best(self.state.global_step, self.model, state if has_usable_state else None)
            self.best = Best(self.state.global_step, metrics[name], metrics)
            self.best_outputs = self.outputs
            return True
        self.best.evaluations_since += 1
        self.best.stopped = patience is not None and self.best.evaluations_since >= patience
        return False

    def show_step(self) -> None:
        """Update the progress bar."""
        self.progress.update(
            self.state.global_step,
            loss=self.step_loss,
            **{f"best {self.save_best}": self.best.best_value},
            lr=self.step_learning_rate,
        )

    def show_evaluation(self, losses: list[float], metrics: dict[str, float], *, is_best: bool) -> None:
        """Print a line of at most 80 columns with the first metrics of a validation; files have all metrics.

        Args:
            losses: training loss of each step since the previous validation.
            metrics: metrics of the validation, by name.
            is_best: whether the validation is the best so far.
        """
        loss_text = f"loss {format_number(float(np.mean(losses)))}, " if losses else ""
        loss_text += f"validation {format_number(metrics['loss'])}"
        parts = [f"step {self.state.global_step}/{self.schedule.max_steps}", f"epoch {self.state.epoch:.2f}", loss_text]
        parts += [f"{name} {format_number(value)}" for name, value in metrics.items() if name != "loss"]
        while len("  ".join([*parts, "best"])) > MAX_COLUMNS and len(parts) > 3:
            parts.pop()
        self.progress.line("  ".join(parts) + ("  best" if is_best else ""))
        if self.best.stopped:
            count = self.best.evaluations_since
            self.progress.line(f"no better {self.save_best} in {count} evaluations: stopped early")

    # -- called by the Trainer's loop -------------------------------------------------------------------------------

    def get_train_dataloader(self) -> paddle.io.DataLoader:
        """Return the loader of whole accumulated batches.

        It has no worker processes, because collating padded arrays is cheap compared with a step.
        """
        sampler, examples = self._get_train_sampler(), self.train_dataset
        if share := self.recipe.train.token_dropout:
            examples = TokenDropout(examples, share, self.model.config.pad_token_id, sampler)
        return paddle.io.DataLoader(examples, batch_sampler=sampler, collate_fn=self.data_collator, num_workers=0)

    def _get_train_sampler(self) -> EpochPermutation:
        """Return the sampler of the training examples, which is created once."""
        if not hasattr(self, "sampler"):
            self.sampler = EpochPermutation(
                len(self.train_dataset),
                examples_of_step(self.recipe, self.num_initial_processes),
                self.recipe.seed,
                num_processes(),
                process_rank(),
                getattr(self.train_dataset, "set_epoch", None),
            )
        return self.sampler

    def training_step(self, model: Any, inputs: dict[str, paddle.Tensor], step_control: int = 0) -> paddle.Tensor:
        """Add the gradient of the mean loss over the accumulated batch of all processes; return that loss, a scalar.

        The mean is over the loss terms, so a short last micro-batch weighs less. Loss terms are the labels that are not
        ignored. If classes have weights, each term has the weight of its class.

        Args:
            model: the model.
            inputs: tensors of a micro-batch, by name.
            step_control: not used.
        """
        model.train()
        self.step_learning_rate = self._get_learning_rate()
        micro_batches = split_batch(self._prepare_inputs(inputs), self.recipe.train.batch_size)
        total = paddle.zeros([])
        for batch, weight in zip(micro_batches, self._loss_weights(micro_batches), strict=True):
            # All labels are ignored, so the mean loss is 0/0. Fleet's sharding waits for each process's backward.
            if weight == 0.0 and not self.sharding:
                continue
            with self.autocast_smart_context_manager():
                loss = self.compute_loss(model, batch)
            loss = loss if weight == 1.0 else loss * weight
            total = total + loss.detach().astype("float64" if loss.dtype == paddle.float64 else "float32")
            loss = loss * num_processes() if self.sharding else loss  # fleet gives the mean of all processes' gradients
            self.add_gradients(loss)
        self._loss = total if num_processes() == 1 else self._sum_over_processes(total)
        return self._loss.astype("float32")

    def _loss_weights(self, micro_batches: list[Mapping[str, paddle.Tensor]]) -> list[float]:
        """Return the share of each micro-batch in the loss terms of the step, over all processes."""
        if num_processes() == 1:
            is_whole_batch = len(micro_batches) == 1
            return (
                [1.0]
                if is_whole_batch
                else compute_loss_weights([self.num_loss_terms(batch) for batch in micro_batches])
            )
        terms = [0.0 for _ in micro_batches]
        if self.sampler.has_examples(self.state.global_step % self.schedule.steps_per_epoch):
            terms = [self.num_loss_terms(batch) for batch in micro_batches]
        return compute_loss_weights(terms, ranks.total([sum(terms)])[0])

    def _sum_over_processes(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Sum gradients and loss over all processes. Agree also on whether to stop and whether to save.

        Args:
            loss: share of this process in the loss of the step, a scalar.
        """
        own_numbers = [float(loss), interruption.has_signal(), is_first_process() and self._overdue()]
        sums = ranks.total(own_numbers) if self.sharding else ranks.sum_gradients(self.model.parameters(), own_numbers)
        self._agreed = Requests(*map(bool, sums[1:]))
        return paddle.to_tensor(sums[0], dtype="float64")

    def _overdue(self) -> bool:
        """Return whether the last checkpoint is too old."""
        return time.monotonic() - self.saved_at > CHECKPOINT_SECONDS

    def requests(self) -> Requests:
        """Return the requests after the step just done. Several processes return the requests that they agreed on."""
        return self._agreed if num_processes() > 1 else Requests(interruption.has_signal(), self._overdue())

    def _wrap_model(self, model: Any, training: bool = True) -> Any:  # noqa: FBT001 (the Trainer's signature)
        """Return the model itself, because :meth:`training_step` sums gradients; fleet wraps a model with sharding."""
        return super()._wrap_model(model, training) if self.sharding or num_processes() == 1 else model

    def num_loss_terms(self, batch: Mapping[str, paddle.Tensor]) -> float:
        """Return the divisor of a micro-batch's loss: its number of terms, or the sum of their class weights.

        With several labels per text, class weights scale terms but do not change their number.
        """
        weights = getattr(self.model, "class_weights", None)
        if weights is None or batch["labels"].ndim > 1:
            return self.task.num_loss_terms(batch)
        return sum_label_weights(batch["labels"].numpy(), weights)

    def add_gradients(self, loss: paddle.Tensor) -> None:
        """Add the gradients of a micro-batch's share of the loss to the parameters' gradients, in float32.

        The loss is never scaled, because bfloat16 has the range of float32 and does not lose small gradients.

        Args:
            loss: share of the micro-batch in the loss of the step, a scalar.
        """
        loss.backward()

    def autocast_smart_context_manager(self) -> contextlib.AbstractContextManager:
        """Return a context that computes in ``train.precision``."""
        return precision.cast_to_bfloat16() if self.recipe.train.precision == "bfloat16" else contextlib.nullcontext()

    def _check_loss_valid(self, loss: paddle.Tensor) -> None:
        """Read the step's loss and check that it is finite. No other part of a step waits for the device.

        Args:
            loss: loss of the step, a scalar.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        self.step_loss = float(self._loss)
        if not math.isfinite(self.step_loss):
            name = checkpoint.first_not_finite(self.model)
            parameter_note = (
                f"{name} is the first parameter that is not finite" if name else "all parameters are finite"
            )
            step = self.state.global_step + 1
            raise DivergedError(f"the loss is {self.step_loss} at step {step} ({parameter_note}); {DIVERGENCE_ADVICE}")

    def create_optimizer(self, lr_scheduler: Any = None) -> paddle.optimizer.Optimizer:
        """Return the optimizer of ``train.optimizer`` with the Trainer's arguments, which the gate compares."""
        if self.optimizer is None:
            args, train = self.args, self.recipe.train
            settings = {"beta1": args.adam_beta1, "beta2": args.adam_beta2, "epsilon": args.adam_epsilon}
            self.optimizer: paddle.optimizer.Optimizer = optimizer.create(
                train.optimizer,
                self.model,
                lr_scheduler if lr_scheduler is not None else self.lr_scheduler,
                weight_decay=args.weight_decay,
                max_grad_norm=args.max_grad_norm,
                **{key: value for key, value in {**settings, "momentum": train.momentum}.items() if value is not None},
            )
        return self.optimizer

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate a data set as the Trainer does, but with the random draws of :meth:`measure`.

        Raises:
            DivergedError: training has produced a parameter that is infinite or NaN.
            SignalInterrupt: a signal arrived during training.
        """
        if self.is_in_train and (name := checkpoint.first_not_finite(self.model)) is not None:
            raise DivergedError(f"{name} is not finite after step {self.state.global_step}; {DIVERGENCE_ADVICE}")
        if self.is_in_train and self.requests().stop:  # a request that all processes agreed on
            raise SignalInterrupt
        self.evaluated = self.eval_dataset if eval_dataset is None else eval_dataset
        self._batches_evaluated = 0
        self._batch_losses: list[paddle.Tensor] = []
        with checkpoint.undisturbed_random_state():
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def evaluation_loop(
        self, dataloader: Any, description: str, *args: Any, metric_key_prefix: str = "eval", **options: Any
    ) -> EvalLoopOutput:
        """Evaluate a data set; several processes take turns with the batches, and all get all metrics.

        The Trainer itself would compute some examples twice, so that all processes have equally many, and count them
        twice.
        """
        if num_processes() == 1:
            options["metric_key_prefix"] = metric_key_prefix
            return super().evaluation_loop(dataloader, description, *args, **options)
        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader

        loss, self.outputs = evaluate_shared(
            dataloader,
            lambda inputs: self.prediction_step(self.model, inputs, False),
            lambda: self.callback_handler.on_prediction_step(self.args, self.state, self.control),
            interruption.has_signal,
            is_shared=self.shared,
        )
        self.model.train()
        self.outputs = in_own_order(self.outputs, self._order)
        results = {"loss": loss, **self._metrics_of_first(self.outputs)}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in results.items()}
        return EvalLoopOutput(self.outputs, None, metrics, len(self.evaluated))

    def _metrics_of_first(self, outputs: tuple[np.ndarray, ...]) -> dict[str, float]:
        """Return the task's metrics, which the first process computes."""
        metrics = self.task.compute_metrics(outputs, self.evaluated) if is_first_process() else {}
        return ranks.from_first(metrics) if self.shared else metrics

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Return the sampler of an evaluation set, whose longest examples come first.

        If the processes share the evaluation, each gets every n-th batch.
        """
        first, step = (process_rank(), num_processes()) if self.shared else (0, 1)
        counts = self.task.token_counts(eval_dataset)
        self._cut = counts is not None
        self._order = longest_first(counts, len(eval_dataset))
        return EveryNth(self._order, self.args.per_device_eval_batch_size, first, step)

    def prediction_step(
        self,
        model: Any,
        inputs: dict[str, paddle.Tensor],
        prediction_loss_only: bool,  # noqa: FBT001 (the Trainer's signature)
        ignore_keys: Any = None,
    ) -> tuple[paddle.Tensor, tuple[paddle.Tensor, ...], paddle.Tensor]:
        """Return the loss of a batch and the outputs that the task keeps. Logits are freed with the batch.

        Args:
            model: the model.
            inputs: tensors of the batch, by name.
            prediction_loss_only: not used.
            ignore_keys: not used.
        """
        inputs = self._prepare_inputs(trim_padding(inputs, self.model.config) if self._cut else inputs)
        # Each batch has a separate seed, so it does not matter which process computes it.
        batch = self._batches_evaluated * num_processes() + process_rank() if self.shared else self._batches_evaluated
        seed_everything(seed_of_batch(self.recipe.seed, batch))
        self._batches_evaluated += 1
        with paddle.no_grad():
            with self.autocast_smart_context_manager():
                output = model(**inputs)
            outputs = self.task.outputs(output, inputs, self.evaluated)
        loss = output.loss.mean().detach()
        self._batch_losses.append(loss)
        return loss, outputs, outputs[-1]  # the Trainer needs "labels" to compute metrics

    def _metrics(self, output: Any) -> dict[str, float]:
        """Return the task's metrics of the outputs.

        They may include a `loss` that is more exact than the mean over batches.
        """
        self.outputs = in_own_order(output.predictions, self._order)
        with interruption.raise_signals() if self.is_in_train else contextlib.nullcontext():
            return self.task.compute_metrics(self.outputs, self.evaluated)

    def _maybe_log_save_evaluate(self, tr_loss: paddle.Tensor, model: Any, *args: Any, **options: Any) -> None:
        """Log, save and evaluate as the Trainer does, but save the step even if its validation is interrupted."""
        try:
            super()._maybe_log_save_evaluate(tr_loss, model, *args, **options)
        except SignalInterrupt:
            self.left = True
            self._save_checkpoint(model)
            raise

    def log(self, logs: dict[str, float], **kwargs: Any) -> None:
        """Do nothing: :class:`ScheduleCallback` records every step and every evaluation."""

    def _save_checkpoint(self, model: Any, metrics: dict[str, float] | None = None) -> None:
        """Save a checkpoint with the weights, the optimizer, the random states of all processes and the progress."""
        if self.sharding:  # a run whose optimizer state is spread over the processes cannot be resumed
            return
        states = [json.loads(state) for state in ranks.gather(json.dumps(checkpoint.random_state()).encode())]
        if not is_first_process():
            return
        process_states = (
            {"processes": self.num_initial_processes, "random_states": states}
            if self.num_initial_processes * len(states) > 1
            else {}
        )
        self.checkpoints.save(
            self.state.global_step,
            self.model,
            self.optimizer,
            {**asdict(self.best), "seconds": self.seconds, **process_states, **({"left": True} if self.left else {})},
            {checkpoint.TRAINER_STATE: json.dumps(asdict(self.state)) + "\n"},
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str | None = None) -> None:
        """Load the weights of a checkpoint folder, unless it is None."""
        if resume_from_checkpoint:
            checkpoint.load_weights(self.model, Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, resume_from: str | None) -> None:
        """Load the optimizer's state and the schedule of a checkpoint folder.

        For None, only the optimizer's state of an earlier run is loaded, if the recipe names one.
        """
        if resume_from:
            schedule = checkpoint.read_state(Path(resume_from))["schedule"]
            checkpoint.load_optimizer(self.optimizer, self.model, Path(resume_from), schedule)
            self.resumed_from = Path(resume_from)
        elif self.begins_with is not None:
            own_schedule = self.lr_scheduler.state_dict()
            checkpoint.load_optimizer(self.optimizer, self.model, self.begins_with.parent, own_schedule)


class ScheduleCallback(TrainerCallback):
    """Callback that decides when a run records, evaluates, saves and stops."""

    def __init__(self, trainer: Finetuner) -> None:
        self.trainer = trainer
        self._losses: list[float] = []
        self._evaluated_batches = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Set all random generators and the sampler to the start of the run, or to the state of the checkpoint."""
        trainer = self.trainer
        seed_everything(ranks.seed_of(trainer.recipe.seed))
        if state.global_step:
            saved_state = checkpoint.read_state(trainer.resumed_from)
            states = saved_state.get("random_states", [saved_state["random_state"]])
            if len(states) == num_processes():
                checkpoint.set_random_state(states[process_rank()])
            else:  # another number of processes saved the states
                seed_everything(ranks.seed_of(trainer.recipe.seed, state.global_step))
            trainer.sampler.start_at(*divmod(state.global_step, trainer.schedule.steps_per_epoch))
        if num_processes() > 1:
            ranks.agree("the weights and constants", ranks.digest_of_model(trainer.model))
        trainer.progress = ProgressBar(trainer.console, "train", state.max_steps, state.global_step)
        trainer.progress.start()
        trainer.counted_at = trainer.saved_at = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Record the step, and decide whether to evaluate, save or stop.

        Args:
            args: arguments of the training; not used.
            state: progress of the training.
            control: decisions of the Trainer, changed in place.
            **_: further arguments of the Trainer; not used.
        """
        trainer, schedule = self.trainer, self.trainer.schedule
        state.epoch = state.global_step / schedule.steps_per_epoch
        self._count_seconds()
        self._losses.append(trainer.step_loss)
        trainer.record("train", {"loss": trainer.step_loss, "learning_rate": trainer.step_learning_rate})
        trainer.show_step()
        is_last_step = state.global_step >= schedule.max_steps
        control.should_evaluate = is_last_step or state.global_step % schedule.eval_steps == 0
        requests = trainer.requests()
        if requests.stop:
            control.should_training_stop = True
        control.should_save = control.should_evaluate or requests.save or requests.stop

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, eval_dataloader: Any, **_: Any) -> None:
        """Update the bar during an evaluation, and interrupt it if a signal asks for that."""
        self._evaluated_batches += 1
        if num_processes() == 1 and interruption.has_signal():
            raise SignalInterrupt
        if self.trainer.is_in_train:
            self.trainer.progress.busy(f"validation {self._evaluated_batches}/{len(eval_dataloader)}")
        else:
            self.trainer.progress.update(self._evaluated_batches)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: dict[str, float], **_: Any) -> None:
        """Record a validation, keep the weights if they are the best so far, and stop early without improvement."""
        self._evaluated_batches = 0
        if not self.trainer.is_in_train:
            return
        self._count_seconds()
        plain_metrics = _plain_metrics(metrics, "eval")
        self.trainer.record("validation", plain_metrics)
        is_best = self.trainer.judge(plain_metrics)
        self.trainer.show_evaluation(self._losses, plain_metrics, is_best=is_best)
        self._losses.clear()
        if self.trainer.watch is not None:
            self.trainer.watch(self.trainer)
        if self.trainer.best.stopped:
            control.should_training_stop = True

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Record the time of the checkpoint, so that long training without an evaluation is saved too.

        Args:
            args: arguments of the training; not used.
            state: progress of the training.
            control: decisions of the Trainer.
            **_: further arguments of the Trainer; not used.
        """
        self.trainer.saved_at = time.monotonic()

    def _count_seconds(self) -> None:
        """Add the time since the last call to the duration of the training."""
        now = time.monotonic()
        self.trainer.seconds += now - self.trainer.counted_at
        self.trainer.counted_at = now


def _plain_metrics(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    """Return the Trainer's evaluation result without its prefix and its timings, the loss first."""
    timings = ("runtime", "samples_per_second", "steps_per_second")
    plain_metrics = {key.removeprefix(f"{prefix}_"): float(value) for key, value in metrics.items()}
    plain_metrics = {key: value for key, value in plain_metrics.items() if key not in timings}
    return {"loss": plain_metrics.pop("loss"), **plain_metrics}


def _training_arguments(recipe: Recipe, folder: Path, schedule: Schedule) -> TrainingArguments:
    """Convert a recipe to the Trainer's arguments. This module does accumulation, evaluation and saving itself."""
    train = recipe.train
    constant = "constant_with_warmup" if train.warmup_ratio else "constant"
    return TrainingArguments(
        output_dir=str(folder),
        seed=recipe.seed,
        max_steps=schedule.max_steps,
        per_device_train_batch_size=train.batch_size * train.gradient_accumulation_steps,
        per_device_eval_batch_size=train.eval_batch_size or train.batch_size,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        adam_beta1=train.adam_beta1,
        adam_beta2=train.adam_beta2,
        adam_epsilon=train.adam_epsilon,
        max_grad_norm=train.max_grad_norm or 0.0,
        warmup_steps=math.ceil(schedule.max_steps * train.warmup_ratio),  # with a ratio, the Trainer would round down
        recompute=bool(train.recompute),
        sharding=train.sharding or "",
        lr_scheduler_type=constant if train.lr_scheduler == "constant" else train.lr_scheduler,
        logging_strategy="no",
        evaluation_strategy="no",
        save_strategy="no",
        ignore_data_skip=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
    )
