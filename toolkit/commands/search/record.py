"""What a search knows of its trials: ``search.json``, from which an interrupted search goes on.

It is the whole state of a search, and always whole: Optuna's journal ends in half a line when a process is killed, and
SQLite is unsafe on the file systems that clusters share. Optuna gets the trials from it each time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from rich.table import Table

from toolkit.commands.search.space import Over, value_of
from toolkit.errors import UserError
from toolkit.files.strict_json import dumps
from toolkit.files.whole import write_text
from toolkit.recipe import yaml_source
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import LOCK, differing_keys
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.tracking import read_metrics
from toolkit.tasks import task_of

if TYPE_CHECKING:
    from optuna import Study

FILE, BEST = "search.json", "best.yaml"
#: Trials that are drawn at random; only after as many complete ones a trial is pruned, if more than half as many have a
#: validation at its share of their training.
STARTUP = 5
#: Percent of its training before which no trial is pruned.
WARMUP = 20


Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass
class Trial:
    """A trial: the name of its folder, its settings, how it ended, and the best of its validations.

    Attributes:
        validations: percent of the training -> the metric.
        why: it failed.
    """

    name: str
    settings: dict[str, Any]
    state: Literal["complete", "pruned", "failed"] = "complete"
    value: Finite | None = None
    step: Annotated[int, Field(strict=True, ge=0)] | None = None
    validations: dict[Annotated[int, Field(ge=0, le=100)], Finite] = field(default_factory=dict)
    why: str = ""


class Content(BaseModel):
    """The content of ``search.json``: the recipe as YAML, the ``--over`` options, and the trials in their order."""

    recipe: str
    over: str
    trials: list[Trial]


def name_of(number: int) -> str:
    """Return the name of the folder of the trial with a number, from 0: ``trial-007``."""
    return f"trial-{number:03}"


@dataclass
class Record:
    """A search: its recipe, whose output_dir is its folder, what it tries, and the trials that have ended."""

    recipe: Recipe
    space: Sequence[Over]
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder, self.metric = self.recipe.output_dir, str(self.recipe.train.save_best)
        self.lower_is_better = task_of(self.recipe).LOWER_IS_BETTER[self.metric]

    def open(self) -> None:
        """Take up the trials of an earlier call. Raises UserError if the folder holds something else, or another
        search."""
        path, others = self.folder / FILE, f"set train.output_dir to another folder, or remove {self.folder}"
        if not path.exists():
            if {entry.name for entry in self.folder.iterdir()} - {LOCK}:
                raise UserError(f"{self.folder}: is not empty and holds no search; {others}")
            self.save()
        with reading(path, others):
            saved_search, over = _parse(read_json(path, others)), self._over()
            differing = [f"--over {saved_search.over} there, {over} here"] if saved_search.over != over else []
            differing += differing_keys(saved_search.recipe, self.recipe.to_yaml(), str(path))
            if differing and saved_search.trials:
                raise UserError(f"{self.folder}: holds another search ({'; '.join(differing[:3])}); {others}")
            for number, trial in enumerate(saved_search.trials):
                self._check_trial(number, trial)
            self.trials = saved_search.trials

    def _check_trial(self, number: int, trial: Trial) -> None:
        """Check that a saved trial has the name of its number, and settings that this search could have drawn.

        Raises:
            ValueError: it does not.
        """
        if trial.name != name_of(number):
            raise ValueError(f"trials.{number}.name: {trial.name!r:.40} should be {name_of(number)}")
        keys = {over.key for over in self.space}
        odd = sorted(trial.settings.keys() ^ keys)
        odd += [over.key for over in self.space if not odd and over.drawn(trial.settings[over.key]) is None]
        if odd:
            raise ValueError(f"trials.{number}.settings: {odd[0]:.80} is not a setting of this search")
        if trial.state == "complete" and trial.value is None:
            raise ValueError(f"trials.{number}.value: is missing")

    def save(self) -> None:
        """Write ``search.json``."""
        write_text(self.folder / FILE, dumps(self._content(), indent=1) + "\n")

    def _content(self) -> dict[str, Any]:
        results = {
            "metric": self.metric,
            "best": self.best and self.best.name,
            "trials": list(map(asdict, self.trials)),
        }
        return {"recipe": self.recipe.to_yaml(), "over": self._over(), **results}

    def _over(self) -> str:
        return " ".join(f"{over.key}={over.written}" for over in self.space)

    @property
    def in_order(self) -> list[Trial]:
        """The trials, the best first; those that did not get to their end come last."""
        sign = 1 if self.lower_is_better else -1
        return sorted(self.trials, key=lambda trial: (trial.state != "complete", sign * (trial.value or 0.0)))

    @property
    def best(self) -> Trial | None:
        """The best of those that got to their end; the first of equals."""
        return next((trial for trial in self.in_order if trial.state == "complete"), None)

    def study(self) -> Study:
        """The trials as Optuna's. Each has a seed of its own, so that the next one is the same after an interruption.
        The first one is the recipe as written, if that is to be tried."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=self.recipe.seed + len(self.trials), n_startup_trials=STARTUP),
            pruner=optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=WARMUP, n_min_trials=(STARTUP + 1) // 2),
            direction="minimize" if self.lower_is_better else "maximize",
        )
        for trial in self.trials:
            state = optuna.trial.TrialState.COMPLETE if trial.state == "complete" else optuna.trial.TrialState.PRUNED
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    value=trial.value if trial.state == "complete" else None,
                    params={over.key: over.drawn(trial.settings[over.key]) for over in self.space},
                    distributions={over.key: over.distribution for over in self.space},
                    intermediate_values=trial.validations,
                )
            )
        if not self.trials:
            own = {over.key: over.drawn(value_of(self.recipe, over.key)) for over in self.space}
            study.enqueue_trial({key: drawn for key, drawn in own.items() if drawn is not None})
        return study

    def validated(self, trial: Trial) -> list[tuple[int, float]]:
        """Step and value of each validation that a trial has had, if finite."""
        rows = read_metrics(self.folder / trial.name / "metrics.jsonl")
        validations = [(row["step"], row.get(self.metric)) for row in rows if row.get("split") == "validation"]
        return [
            (step, value) for step, value in validations if isinstance(value, (int, float)) and math.isfinite(value)
        ]

    def table(self) -> Table:
        """The trials, the best first."""
        table = Table()
        table.add_column("trial", no_wrap=True)
        for name in (f"validation {self.metric}", *(over.key.rpartition(".")[2] for over in self.space)):
            table.add_column(name.replace("_", " "), justify="right")  # a narrow column breaks it between words
        table.add_column("state")
        for trial in self.in_order:
            value = "" if trial.value is None else f"{trial.value:.4f}"
            state = "best" if trial is self.best else trial.state
            table.add_row(trial.name, value, *map(_written, trial.settings.values()), state)
        return table

    def write_best(self, best: Trial, recipe: Recipe) -> Path:
        """Write the best trial's recipe, with a comment at each key that was tried; returns the file."""
        path = self.folder / BEST
        text = f"# {best.name}, the best of {len(self.trials)} trials: validation {self.metric} {best.value:.4f}\n"
        text += recipe.with_values({"train.output_dir": str(self.folder / "best")}).to_yaml()
        write_text(path, text)
        lines, places = text.splitlines(), yaml_source.read(path)[1].lines
        for over in self.space:
            was = _written(value_of(self.recipe, over.key))
            lines[places[tuple(over.key.split("."))] - 1] += f"  # tried {over.written}; was {was}"
        write_text(path, "\n".join(lines) + "\n")
        return path


def _parse(content: dict[str, Any]) -> Content:
    """Check the type of each field. Raises ValueError that names the first field with another type."""
    try:
        return Content.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def words_of(settings: Mapping[str, Any]) -> str:
    """Settings in a line."""
    return "  ".join(f"{key.rpartition('.')[2]} {_written(value)}" for key, value in settings.items())


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
