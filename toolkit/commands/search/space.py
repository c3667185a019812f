"""The search space: a range or a list of values for some keys of a recipe."""

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
#: Keys of model and train that are equal in all trials: each trial has a separate folder, and one metric compares them.
FIXED_KEYS = ("train.output_dir", "train.save_best")
#: Factor between the recipe's learning rate and the ends of its default range; maximum dropout by default.
RATE_FACTOR, MAX_DROPOUT = 5.0, 0.3
#: Maximum number of combinations to check before the first trial. Each check takes some milliseconds.
MAX_CHECKED_COMBINATIONS = 256
#: Minimum ratio of the ends of a range that is searched on a logarithmic scale.
MIN_LOGARITHMIC_RATIO = 10


@dataclass(frozen=True)
class Over:
    """A key of the recipe, and the values to try for it.

    Attributes:
        key: key of the recipe, such as ``train.learning_rate``.
        values_text: values as written on the command line.
        values: the two ends of a range, or a list of values.
        is_range: whether the values are the ends of a range.
    """

    key: str
    values_text: str
    values: tuple[Any, ...]
    is_range: bool

    @classmethod
    def parse(cls, text: str) -> Over:
        """Parse ``KEY=LOW..HIGH`` or ``KEY=A,B,C``.

        Raises:
            UserError: the text has another form, or the key cannot differ between trials.
        """
        key, _, values_text = text.partition("=")
        place = f"--over {text}"
        if not key or not values_text:
            raise UserError(f"{place}: expected KEY=VALUES, for example {EXAMPLE}")
        if key.partition(".")[0] not in ("model", "train") or key in FIXED_KEYS:
            raise UserError(f"{place}: trials differ only in keys of model and train, for example {EXAMPLE}")
        if ends := re.fullmatch(r"([^,\[\]]+?)\.\.([^,\[\]]+)", values_text):
            low, high = (parse_value(end, place) for end in ends.groups())
            if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)) or low >= high:
                raise UserError(f"{place}: a range goes from a number to a greater one, for example {EXAMPLE}")
            number_type = int if type(low) is type(high) is int else float
            return cls(key, values_text, (number_type(low), number_type(high)), True)
        values = parse_value(f"[{values_text}]", place)
        if len({json.dumps(value) for value in values}) < max(2, len(values)):
            raise UserError(f"{place}: name at least two values, each once, for example {EXAMPLE}")
        return cls(key, values_text, tuple(values), False)

    @property
    def distribution(self) -> BaseDistribution:
        """Optuna's distribution of the values. The values of a list are JSON strings."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if not self.is_range:
            return CategoricalDistribution([json.dumps(value) for value in self.values])
        low, high = self.values
        distribution_class = IntDistribution if isinstance(low, int) else FloatDistribution
        return distribution_class(low, high, log=low > 0 and high / low >= MIN_LOGARITHMIC_RATIO)

    def decode_setting(self, drawn_value: Any) -> Any:
        """Return the setting for a value that Optuna has drawn; a fraction is rounded to three digits."""
        if not self.is_range:
            return json.loads(drawn_value)
        return (
            drawn_value
            if isinstance(drawn_value, int)
            else min(max(float(f"{drawn_value:.3g}"), self.values[0]), self.values[1])
        )

    def encode_setting(self, setting: Any) -> Any:
        """Return the value that Optuna draws for a setting; None if the search space does not contain the setting."""
        if not self.is_range:
            return next((json.dumps(value) for value in self.values if value == setting), None)
        low, high = self.values
        fits = isinstance(setting, (int, float)) and low <= setting <= high and type(low)(setting) == setting
        return type(low)(setting) if fits else None


def parse_space(texts: Sequence[str], path: Path, overrides: Sequence[str]) -> list[Over]:
    """Parse all ``--over`` options, and check their values in the recipe: first each value alone, then combinations.

    Args:
        texts: ``--over`` options of the command line.
        path: file of the recipe.
        overrides: ``KEY=VALUE`` options that apply to all trials.

    Raises:
        UserError: a key is named twice, or a value is invalid in the recipe.
    """
    space = [Over.parse(text) for text in texts]
    keys = [over.key for over in space]
    if duplicate := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"--over {duplicate}: is named twice; name each key once")
    single_settings = [{over.key: value} for over in space for value in over.values]
    combinations = (
        dict(zip(keys, values, strict=True)) for values in itertools.product(*(over.values for over in space))
    )
    for settings in (*single_settings, *itertools.islice(combinations, MAX_CHECKED_COMBINATIONS)):
        load_trial(path, overrides, settings)
    return space


def load_trial(path: Path, overrides: Sequence[str], settings: Mapping[str, Any]) -> Recipe:
    """Load the recipe with the settings of a trial, and check it.

    Raises:
        UserError: a setting is invalid in the recipe.
    """
    recipe = load_recipe(path, [*overrides, *(f"{key}={json.dumps(value)}" for key, value in settings.items())])
    check_model(recipe)
    return recipe


def default_options(recipe: Recipe) -> list[str]:
    """Return the default ``--over`` options: learning rate, length, and each dropout of the recipe above 0."""
    rate, length = recipe.train.learning_rate, recipe.train.epochs
    options = [f"train.learning_rate={rate / RATE_FACTOR:.3g}..{rate * RATE_FACTOR:.3g}"]
    if length is not None:
        options.append(f"train.epochs={length / 2:g},{length:g},{length * 2:g}")
    elif (steps := recipe.train.max_steps or 0) > 1:
        options.append(f"train.max_steps={steps // 2},{steps},{steps * 2}")
    dropout = {key: value for key, value in _config(recipe).items() if "drop" in key and value}
    return options + [f"model.config.{key}=0..{max(MAX_DROPOUT, current)}" for key, current in dropout.items()]


def value_of(recipe: Recipe, key: str) -> Any:
    """Return the recipe's value of a key of model or train; None if the key is not set."""
    value: Any = {"train": recipe.train.model_dump(), "model": {**recipe.model.model_dump(), "config": _config(recipe)}}
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _config(recipe: Recipe) -> dict[str, Any]:
    """Return the model configuration of a recipe, including defaults."""
    return {**families.part(recipe.model.name, "schema").DEFAULTS, **recipe.model.config}


def shape_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change the operations of a run. A single gate covers trials with equal shapes.

    A rate counts only as zero or not, and the number of epochs or steps does not count.
    """

    def is_rate(key: str, value: Any) -> bool:
        rate = "drop" in key or (key.startswith("train.") and isinstance(value, float))
        return key in ("train.epochs", "train.max_steps") or (rate and isinstance(value, (int, float)))

    return {key: bool(value) if is_rate(key, value) else value for key, value in settings.items()}
