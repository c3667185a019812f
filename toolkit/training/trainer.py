"""PaddleNLP's Trainer, subclassed where it falls short: whole-batch accumulation, exact resume, quiet and cheap steps.

Its loop, schedules, clipping and fleet support are used as they are. What is replaced:

- *Accumulation.* The Trainer averages the means of its micro-batches, and carries the gradients of an epoch's last,
  incomplete group into the next epoch. Here a batch of the loop is the whole accumulated batch; :meth:`training_step`
  splits it into micro-batches and weights their losses, so loss and gradient are those of one large batch.
- *Resume.* See :mod:`toolkit.run_folder.checkpoint` and :mod:`toolkit.training.sampler`.
- *When.* :class:`ScheduleCallback` evaluates every `eval_steps` steps and always at the end, and saves a checkpoint
  with each evaluation, every minute, and when a signal asks it to stop (:mod:`toolkit.machine.interruption`). A
  validation then stops between two batches; the checkpoint says so, and a run resumed from it begins with that
  validation.
- *Several processes* (:mod:`toolkit.training.ranks`). The mean loss is over the loss terms of all of them, and
  gradients are summed after the accumulated backward. One process writes the run folder; evaluations are shared out.
- *Mixed precision.* Not the Trainer's autocast, but the ports' own casts (:mod:`models.operations.precision`), which
  are the same on every device, and which the gate compares.
- *Weight decay* applies to neither biases nor LayerNorm parameters, as in transformers.

No other file of the toolkit imports PaddleNLP.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from rich.console import Console

from models.operations import precision
from models.port import paddlenlp_entry

# isort: split
with paddlenlp_entry.later("datasets"):  # which the Trainer asks for a type, in what is replaced here
    from paddlenlp.trainer.trainer import Trainer
from paddlenlp.trainer.trainer_callback import PrinterCallback, TrainerCallback, TrainerState
from paddlenlp.trainer.trainer_utils import EvalLoopOutput
from paddlenlp.trainer.training_args import TrainingArguments

# isort: split
from toolkit.data.batches import collate, loss_weights, split_batch, weight_of_labels, without_padding
from toolkit.errors import ToolkitError
from toolkit.machine.heap import keep_small_blocks
from toolkit.machine.interruption import Interrupted, Interruption
from toolkit.machine.runtime import is_first_process, processes, rank, seed_everything
from toolkit.recipe.recipe import Recipe, settled
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.tracking import Tracker
from toolkit.tasks.interface import Task
from toolkit.terminal.progress import ProgressBar, format_number
from toolkit.training import optimizer, ranks
from toolkit.training.sampler import EpochPermutation
from toolkit.training.schedule import Best, Schedule, examples_of_step
from toolkit.training.shared_evaluation import EveryNth, evaluate_shared, in_own_order, longest_first, seed_of_batch
from toolkit.training.token_dropout import TokenDropout

#: Metrics that the line of a validation has room for.
SHOWN_METRICS = 4

#: Seconds of training that a kill may cost where evaluations are far apart.
CHECKPOINT_SECONDS = 60.0

#: Advice for a training that diverges.
STEADIER = "lower train.learning_rate, raise train.warmup_ratio or set train.max_grad_norm"


class Diverged(ToolkitError):
    """The loss, a parameter, or every validation is infinite or not a number."""


class Requests(NamedTuple):
    """Actions after a step that its number does not require."""

    stop: bool
    save: bool


class Finetuner(Trainer):
    """Trains and evaluates one model as a recipe says.

    Args:
        model: the Paddle model; called with the collated batch's keys, it returns an output with a `loss`.
        task: the recipe's; its `num_loss_terms`, `token_counts`, `outputs`, `compute_metrics` and `LOWER_IS_BETTER` are
            used.
        train_dataset: a map-style data set; None to evaluate only. Its ``set_epoch``, if it has one, is called with the
            number of each epoch.
        tracker: where metrics go; None to record none.
        begun_with: number of processes at the run's beginning, which sets its batches; None for that of now.
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
        begun_with: int | None = None,
    ) -> None:
        self.recipe = recipe
        self.begun_with = begun_with or processes()
        #: Whether all processes evaluate together; one that works alone sets it to False.
        self.shared = processes() > 1
        self.task = task
        self.console = console
        examples = len(train_dataset) if train_dataset is not None else 1
        self.schedule = Schedule.of(recipe, examples, self.begun_with)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.tracker = tracker
        self.best = Best()
        self.seconds = 0.0
        self.last_step = 0
        self.saved_at = self.counted_at = time.monotonic()
        self._agreed = Requests(False, False)
        #: Called after each validation in training; what it raises ends the training.
        self.watch: Callable[[Finetuner], None] | None = None
        self.interruption = Interruption()
        #: The optimizer's state that the run begins with, as :func:`.checkpoint.save_optimizer` wrote it.
        self.begins_with: Path | None = None
        #: Whether the validation due after the last step was interrupted.
        self.left = False
        self.step_loss = math.nan
        self.step_learning_rate = math.nan
        #: What the task's `outputs` kept of all examples (N, ...), in the last evaluation and in the best validation.
        self.outputs: tuple[np.ndarray, ...] | None = None
        self.best_outputs: tuple[np.ndarray, ...] | None = None
        self.progress = ProgressBar(console, "", 0)
        self.save_best = settled(recipe.train.save_best)
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

    # -- what a user of this class calls ----------------------------------------------------------------------------

    def fit(self, resume_from: Path | None = None) -> None:
        """Train to the end, or to where early stopping ends it.

        Args:
            resume_from: a checkpoint of this run to go on from.

        Raises:
            Interrupted: a signal came; the state up to the last whole step is saved.
            Diverged: the loss is NaN or infinite.
        """
        if resume_from is not None:
            self.take_up(resume_from)
            if self.best.stopped or self.last_step >= self.schedule.max_steps:
                return
        keep_small_blocks()
        with Interruption() as self.interruption:
            try:
                self.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
            finally:
                self.progress.stop()
        self.last_step = self.state.global_step
        if self.requests().stop or self.interruption.requested:
            raise Interrupted(self.state.global_step)

    def take_up(self, saved: Path) -> None:
        """Take up the counters of a checkpoint, and make the validation that was interrupted when it was saved."""
        state = checkpoint.read_state(saved)
        self.best = Best(**{key: state[key] for key in asdict(self.best)})
        self.seconds, self.last_step = state["seconds"], state["step"]
        if state.get("left"):
            self.validate(saved)

    def validate(self, saved: Path) -> None:
        """Run the validation of a checkpoint's weights that training did not finish. A signal interrupts it again."""
        self.state = TrainerState.load_from_json(str(saved / checkpoint.TRAINER_STATE))
        checkpoint.load_weights(self.model, saved)
        self.is_in_train, self.counted_at, self.resumed_from = True, time.monotonic(), saved
        with ProgressBar(self.console, "train", self.schedule.max_steps, self.state.global_step) as self.progress:
            self.evaluate()
        self.is_in_train = False

    def use_best_weights(self) -> None:
        """Put the weights of the best evaluation into the model. Raises Diverged if none had a finite loss and a finite
        value of ``train.save_best``: no model is worth keeping."""
        if self.best.best_step is None:
            raise Diverged(
                f"no validation had a finite loss and {self.save_best}, so there is no best model; {STEADIER}, "
                f"and train into another folder"
            )
        ranks.wait_for_all()  # the first process may still be writing them
        checkpoint.load_weights(self.model, self.checkpoints.best(self.best.best_step))
        ranks.wait_for_all()  # it removes them when it is done

    def measure(self, dataset: Any, split: str) -> dict[str, float]:
        """The loss and the task's metrics over a data set.

        The generators are seeded for it and restored after. So one model has the same numbers on one data set at any
        time, and measuring does not change the training that follows.
        """
        batches = len(self._get_eval_sampler(dataset))
        with ProgressBar(self.console, split, batches) as self.progress:
            found = self.evaluate(dataset, metric_key_prefix=split)
        return _plain_metrics(found, split)

    # -- what its callback calls ------------------------------------------------------------------------------------

    def record(self, split: str, numbers: dict[str, float]) -> None:
        """Write a row of metrics for the step just done."""
        if self.tracker is not None:
            place = {"step": self.state.global_step, "epoch": round(self.state.epoch, 4), "split": split}
            self.tracker.write({**place, **numbers, "seconds": round(self.seconds, 3)})

    def judge(self, metrics: dict[str, float]) -> bool:
        """Whether a validation is the best so far. If so its weights are kept; if not, patience is used up. One whose
        loss is not finite is never the best, whatever its other numbers."""
        name, patience = self.save_best, self.recipe.train.early_stopping_patience
        better = self.best.better(metrics[name], lower_is_better=self.task.LOWER_IS_BETTER[name])
        if better and math.isfinite(metrics["loss"]):
            if is_first_process():
                state = self.resumed_from if self.optimizer is None else self.optimizer
                fits = getattr(self.model, "adapter", None) is None and not self.sharding  # no run can begin with these
                self.checkpoints.save_best(self.state.global_step, self.model, state if fits else None)
            self.best = Best(self.state.global_step, metrics[name], metrics)
            self.best_outputs = self.outputs
            return True
        self.best.evaluations_since += 1
        self.best.stopped = patience is not None and self.best.evaluations_since >= patience
        return False

    def show_step(self) -> None:
        """Move the bar."""
        self.progress.update(
            self.state.global_step,
            loss=self.step_loss,
            **{f"best {self.save_best}": self.best.best_value},
            lr=self.step_learning_rate,
        )

    def show_evaluation(self, losses: list[float], metrics: dict[str, float], best: bool) -> None:
        """Print a line with the first metrics of a validation, of which all are recorded; ``losses`` are those of the
        steps since the last one."""
        shown = list(metrics.items())[:SHOWN_METRICS]
        trained = f"train loss {format_number(float(np.mean(losses)))}  " if losses else ""
        numbers = "  ".join(f"{name} {format_number(value)}" for name, value in shown)
        self.progress.line(
            f"step {self.state.global_step}/{self.schedule.max_steps}  epoch {self.state.epoch:.2f}  "
            f"{trained}validation {numbers}{'  best' if best else ''}"
        )
        if self.best.stopped:
            since = self.best.evaluations_since
            self.progress.line(f"no better {self.save_best} in {since} evaluations: stopped early")

    # -- what the Trainer's loop calls ------------------------------------------------------------------------------

    def get_train_dataloader(self) -> paddle.io.DataLoader:
        """Whole accumulated batches; no worker processes, since collating padded arrays is cheap beside a step."""
        sampler, examples = self._get_train_sampler(), self.train_dataset
        if share := self.recipe.train.token_dropout:
            examples = TokenDropout(examples, share, self.model.config.pad_token_id, sampler)
        return paddle.io.DataLoader(examples, batch_sampler=sampler, collate_fn=self.data_collator, num_workers=0)

    def _get_train_sampler(self) -> EpochPermutation:
        if not hasattr(self, "sampler"):
            self.sampler = EpochPermutation(
                len(self.train_dataset),
                examples_of_step(self.recipe, self.begun_with),
                self.recipe.seed,
                processes(),
                rank(),
                getattr(self.train_dataset, "set_epoch", None),
            )
        return self.sampler

    def training_step(self, model: Any, inputs: dict[str, paddle.Tensor], step_control: int = 0) -> paddle.Tensor:
        """Add the gradient of the mean loss over the whole accumulated batch of all processes; returns that loss, a
        scalar.

        The mean is over the loss terms (labels that are not ignored, each by the weight of its class if classes have
        weights), so a short last micro-batch weighs less.
        """
        model.train()
        self.step_learning_rate = self._get_learning_rate()
        micro_batches = split_batch(self._prepare_inputs(inputs), self.recipe.train.batch_size)
        total = paddle.zeros([])
        for batch, weight in zip(micro_batches, self._loss_weights(micro_batches), strict=True):
            # All its labels are ignored, and its mean loss is 0/0. Fleet's sharding waits for each process's backward.
            if weight == 0.0 and not self.sharding:
                continue
            with self.autocast_smart_context_manager():
                loss = self.compute_loss(model, batch)
            loss = loss if weight == 1.0 else loss * weight
            total = total + loss.detach().astype("float64" if loss.dtype == paddle.float64 else "float32")
            loss = loss * processes() if self.sharding else loss  # fleet gives the mean of all processes' gradients
            self.add_gradients(loss)
        self._loss = total if processes() == 1 else self._sum_over_processes(total)
        return self._loss.astype("float32")

    def _loss_weights(self, micro_batches: list[dict[str, paddle.Tensor]]) -> list[float]:
        """The share of each micro-batch in the loss terms of the step, of all processes."""
        if processes() == 1:
            whole = len(micro_batches) == 1
            return [1.0] if whole else loss_weights([self.num_loss_terms(batch) for batch in micro_batches])
        terms = [0.0 for _ in micro_batches]
        if self.sampler.has_examples(self.state.global_step % self.schedule.steps_per_epoch):
            terms = [self.num_loss_terms(batch) for batch in micro_batches]
        return loss_weights(terms, ranks.total([sum(terms)])[0])

    def _sum_over_processes(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Sum gradients and loss; also agree whether one process was asked to stop, or should save."""
        here = [float(loss), self.interruption.requested, is_first_process() and self._overdue()]
        sums = ranks.total(here) if self.sharding else ranks.sum_gradients(self.model.parameters(), here)
        self._agreed = Requests(*map(bool, sums[1:]))
        return paddle.to_tensor(sums[0], dtype="float64")

    def _overdue(self) -> bool:
        return time.monotonic() - self.saved_at > CHECKPOINT_SECONDS

    def requests(self) -> Requests:
        """Requests after the step just done; of several processes, those that they agreed on in it."""
        return self._agreed if processes() > 1 else Requests(self.interruption.requested, self._overdue())

    def _wrap_model(self, model: Any, training: bool = True) -> Any:
        """The model itself: gradients are summed in :meth:`training_step`. Sharding is fleet's."""
        return super()._wrap_model(model, training) if self.sharding or processes() == 1 else model

    def num_loss_terms(self, batch: dict[str, paddle.Tensor]) -> float:
        """Divisor of a micro-batch's loss: its number of terms, or the sum of their class weights.

        With several labels per text, class weights scale terms but do not change their number."""
        weights = getattr(self.model, "class_weights", None)
        if weights is None or batch["labels"].ndim > 1:
            return self.task.num_loss_terms(batch)
        return weight_of_labels(batch["labels"].numpy(), weights)

    def add_gradients(self, loss: paddle.Tensor) -> None:
        """Add the gradients of a micro-batch's share of the loss to the parameters', in float32.

        They are never scaled: bfloat16 has float32's range, and loses no small ones.
        """
        loss.backward()

    def autocast_smart_context_manager(self) -> contextlib.AbstractContextManager:
        """Context that computes in ``train.precision``."""
        return precision.lowered() if self.recipe.train.precision == "bfloat16" else contextlib.nullcontext()

    def _check_loss_valid(self, loss: paddle.Tensor) -> None:
        """Read the step's loss, the only time in a step that the host waits for the device."""
        self.step_loss = float(self._loss)
        if not math.isfinite(self.step_loss):
            name = checkpoint.first_not_finite(self.model)
            found = f"{name} is the first parameter that is not finite" if name else "all parameters are finite"
            step = self.state.global_step + 1
            raise Diverged(f"the loss is {self.step_loss} at step {step} ({found}); {STEADIER}")

    def create_optimizer(self, lr_scheduler: Any = None) -> paddle.optimizer.Optimizer:
        """``train.optimizer`` with the Trainer's arguments, as the gate has compared it."""
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
        """As the Trainer's, with its own random draws (:meth:`measure`). Raises Diverged if training has made a
        parameter infinite or NaN."""
        if self.is_in_train and (name := checkpoint.first_not_finite(self.model)) is not None:
            raise Diverged(f"{name} is not finite after step {self.state.global_step}; {STEADIER}")
        if self.is_in_train and self.requests().stop:  # one that all processes know of
            raise Interrupted
        self.evaluated = self.eval_dataset if eval_dataset is None else eval_dataset
        self._batches_evaluated = 0
        with checkpoint.undisturbed_random_state():
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def evaluation_loop(
        self, dataloader: Any, description: str, *args: Any, metric_key_prefix: str = "eval", **options: Any
    ) -> EvalLoopOutput:
        """As the Trainer's, but several processes take turns with the batches, and all get all numbers. The Trainer
        would compute some examples twice, so that all processes have equally many, and count them twice."""
        if processes() == 1:
            options["metric_key_prefix"] = metric_key_prefix
            return super().evaluation_loop(dataloader, description, *args, **options)
        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader

        loss, self.outputs = evaluate_shared(
            dataloader,
            lambda inputs: self.prediction_step(self.model, inputs, False),
            lambda: self.callback_handler.on_prediction_step(self.args, self.state, self.control),
            self.shared,
            lambda: self.interruption.requested,
        )
        self.model.train()
        self.outputs = in_own_order(self.outputs, self._order)
        found = {"loss": loss, **self._metrics_of_first(self.outputs)}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        return EvalLoopOutput(self.outputs, None, metrics, len(self.evaluated))

    def _metrics_of_first(self, outputs: tuple[np.ndarray, ...]) -> dict[str, float]:
        """The task's metrics, which the first process computes."""
        found = self.task.compute_metrics(outputs, self.evaluated) if is_first_process() else {}
        return ranks.from_first(found) if self.shared else found

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        first, step = (rank(), processes()) if self.shared else (0, 1)
        counts = self.task.token_counts(eval_dataset)
        self._cut = counts is not None
        self._order = longest_first(counts, len(eval_dataset))
        return EveryNth(self._order, self.args.per_device_eval_batch_size, first, step)

    def prediction_step(
        self, model: Any, inputs: dict[str, paddle.Tensor], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[paddle.Tensor, tuple[paddle.Tensor, ...], paddle.Tensor]:
        """The loss of a batch and what the task keeps of the model's output; logits are freed with the batch."""
        inputs = self._prepare_inputs(without_padding(inputs, self.model.config) if self._cut else inputs)
        # Each batch has draws of its own: it does not matter which process computes it.
        batch = self._batches_evaluated * processes() + rank() if self.shared else self._batches_evaluated
        seed_everything(seed_of_batch(self.recipe.seed, batch))
        self._batches_evaluated += 1
        with paddle.no_grad():
            with self.autocast_smart_context_manager():
                output = model(**inputs)
            kept = self.task.outputs(output, inputs, self.evaluated)
        return output.loss.mean().detach(), kept, kept[-1]  # the Trainer computes metrics only where there are "labels"

    def _metrics(self, output: Any) -> dict[str, float]:
        """The task's metrics of what :meth:`prediction_step` kept, maybe with a `loss` more exact than batch means."""
        self.outputs = in_own_order(output.predictions, self._order)
        with self.interruption.suspended() if self.is_in_train else contextlib.nullcontext():
            return self.task.compute_metrics(self.outputs, self.evaluated)

    def _maybe_log_save_evaluate(self, tr_loss: paddle.Tensor, model: Any, *args: Any, **options: Any) -> None:
        """As the Trainer's, but save the step even if its validation is interrupted."""
        try:
            super()._maybe_log_save_evaluate(tr_loss, model, *args, **options)
        except Interrupted:
            self.left = True
            self._save_checkpoint(model)
            raise

    def log(self, logs: dict[str, float], **kwargs: Any) -> None:
        """Do nothing: :class:`ScheduleCallback` records every step and every evaluation."""

    def _save_checkpoint(self, model: Any, metrics: dict[str, float] | None = None) -> None:
        if self.sharding:  # the optimizer's state is spread over the processes: such a run is not resumed
            return
        states = [json.loads(state) for state in ranks.gather(json.dumps(checkpoint.random_state()).encode())]
        if not is_first_process():
            return
        several = {"processes": self.begun_with, "random_states": states} if self.begun_with * len(states) > 1 else {}
        self.checkpoints.save(
            self.state.global_step,
            self.model,
            self.optimizer,
            {**asdict(self.best), "seconds": self.seconds, **several, **({"left": True} if self.left else {})},
            {checkpoint.TRAINER_STATE: json.dumps(asdict(self.state)) + "\n"},
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str | None = None) -> None:
        if resume_from_checkpoint:
            checkpoint.load_weights(self.model, Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, resume_from: str | None) -> None:
        if resume_from:
            schedule = checkpoint.read_state(Path(resume_from))["schedule"]
            checkpoint.load_optimizer(self.optimizer, self.model, Path(resume_from), schedule)
            self.resumed_from = Path(resume_from)
        elif self.begins_with is not None:
            own_schedule = self.lr_scheduler.state_dict()
            checkpoint.load_optimizer(self.optimizer, self.model, self.begins_with.parent, own_schedule)


class ScheduleCallback(TrainerCallback):
    """When a run records, evaluates, saves and stops."""

    def __init__(self, trainer: Finetuner) -> None:
        self.trainer = trainer
        self._losses: list[float] = []
        self._evaluated_batches = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Set every random generator and the sampler to where the run begins or resumes."""
        trainer = self.trainer
        seed_everything(ranks.seed_of(trainer.recipe.seed))
        if state.global_step:
            saved = checkpoint.read_state(trainer.resumed_from)
            states = saved.get("random_states", [saved["random_state"]])
            if len(states) == processes():
                checkpoint.set_random_state(states[rank()])
            else:  # they were those of another number of processes
                seed_everything(ranks.seed_of(trainer.recipe.seed, state.global_step))
            trainer.sampler.start_at(*divmod(state.global_step, trainer.schedule.steps_per_epoch))
        if processes() > 1:
            ranks.agree("the weights and constants", ranks.digest_of_model(trainer.model))
        trainer.progress = ProgressBar(trainer.console, "train", state.max_steps, state.global_step)
        trainer.progress.start()
        trainer.counted_at = trainer.saved_at = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Record the step; decide what follows it."""
        trainer, schedule = self.trainer, self.trainer.schedule
        state.epoch = state.global_step / schedule.steps_per_epoch
        self._count_seconds()
        self._losses.append(trainer.step_loss)
        trainer.record("train", {"loss": trainer.step_loss, "learning_rate": trainer.step_learning_rate})
        trainer.show_step()
        ended = state.global_step >= schedule.max_steps
        control.should_evaluate = ended or state.global_step % schedule.eval_steps == 0
        requests = trainer.requests()
        if requests.stop:
            control.should_training_stop = True
        control.should_save = control.should_evaluate or requests.save or requests.stop

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, eval_dataloader: Any, **_: Any) -> None:
        """Update the bar during an evaluation, and interrupt it if a signal asks for that."""
        self._evaluated_batches += 1
        if processes() == 1 and self.trainer.interruption.requested:
            raise Interrupted
        if self.trainer.is_in_train:
            self.trainer.progress.busy(f"validation {self._evaluated_batches}/{len(eval_dataloader)}")
        else:
            self.trainer.progress.update(self._evaluated_batches)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: dict[str, float], **_: Any) -> None:
        """Record a validation, keep the weights if they are the best so far, stop early if patience is used up."""
        self._evaluated_batches = 0
        if not self.trainer.is_in_train:
            return
        self._count_seconds()
        found = _plain_metrics(metrics, "eval")
        self.trainer.record("validation", found)
        best = self.trainer.judge(found)
        self.trainer.show_evaluation(self._losses, found, best)
        self._losses.clear()
        if self.trainer.watch is not None:
            self.trainer.watch(self.trainer)
        if self.trainer.best.stopped:
            control.should_training_stop = True

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Note the time, so that a long stretch without an evaluation is saved too."""
        self.trainer.saved_at = time.monotonic()

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.trainer.seconds += now - self.trainer.counted_at
        self.trainer.counted_at = now


def _plain_metrics(found: dict[str, float], prefix: str) -> dict[str, float]:
    """The Trainer's evaluation result without its prefix and its timings, the loss first."""
    timings = ("runtime", "samples_per_second", "steps_per_second")
    plain = {key.removeprefix(f"{prefix}_"): float(value) for key, value in found.items()}
    plain = {key: value for key, value in plain.items() if key not in timings}
    return {"loss": plain.pop("loss"), **plain}


def _training_arguments(recipe: Recipe, folder: Path, schedule: Schedule) -> TrainingArguments:
    """The recipe as the Trainer's arguments. Accumulation, evaluation and saving are left to this module."""
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
        warmup_steps=math.ceil(schedule.max_steps * train.warmup_ratio),  # given a ratio, the Trainer rounds down
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
