"""The recipe: what a run is made of. YAML checked by a schema, every error at its line, every default filled in.

This module decides what can be decided from the recipe alone. What needs the data or a model's configuration is decided
later (:mod:`toolkit.data`, :mod:`toolkit.model_config`), with the same error positions, through :meth:`Recipe.error`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from toolkit import yaml_source
from toolkit.errors import UserError

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A mapping of the recipe. Values must have the type they are declared with: "3" is not 3."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Model(Section):
    """Which network, from which weights."""

    name: Literal["reformer"] = "reformer"
    weights: str | None = None
    config: dict[str, Any] = {}
    backward: Literal["reversible", "autograd"] = "reversible"
    residual: Literal["wide", "plain"] = "wide"


class Tokenizer(Section):
    """How text becomes ids."""

    kind: Literal["bytes", "sentencepiece", "checkpoint"] = "bytes"
    path: str | None = None
    vocab_size: Annotated[int, Field(ge=8)] | None = None


class Files(Section):
    """A file per split."""

    train: str
    validation: str | None = None
    test: str | None = None


class Limit(Section):
    """The most examples a split may hold."""

    train: Positive | None = None
    validation: Positive | None = None
    test: Positive | None = None


class Data(Section):
    """Which texts and labels, and how long a text may be."""

    dataset: str
    config_name: str | None = None
    files: Files | None = None
    text: str = "text"
    label: str = "label"
    max_length: Positive
    validation_fraction: Fraction | None = None
    limit: Limit = Limit()
    options: dict[str, Any] = {}


class Train(Section):
    """The optimisation."""

    output_dir: str | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    max_steps: Positive | None = None
    batch_size: Positive = 8
    eval_batch_size: Positive | None = None
    gradient_accumulation_steps: Positive = 1
    learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    adam_beta1: Beta = 0.9
    adam_beta2: Beta = 0.999
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lr_scheduler: Literal["linear", "cosine", "constant"] = "linear"
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    eval_steps: Positive | None = None
    early_stopping_patience: Positive | None = None
    save_best: Literal["accuracy", "macro_f1", "loss"] = "accuracy"


class Parity(Section):
    """What the gate compares before the run."""

    dtype: Literal["both", "float64", "float32"] = "both"
    examples: Positive = 2
    device: Literal["auto", "cpu", "gpu"] = "auto"


class Tracking(Section):
    """Where metrics go beside the run folder."""

    wandb: bool = False
    project: str | None = None
    visualdl: bool = False


class Runtime(Section):
    """Where the run happens."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    threads: Positive | None = None


