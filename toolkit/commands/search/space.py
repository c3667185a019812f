"""What a search tries: for some keys of a recipe, a range or a list of values."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import families
from toolkit.errors import UserError
from toolkit.finetune.model_config import check_model
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.yaml_source import parse_value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

EXAMPLE = "train.learning_rate=1e-4..1e-2 or train.epochs=2,4,8"
#: Keys of model and train that are not for trials: each has its folder, and one metric compares all.
FIXED = ("train.output_dir", "train.save_best")
#: By default: the ends of the range of learning rates, by the recipe's own; the greatest dropout.
AROUND, MOST_DROPOUT = 5.0, 0.3
#: Combinations of values that are checked before anything runs; each takes some milliseconds.
MOST_CHECKED = 256
#: From this ratio of its ends on, a range is searched by its logarithm.
LOGARITHMIC = 10


@dataclass(frozen=True)
class Over:
    """A key, and the values to try for it: the ends of a range, or a list."""

    key: str
    written: str
    values: tuple[Any, ...]
    is_range: bool

    @classmethod
    def parse(cls, text: str) -> Over:
        """Parse ``KEY=LOW..HIGH`` or ``KEY=A,B,C``. Raises UserError if it has another form, or the key is not for
        trials."""
        key, _, written = text.partition("=")
        where = f"--over {text}"
        if not key or not written:
            raise UserError(f"{where}: expected KEY=VALUES, for example {EXAMPLE}")
        if key.partition(".")[0] not in ("model", "train") or key in FIXED:
            raise UserError(f"{where}: trials differ only in keys of model and train, for example {EXAMPLE}")
        if ends := re.fullmatch(r"([^,\[\]]+?)\.\.([^,\[\]]+)", written):
            low, high = (parse_value(end, where) for end in ends.groups())
            if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)) or low >= high:
                raise UserError(f"{where}: a range goes from a number to a greater one, for example {EXAMPLE}")
            kind = int if type(low) is type(high) is int else float
            return cls(key, written, (kind(low), kind(high)), True)
        values = parse_value(f"[{written}]", where)
        if len({json.dumps(value) for value in values}) < max(2, len(values)):
            raise UserError(f"{where}: name at least two values, each once, for example {EXAMPLE}")
        return cls(key, written, tuple(values), False)

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna has it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if not self.is_range:
            return CategoricalDistribution([json.dumps(value) for value in self.values])
        low, high = self.values
        kind = IntDistribution if isinstance(low, int) else FloatDistribution
        return kind(low, high, log=low > 0 and high / low >= LOGARITHMIC)

    def setting(self, drawn: Any) -> Any:
        """The value for what Optuna has drawn; of a fraction three digits."""
        if not self.is_range:
            return json.loads(drawn)
        return drawn if isinstance(drawn, int) else min(max(float(f"{drawn:.3g}"), self.values[0]), self.values[1])

    def drawn(self, setting: Any) -> Any:
        """What Optuna would have drawn for a value; None if it is not to be tried."""
        if not self.is_range:
            return next((json.dumps(value) for value in self.values if value == setting), None)
        low, high = self.values
        fits = isinstance(setting, (int, float)) and low <= setting <= high and type(low)(setting) == setting
        return type(low)(setting) if fits else None


def parse_space(texts: Sequence[str], path: Path, overrides: Sequence[str]) -> list[Over]:
    """Parse all ``--over``, and check their values in the recipe: each by itself, then together. Raises UserError if a
    key is named twice, or the recipe cannot have a value."""
    space = [Over.parse(text) for text in texts]
    keys = [over.key for over in space]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"--over {twice}: is named twice; name each key once")
    alone = [{over.key: value} for over in space for value in over.values]
    together = (dict(zip(keys, values, strict=True)) for values in itertools.product(*(over.values for over in space)))
    for settings in (*alone, *itertools.islice(together, MOST_CHECKED)):
        load_trial(path, overrides, settings)
    return space


def load_trial(path: Path, overrides: Sequence[str], settings: Mapping[str, Any]) -> Recipe:
    """The recipe with these settings. Raises UserError if it cannot have them."""
    recipe = load_recipe(path, [*overrides, *(f"{key}={json.dumps(value)}" for key, value in settings.items())])
    check_model(recipe)
    return recipe


def usual(recipe: Recipe) -> list[str]:
    """What is tried if nothing is named: learning rate, length, and each dropout of the recipe that is not 0."""
    rate, length = recipe.train.learning_rate, recipe.train.epochs
    found = [f"train.learning_rate={rate / AROUND:.3g}..{rate * AROUND:.3g}"]
    if length is not None:
        found.append(f"train.epochs={length / 2:g},{length:g},{length * 2:g}")
    elif (steps := recipe.train.max_steps or 0) > 1:
        found.append(f"train.max_steps={steps // 2},{steps},{steps * 2}")
    dropout = {key: value for key, value in _config(recipe).items() if "drop" in key and value}
    return found + [f"model.config.{key}=0..{max(MOST_DROPOUT, own)}" for key, own in dropout.items()]


def value_of(recipe: Recipe, key: str) -> Any:
    """The recipe's own value of a key of model or train; None if it has none."""
    value: Any = {"train": recipe.train.model_dump(), "model": {**recipe.model.model_dump(), "config": _config(recipe)}}
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _config(recipe: Recipe) -> dict[str, Any]:
    return {**families.part(recipe.model.name, "schema").DEFAULTS, **recipe.model.config}


def shape_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What one gate covers. The code computes alike with other rates, unless one is 0, and over more or fewer steps."""

    def is_rate(key: str, value: Any) -> bool:
        rate = "drop" in key or (key.startswith("train.") and isinstance(value, float))
        return key in ("train.epochs", "train.max_steps") or (rate and isinstance(value, (int, float)))

    return {key: bool(value) if is_rate(key, value) else value for key, value in settings.items()}
