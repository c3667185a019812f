"""The saved state of a search, ``search.json``. An interrupted search resumes from it.

The file holds the complete state, and each write replaces it atomically. Optuna's own storage is not used: its journal
ends in half a line when a process is killed, and SQLite is unsafe on the shared file systems of clusters. Each call
passes the trials of the file to Optuna.
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
#: Number of trials with random settings. Pruning starts after this number of complete trials, and only if more than
#: half as many trials were validated after the same fraction of their training.
NUM_STARTUP_TRIALS = 5
#: Percent of its training during which a trial is never pruned.
WARMUP_PERCENT = 20


Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass
class Trial:
    """A trial of a search.

    Attributes:
        name: name of the trial's folder.
        settings: key of the recipe -> value.
        state: final state of the trial.
        value: best validation metric; None without a finite value.
        step: training step of the best validation.
        validations: percent of the training -> validation metric.
        why: reason why the trial failed; empty otherwise.
    """

    name: str
    settings: dict[str, Any]
    state: Literal["complete", "pruned", "failed"] = "complete"
    value: Finite | None = None
    step: Annotated[int, Field(strict=True, ge=0)] | None = None
    validations: dict[Annotated[int, Field(ge=0, le=100)], Finite] = field(default_factory=dict)
    why: str = ""


class Content(BaseModel):
    """The content of ``search.json``.

    Attributes:
        recipe: recipe as YAML.
        over: ``--over`` options of the command line, joined by spaces.
        trials: trials, oldest first.
    """

    recipe: str
    over: str
    trials: list[Trial]


def trial_name(number: int) -> str:
    """Return the folder name of the trial with a number, counted from 0: ``7`` -> ``trial-007``."""
    return f"trial-{number:03}"


@dataclass
class Record:
    """The state of a search.

    Attributes:
        recipe: recipe, whose ``output_dir`` is the folder of the search.
        space: keys with the values to try.
        trials: trials that have ended.
    """

    recipe: Recipe
    space: Sequence[Over]
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder, self.metric = self.recipe.output_dir, str(self.recipe.train.save_best)
        self.lower_is_better = task_of(self.recipe).LOWER_IS_BETTER[self.metric]

    def open(self) -> None:
        """Load the trials of an earlier call from the folder of the search.

        Raises:
            UserError: the folder holds other files or another search.
        """
        path, remedy = self.folder / FILE, f"set train.output_dir to another folder, or remove {self.folder}"
        if not path.exists():
            if {entry.name for entry in self.folder.iterdir()} - {LOCK}:
                raise UserError(f"{self.folder}: is not empty and holds no search; {remedy}")
            self.save()
        with reading(path, remedy):
            saved_search, over_options = _parse_content(read_json(path, remedy)), self._over()
            differences = (
                [f"--over {saved_search.over} there, {over_options} here"] if saved_search.over != over_options else []
            )
            differences += differing_keys(saved_search.recipe, self.recipe.to_yaml(), str(path))
            if differences and saved_search.trials:
                raise UserError(f"{self.folder}: holds another search ({'; '.join(differences[:3])}); {remedy}")
            for number, trial in enumerate(saved_search.trials):
                self._check_trial(number, trial)
            self.trials = saved_search.trials

    def _check_trial(self, number: int, trial: Trial) -> None:
        """Check that a saved trial has the right name, and settings that this search could have chosen.

        Raises:
            ValueError: the trial has another name or other settings, or is complete without a value.
        """
        if trial.name != trial_name(number):
            raise ValueError(f"trials.{number}.name: {trial.name!r:.40} should be {trial_name(number)}")
        keys = {over.key for over in self.space}
        wrong_keys = sorted(trial.settings.keys() ^ keys)
        wrong_keys += [
            over.key for over in self.space if not wrong_keys and over.encode_setting(trial.settings[over.key]) is None
        ]
        if wrong_keys:
            raise ValueError(f"trials.{number}.settings: {wrong_keys[0]:.80} is not a setting of this search")
        if trial.state == "complete" and trial.value is None:
            raise ValueError(f"trials.{number}.value: is missing")

    def save(self) -> None:
        """Write ``search.json``."""
        write_text(self.folder / FILE, dumps(self._content(), indent=1) + "\n")

    def _content(self) -> dict[str, Any]:
        """Return the content of the record's JSON file: the recipe, the search space, the metric and the trials."""
        results = {
            "metric": self.metric,
            "best": self.best and self.best.name,
            "trials": list(map(asdict, self.trials)),
        }
        return {"recipe": self.recipe.to_yaml(), "over": self._over(), **results}

    def _over(self) -> str:
        """Return the search space as the options ``--over`` state it."""
        return " ".join(f"{over.key}={over.values_text}" for over in self.space)

    @property
    def sorted_trials(self) -> list[Trial]:
        """All trials, sorted from best to worst; trials that are not complete come last."""
        sign = 1 if self.lower_is_better else -1
        return sorted(self.trials, key=lambda trial: (trial.state != "complete", sign * (trial.value or 0.0)))

    @property
    def best(self) -> Trial | None:
        """The best complete trial, the first of equally good trials; None if no trial is complete."""
        return next((trial for trial in self.sorted_trials if trial.state == "complete"), None)

    def study(self) -> Study:
        """Return an Optuna study with all trials so far.

        The seed depends on the number of trials, so that the next trial is the same after an interruption. The first
        trial uses the recipe's own values if the search space contains them.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(
                seed=self.recipe.seed + len(self.trials), n_startup_trials=NUM_STARTUP_TRIALS
            ),
            pruner=optuna.pruners.MedianPruner(
                NUM_STARTUP_TRIALS, n_warmup_steps=WARMUP_PERCENT, n_min_trials=(NUM_STARTUP_TRIALS + 1) // 2
            ),
            direction="minimize" if self.lower_is_better else "maximize",
        )
        for trial in self.trials:
            state = optuna.trial.TrialState.COMPLETE if trial.state == "complete" else optuna.trial.TrialState.PRUNED
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    value=trial.value if trial.state == "complete" else None,
                    params={over.key: over.encode_setting(trial.settings[over.key]) for over in self.space},
                    distributions={over.key: over.distribution for over in self.space},
                    intermediate_values=trial.validations,
                )
            )
        if not self.trials:
            own_values = {over.key: over.encode_setting(value_of(self.recipe, over.key)) for over in self.space}
            study.enqueue_trial(
                {key: drawn_value for key, drawn_value in own_values.items() if drawn_value is not None}
            )
        return study

    def finite_validations(self, trial: Trial) -> list[tuple[int, float]]:
        """Return the step and the value of each validation of a trial whose value is finite."""
        rows = read_metrics(self.folder / trial.name / "metrics.jsonl")
        validations = [(row["step"], row.get(self.metric)) for row in rows if row.get("split") == "validation"]
        return [
            (step, value) for step, value in validations if isinstance(value, (int, float)) and math.isfinite(value)
        ]

    def table(self) -> Table:
        """Return the table of trials, sorted from best to worst."""
        table = Table()
        table.add_column("trial", no_wrap=True)
        for name in (f"validation {self.metric}", *(over.key.rpartition(".")[2] for over in self.space)):
            table.add_column(name.replace("_", " "), justify="right")  # so that a narrow column can wrap it
        table.add_column("state")
        for trial in self.sorted_trials:
            value = "" if trial.value is None else f"{trial.value:.4f}"
            state = "best" if trial is self.best else trial.state
            table.add_row(trial.name, value, *map(_format_value, trial.settings.values()), state)
        return table

    def write_best(self, best: Trial, recipe: Recipe) -> Path:
        """Write the recipe of the best trial, with a comment at each key of the search; return the path."""
        path = self.folder / BEST
        text = f"# {best.name}, the best of {len(self.trials)} trials: validation {self.metric} {best.value:.4f}\n"
        text += recipe.with_values({"train.output_dir": str(self.folder / "best")}).to_yaml()
        write_text(path, text)
        lines, line_numbers = text.splitlines(), yaml_source.read(path)[1].lines
        for over in self.space:
            previous_value = _format_value(value_of(self.recipe, over.key))
            lines[line_numbers[tuple(over.key.split("."))] - 1] += f"  # tried {over.values_text}; was {previous_value}"
        write_text(path, "\n".join(lines) + "\n")
        return path


def _parse_content(search_json: dict[str, Any]) -> Content:
    """Return the content of ``search.json`` after checking the type of each field.

    Raises:
        ValueError: a field has another type; the message names the first such field.
    """
    try:
        return Content.model_validate_json(json.dumps(search_json))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return the settings of a trial in one line."""
    return "  ".join(f"{key.rpartition('.')[2]} {_format_value(value)}" for key, value in settings.items())


def _format_value(value: Any) -> str:
    """Return a setting's value as text."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
