"""`toolkit search`: trials of a recipe with other settings, one after the other, and the end of the best one.

A trial is a run that ends after its training: nothing measures it on the test split. The best one is ended as `toolkit
finetune` ends a run that was killed after its training, behind a gate on its own settings. Until then one gate covers
all trials of a shape (:func:`.space.shape_of`).
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from toolkit.commands.search.record import Record, Trial, name_of, words_of
from toolkit.commands.search.space import load_trial, parse_space, shape_of, usual
from toolkit.errors import ToolkitError, UserError
from toolkit.finetune.finetune import Tried, finetune
from toolkit.machine import runtime
from toolkit.machine.disk import check_writable
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import CHECKPOINTS, amending, read_starts
from toolkit.terminal.console import LiteralConsole
from toolkit.terminal.progress import ProgressBar, format_number

if TYPE_CHECKING:
    from toolkit.training.trainer import Finetuner


class Pruned(Exception):
    """A trial is worse than most others were after the same share of their training."""


def search(
    path: Path, overrides: Sequence[str], over: Sequence[str], trials: int, skip_parity: str | None, console: Console
) -> None:
    """Search, or go on with an interrupted search.

    Args:
        over: what to try, as ``--over`` has it; if empty, :func:`.space.usual`.

    Raises:
        UserError: the recipe, ``over`` or the folder is wrong.
        ParityDrift, Inconclusive: as :func:`toolkit.finetune.finetune.finetune`.
        ToolkitError: no trial got to its end.
    """
    if runtime.processes() > 1:
        raise UserError("toolkit search: trains in one process; start it without a launcher")
    recipe = load_trial(path, overrides, {})
    space = parse_space(over or usual(recipe), path, overrides)
    folder = recipe.output_dir
    if not recipe.is_overridden("train.output_dir"):
        folder = folder.with_name(f"{folder.name}-search")
    if refused := check_writable(folder):
        raise recipe.error("train.output_dir", f"{folder}: {refused}; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with amending(folder, patience=0):
        record = Record(recipe.with_values({"train.output_dir": str(folder)}), space)
        record.open()
        running = Search(path, overrides, skip_parity, record, console)
        running.run(trials)
        running.end()


@dataclass
class Search:
    """A search that runs.

    Attributes:
        path, overrides: the recipe's file, and what the command line changes for all trials.
        skip_parity: why no gate is run, or None to run it.
    """

    path: Path
    overrides: Sequence[str]
    skip_parity: str | None
    record: Record
    console: Console

    def run(self, trials: int) -> None:
        """Run what is missing of so many trials."""
        done = self.record.trials
        with ProgressBar(self.console, "search", trials, len(done)) as bar:
            while len(done) < trials:
                try:
                    done.append(self._next(bar))
                except KeyboardInterrupt:
                    bar.line(f"{len(done)} of {trials} trials are done; the same command resumes the search")
                    raise
                self.record.save()
                self._discard()
                bar.update(len(done))
                bar.line(self._line(done[-1]))

    def end(self) -> None:
        """Say what is best, and end its run. Raises ToolkitError if no trial got to its end."""
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
        """Run the next trial, or go on with it."""
        space = self.record.space
        asked = self.record.study().ask({over.key: over.distribution for over in space})
        settings = {over.key: over.setting(asked.params[over.key]) for over in space}
        trial = Trial(name_of(len(self.record.trials)), settings)
        try:
            self._train(trial, asked, bar)
        except Pruned:
            trial.state = "pruned"
        except ToolkitError as error:
            from toolkit.training.trainer import DivergedError  # not before the run has set up Paddle

            if not isinstance(error, DivergedError):
                raise
            trial.state, trial.why = "failed", str(error)
        if found := self.record.validated(trial):
            choose = min if self.record.lower_is_better else max
            trial.step, trial.value = choose(found, key=lambda one: one[1])
        elif trial.state == "complete":
            trial.state, trial.why = "failed", f"no validation had a finite {self.record.metric}"
        return trial

    def _train(self, trial: Trial, asked: Any, bar: ProgressBar) -> None:
        """Train a trial. Raises Pruned or Diverged if it has not got to its end."""
        shape, folder = shape_of(trial.settings), self.record.folder
        alike = (folder / other.name for other in self.record.trials if shape_of(other.settings) == shape)
        like = next(
            (run for run in alike if self.skip_parity or any(start["passed"] for start in read_starts(run))), None
        )
        recipe = self._recipe_of(trial)

        def watch(trainer: Finetuner) -> None:
            """Tell the pruner of all validations so far, also of those before an interruption."""
            most, found = trainer.schedule.max_steps, self.record.validated(trial)
            for step, value in found:
                if (percent := 100 * step // most) not in trial.validations:
                    trial.validations[percent] = value
                    asked.report(value, percent)
            if not trainer.is_in_train or not found:
                return
            step, value = found[-1]
            bar.busy(f"{trial.name} step {step}/{most}, {self.record.metric} {format_number(value)}")
            if step < most and not trainer.best.stopped and asked.should_prune():
                raise Pruned

        bar.busy(trial.name)
        if like is None:  # it says what it is made of, and the gate has a bar
            bar.stop()
        try:
            finetune(recipe, self.skip_parity, LiteralConsole(quiet=True) if like else self.console, Tried(watch, like))
        finally:
            gc.collect()  # a trainer and its callbacks hold each other
            bar.start()

    def _recipe_of(self, trial: Trial) -> Recipe:
        recipe = load_trial(self.path, self.overrides, trial.settings)
        return recipe.with_values({"train.output_dir": str(self.record.folder / trial.name)})

    def _discard(self) -> None:
        """Remove the checkpoints of all trials except the best. A trial's folder that is a link is not followed."""
        for trial in self.record.trials:
            run = self.record.folder / trial.name
            if trial is not self.record.best and not run.is_symlink():
                Checkpoints(run / CHECKPOINTS).remove()

    def _line(self, trial: Trial) -> str:
        found = "" if trial.value is None else f"  {self.record.metric} {format_number(trial.value)}"
        state = "best" if trial is self.record.best else trial.state
        return f"{trial.name}{found}  {words_of(trial.settings)}  {state}{': ' * bool(trial.why)}{trial.why}"
