"""`toolkit search`: run trials of a recipe with different settings one after another, and finish the best run.

A trial is a run that stops after its training, so it is never measured on the test split. The best run is finished in
the same way as `toolkit finetune` resumes a run that was killed after its training, with a gate on its own settings.
Before that, one gate covers all trials of the same shape (:func:`.space.shape_of`).
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from toolkit.commands.search.record import Record, Trial, describe_settings, trial_name
from toolkit.commands.search.space import default_options, load_trial, parse_space, shape_of
from toolkit.errors import ToolkitError, UserError
from toolkit.finetune.finetune import SearchTrial, finetune
from toolkit.machine import runtime
from toolkit.machine.disk import find_write_obstacle
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import CHECKPOINTS, amending, read_starts
from toolkit.terminal.console import LiteralConsole
from toolkit.terminal.progress import ProgressBar, format_number

if TYPE_CHECKING:
    from toolkit.training.trainer import Finetuner


class PrunedError(Exception):
    """A trial is worse than most other trials after the same fraction of their training."""


def run_search(
    path: Path,
    overrides: Sequence[str],
    over_options: Sequence[str],
    trials: int,
    skip_parity: str | None,
    console: Console,
) -> None:
    """Start a search, or resume an interrupted search.

    Args:
        path: file of the recipe.
        overrides: ``KEY=VALUE`` options that apply to all trials.
        over_options: values to try, in the form of ``--over``; if empty, the default of :func:`.space.default_options`.
        trials: total number of trials, with the trials of earlier calls.
        skip_parity: reason for skipping the gate; None runs the gate.
        console: console for progress and results.

    Raises:
        UserError: the recipe, ``over_options`` or the folder is wrong.
        ParityDrift: the port does not agree with the reference.
        Inconclusive: the gate could not decide.
        ToolkitError: no trial is complete.
    """
    if runtime.num_processes() > 1:
        raise UserError("toolkit search: trains in one process; start it without a launcher")
    recipe = load_trial(path, overrides, {})
    space = parse_space(over_options or default_options(recipe), path, overrides)
    folder = recipe.output_dir
    if not recipe.is_overridden("train.output_dir"):
        folder = folder.with_name(f"{folder.name}-search")
    if obstacle := find_write_obstacle(folder):
        raise recipe.error("train.output_dir", f"{folder}: {obstacle}; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with amending(folder, patience=0):
        record = Record(recipe.with_values({"train.output_dir": str(folder)}), space)
        record.open()
        running_search = Search(path, overrides, skip_parity, record, console)
        running_search.run(trials)
        running_search.end()


@dataclass
class Search:
    """A running search.

    Attributes:
        path: file of the recipe.
        overrides: ``KEY=VALUE`` options that apply to all trials.
        skip_parity: reason for skipping the gate; None runs the gate.
        record: saved state of the search.
        console: console for progress and results.
    """

    path: Path
    overrides: Sequence[str]
    skip_parity: str | None
    record: Record
    console: Console

    def run(self, trials: int) -> None:
        """Run trials until the search has ``trials`` of them in total."""
        finished_trials = self.record.trials
        with ProgressBar(self.console, "search", trials, len(finished_trials)) as bar:
            while len(finished_trials) < trials:
                try:
                    finished_trials.append(self._next(bar))
                except KeyboardInterrupt:
                    bar.line(f"{len(finished_trials)} of {trials} trials are done; the same command resumes the search")
                    raise
                self.record.save()
                self._discard()
                bar.update(len(finished_trials))
                bar.line(self._line(finished_trials[-1]))

    def end(self) -> None:
        """Print the trials, and finish the run of the best trial.

        Raises:
            ToolkitError: no trial is complete.
        """
        self._discard()
        self.console.print(self.record.table())
        if (best := self.record.best) is None:
            raise ToolkitError(f"{self.record.folder}: no trial got to its end; try lower learning rates")
        recipe = self._recipe_of(best)
        run, settings = recipe.output_dir, self.record.write_best(best, recipe)
        self.console.print(f"best: {best.name}; its settings: {settings}", soft_wrap=True)
        if (run / "metrics.json").exists():
            self.console.print(f"it is a finished run: toolkit evaluate {shlex.quote(str(run))}", soft_wrap=True)
        else:
            finetune(recipe, self.skip_parity, self.console)

    def _next(self, bar: ProgressBar) -> Trial:
        """Run or resume the next trial, and return it with its state and value."""
        space = self.record.space
        optuna_trial = self.record.study().ask({over.key: over.distribution for over in space})
        settings = {over.key: over.decode_setting(optuna_trial.params[over.key]) for over in space}
        trial = Trial(trial_name(len(self.record.trials)), settings)
        try:
            self._train(trial, optuna_trial, bar)
        except PrunedError:
            trial.state = "pruned"
        except ToolkitError as error:
            from toolkit.training.trainer import DivergedError  # not before the run has set up Paddle

            if not isinstance(error, DivergedError):
                raise
            trial.state, trial.why = "failed", str(error)
        if validations := self.record.finite_validations(trial):
            choose = min if self.record.lower_is_better else max
            trial.step, trial.value = choose(validations, key=lambda validation: validation[1])
        elif trial.state == "complete":
            trial.state, trial.why = "failed", f"no validation had a finite {self.record.metric}"
        return trial

    def _train(self, trial: Trial, optuna_trial: Any, bar: ProgressBar) -> None:
        """Train a trial.

        Args:
            trial: trial to train; its validations are recorded.
            optuna_trial: Optuna's trial, which decides about pruning.
            bar: progress bar of the search.

        Raises:
            PrunedError: the trial is worse than most other trials.
            Diverged: the loss is not finite.
        """
        shape, folder = shape_of(trial.settings), self.record.folder
        same_shape = (folder / other.name for other in self.record.trials if shape_of(other.settings) == shape)
        gate_source = next(
            (run for run in same_shape if self.skip_parity or any(start["passed"] for start in read_starts(run))), None
        )
        recipe = self._recipe_of(trial)

        def watch(trainer: Finetuner) -> None:
            """Report all validations so far to the pruner, including the validations before an interruption."""
            max_steps, validations = trainer.schedule.max_steps, self.record.finite_validations(trial)
            for step, value in validations:
                if (percent := 100 * step // max_steps) not in trial.validations:
                    trial.validations[percent] = value
                    optuna_trial.report(value, percent)
            if not trainer.is_in_train or not validations:
                return
            step, value = validations[-1]
            bar.busy(f"{trial.name} step {step}/{max_steps}, {self.record.metric} {format_number(value)}")
            if step < max_steps and not trainer.best.stopped and optuna_trial.should_prune():
                raise PrunedError

        bar.busy(trial.name)
        if gate_source is None:  # the run prints its configuration, and its gate has another progress bar
            bar.stop()
        try:
            finetune(
                recipe,
                self.skip_parity,
                LiteralConsole(quiet=True) if gate_source else self.console,
                SearchTrial(watch, gate_source),
            )
        finally:
            gc.collect()  # a trainer and its callbacks form a reference cycle
            bar.start()

    def _recipe_of(self, trial: Trial) -> Recipe:
        """Return the recipe of a trial, whose run folder is within the search's folder."""
        recipe = load_trial(self.path, self.overrides, trial.settings)
        return recipe.with_values({"train.output_dir": str(self.record.folder / trial.name)})

    def _discard(self) -> None:
        """Remove the checkpoints of all trials except the best. Trial folders that are symbolic links are skipped."""
        for trial in self.record.trials:
            run = self.record.folder / trial.name
            if trial is not self.record.best and not run.is_symlink():
                Checkpoints(run / CHECKPOINTS).remove()

    def _line(self, trial: Trial) -> str:
        """Return the line about a trial: its name, metric, settings and state."""
        metric = "" if trial.value is None else f"  {self.record.metric} {format_number(trial.value)}"
        state = "best" if trial is self.record.best else trial.state
        return f"{trial.name}{metric}  {describe_settings(trial.settings)}  {state}{': ' * bool(trial.why)}{trial.why}"