class Recipe(Section):
    """A checked recipe; :func:`load_recipe` makes one."""

    task: Literal["classification"] = "classification"
    seed: Annotated[int, Field(ge=0)] = 42
    model: Model = Model()
    tokenizer: Tokenizer = Tokenizer()
    data: Data
    train: Train
    parity: Parity = Parity()
    tracking: Tracking = Tracking()
    runtime: Runtime = Runtime()

    _source: yaml_source.Source = PrivateAttr(default_factory=lambda: yaml_source.Source("recipe"))

    @property
    def path(self) -> Path:
        """The file that the recipe was read from."""
        return Path(self._source.name)

    @property
    def output_dir(self) -> Path:
        """The run folder."""
        return Path(self.train.output_dir or Path("runs") / self.path.stem)

    def resolve(self, path: str) -> Path:
        """A path of the recipe: relative to the current directory if it exists there, else to the recipe's folder."""
        written = Path(path).expanduser()
        beside = self.path.parent / written
        return beside if not written.exists() and beside.exists() else written

    def error(self, key: str | yaml_source.KeyPath, message: str) -> UserError:
        """The error to raise about one key, with its position: ``recipes/x.yaml:LINE: key.path: message``.

        Args:
            key: a dotted path, or its parts where a part may hold a dot.
            message: what is wrong, then what would be right.
        """
        return self._source.error(key, message)

    def to_yaml(self) -> str:
        """The recipe with every default written out, and with absolute paths: it means the same read from anywhere."""
        values = self.model_dump()
        values["train"]["output_dir"] = str(self.output_dir.absolute())
        for section, key in self._paths(values):
            if (found := self.resolve(section[key])).exists():
                section[key] = str(found.absolute())
        return yaml_source.dump(values)

    @staticmethod
    def _paths(values: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """Every value that may be a path, as the section it stands in and its key."""
        places = [(values["model"], "weights"), (values["tokenizer"], "path"), (values["data"], "dataset")]
        places += [(values["data"]["files"] or {}, split) for split in ("train", "validation", "test")]
        return [(section, key) for section, key in places if section.get(key)]


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the YAML file.
        overrides: ``key.path=value`` from the command line; values are YAML.

    Raises:
        UserError: a line for each thing that is wrong.
    """
    values, source = yaml_source.read(Path(path), overrides)
    try:
        recipe = Recipe.model_validate(values)
    except pydantic.ValidationError as problems:
        found = sorted(problems.errors(), key=lambda problem: source.line(tuple(map(str, problem["loc"]))))
        raise UserError("\n".join(str(source.error(*_explain(problem))) for problem in found)) from None
    recipe._source = source
    _check_choices(recipe)
    if recipe.train.eval_batch_size is None:
        recipe.train.eval_batch_size = recipe.train.batch_size
    return recipe


def _check_choices(recipe: Recipe) -> None:
    """Keys that only make sense together, or not together."""
    train, data, tokenizer = recipe.train, recipe.data, recipe.tokenizer
    if (train.epochs is None) == (train.max_steps is None):
        if train.epochs is None:
            raise recipe.error("train.epochs", "missing; set epochs or max_steps")
        raise recipe.error("train.max_steps", "epochs is set too; set one of them to null (train.epochs=null)")
    if data.dataset in ("json", "csv", "text") and data.files is None:
        raise recipe.error("data.files", f"missing; name a {data.dataset} file for train, and for validation and test")
    if data.dataset not in ("json", "csv", "text") and data.files is not None:
        raise recipe.error("data.files", f"is for dataset json, csv or text, not for {data.dataset}")
    if recipe.task == "classification" and data.dataset == "text":
        raise recipe.error("data.dataset", "plain text has no labels; use json or csv with a text and a label column")
    if tokenizer.kind == "sentencepiece" and (tokenizer.path is None) == (tokenizer.vocab_size is None):
        message = "give path (a spiece.model) or vocab_size (train one on this recipe's training text), and not both"
        raise recipe.error("tokenizer.path" if tokenizer.path else "tokenizer.kind", message)
    if tokenizer.kind != "sentencepiece":
        for key in ("path", "vocab_size"):
            if getattr(tokenizer, key) is not None:
                raise recipe.error(f"tokenizer.{key}", f"is for kind: sentencepiece, not for kind: {tokenizer.kind}")
    if tokenizer.kind == "checkpoint" and recipe.model.weights is None:
        raise recipe.error("tokenizer.kind", "checkpoint takes the tokenizer of model.weights, which is not set")


def _explain(problem: Any) -> tuple[yaml_source.KeyPath, str]:
    """A pydantic error as the key it is about and a sentence that says what would be right."""
    path = tuple(str(part) for part in problem["loc"])
    kind, given = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        return path, "unknown key" + (yaml_source.suggest(path[-1], known) or f"; known: {', '.join(known)}")
    if kind == "missing":
        return path, "missing; it has no default"
    if kind == "literal_error":
        known = problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return path, f"{given!r} is not one of {', '.join(known)}{yaml_source.suggest(str(given), known)}"
    if kind in ("model_type", "dict_type"):
        return path, f"expected a mapping of keys to values, got {given!r}"
    return path, f"{given!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _known_keys(path: yaml_source.KeyPath) -> list[str]:
    """The keys that the section at a path may have."""
    section: type[BaseModel] = Recipe
    for name in path:
        annotation = section.model_fields[name].annotation
        section = next(kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type))
    return list(section.model_fields)
