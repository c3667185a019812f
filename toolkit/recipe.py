"""The recipe: what a run is made of. YAML checked by a schema, every error at its line, every default filled in.

This module decides what can be decided from the recipe alone. What needs the data or a model's configuration is decided
later (:mod:`toolkit.data`, :mod:`toolkit.model_config`), with the same error positions, through :meth:`Recipe.error`.
"""

from __future__ import annotations

import glob
import importlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, PrivateAttr

from toolkit import yaml_source
from toolkit.errors import UserError
from toolkit.text_encoding import is_encoding

Setting = TypeVar("Setting")
#: What Paddle and `datasets` keep in 32 bits.
MOST = 2**31 - 1
#: What NumPy takes for a seed.
MOST_SEED = 2**32 - 1
Positive = Annotated[int, Field(gt=0, le=MOST)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]

#: Data sets that are files of the user's.
FILE_KINDS = ("json", "csv", "parquet", "arrow", "text")

#: Those that may be in another encoding than UTF-8.
ENCODED_KINDS = ("csv", "json", "text")
#: What may part the columns of csv.
DELIMITER = re.compile(r"[^\w\r\n\"\\]", re.ASCII)

#: Keys that only some tasks know, with their defaults there; for the other tasks they must be absent.
TASK_KEYS: dict[str, dict[str, Any]] = {
    "classification": {
        "data.label": "label",
        "data.label_names": None,
        "data.problem_type": "single_label",
        "data.sources": None,
        "train.save_best": "accuracy",
    },
    "question_answering": {
        "data.id": "id",
        "data.question": "question",
        "data.context": "context",
        "data.answers": "answers",
        "data.document": None,
        "data.stride": 128,
        "data.max_answer_length": 64,
        "data.no_answer_threshold": None,
        "data.misplaced_answers": "refuse",
        "data.whole_words": True,
        "train.save_best": "f1",
    },
    "language_modeling": {
        "data.sources": None,
        "data.control": None,
        "data.test_fraction": None,
        "train.save_best": "perplexity",
    },
}

#: By ``data.problem_type``, what ``train.save_best`` may name; the first is its default.
PROBLEM_METRICS: dict[str, tuple[str, ...]] = {
    "single_label": ("accuracy", "macro_f1", "loss"),
    "multi_label": ("micro_f1", "macro_f1", "subset_accuracy", "loss"),
    "regression": ("mse", "mae", "pearson", "spearman", "loss"),
}

#: Likewise keys that only some models know.
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "reformer": {"model.backward": "reversible", "model.residual": "wide", "tokenizer.kind": "bytes"},
    "ctrl": {"tokenizer.kind": "bpe", "train.recompute": False},
}

#: Keys that had another name in earlier versions -> their name now. They are still understood, and the name is said.
FORMER_KEYS = {"data.config_name": "data.config"}

#: Keys below which patterns are files.
FILE_KEYS = (("data", "files"), ("data", "sources"))

#: The tokenizers that each model can be given.
TOKENIZER_KINDS = {"reformer": ("bytes", "sentencepiece", "checkpoint"), "ctrl": ("bpe", "checkpoint")}

#: Those that are read from a file or trained on the recipe's text.
TRAINED_KINDS = {"sentencepiece": "a spiece.model", "bpe": "a folder with vocab.json and merges.txt"}


class Section(BaseModel):
    """A mapping of the recipe. Values must have the type they are declared with: "3" is not 3."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Model(Section):
    """Which network, from which weights."""

    name: Literal["reformer", "ctrl"] = "reformer"
    weights: str | None = None
    revision: str | None = None
    config: dict[str, Any] = {}
    backward: Literal["reversible", "autograd"] | None = None
    residual: Literal["wide", "plain"] | None = None


class Tokenizer(Section):
    """How text becomes ids."""

    kind: Literal["bytes", "sentencepiece", "bpe", "checkpoint"] | None = None
    path: str | None = None
    vocab_size: Annotated[int, Field(ge=8, le=MOST)] | None = None


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


def _as_label_names(given: Any) -> dict[str, str] | list[str] | None:
    """``data.label_names`` as texts: a name may be written as a number is.

    Raises:
        ValueError: anything but a mapping or a list of two or more names that are not the same.
    """
    if given is None:
        return None
    right = "write {0: negative, 1: positive}, or the names in the order of the ids, [negative, positive]"
    names = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
        raise ValueError(f"{given!r} names no labels; {right}")
    texts = [str(name).lower() if isinstance(name, bool) else str(name) for name in names]
    if not all(text.strip() for text in texts):
        raise ValueError("a name is empty; write what the label is called")
    if len(texts) < 2:
        raise ValueError(f"{len(texts)} named; classification needs two labels or more: {right}")
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is the name of more than one label; each needs its own")
    return dict(zip(given, texts, strict=True)) if isinstance(given, dict) else texts


def _as_text_columns(given: Any) -> str | list[str]:
    """``data.text``: a column, or two.

    Raises:
        ValueError: anything else.
    """
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(column, str) for column in given) or len(given) != 2:
        raise ValueError(f"{given!r} is neither the name of a column nor two of them; write text, or [question, text]")
    if given[0] == given[1]:
        raise ValueError(f"{given[0]} is named twice; name two columns, or one without brackets")
    return given


def _as_filter(given: Any) -> dict[str, Any] | None:
    """``data.filter``: a column -> the value, or the list of values, that its rows are to have.

    Raises:
        ValueError: anything else.
    """
    if given is None:
        return None
    right = "write {column: value} or {column: [value, value]}"
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{given!r} names no column; {right}")
    for column, values in given.items():
        listed = values if isinstance(values, list) else [values]
        if not listed or not all(value is None or isinstance(value, str | int | float) for value in listed):
            raise ValueError(f"{values!r} is no value for {column} to have; {right}")
    return given


Filter = Annotated[dict[str, Any] | None, PlainValidator(_as_filter)]
TextColumns = Annotated[str | list[str], PlainValidator(_as_text_columns)]
LabelNames = Annotated[dict[str, str] | list[str] | None, PlainValidator(_as_label_names)]


class Data(Section):
    """Which texts and labels, and how long a text may be."""

    dataset: str
    revision: str | None = None
    config: str | None = None
    splits: dict[Literal["train", "validation", "test"], str | None] | None = None
    split_column: str | None = None
    filter: Filter = None
    files: Files | None = None
    delimiter: str | None = None
    encoding: str | None = None
    sources: dict[str, str | list[str]] | None = None
    text: TextColumns = "text"
    label: str | None = None
    label_names: LabelNames = None
    problem_type: Literal["single_label", "multi_label", "regression"] | None = None
    control: str | None = None
    id: str | None = None
    question: str | None = None
    context: str | None = None
    answers: str | None = None
    document: str | None = None
    stride: Annotated[int, Field(ge=0, le=MOST)] | None = None
    max_answer_length: Positive | None = None
    no_answer_threshold: float | None = None
    misplaced_answers: Literal["refuse", "drop", "find"] | None = None
    whole_words: bool | None = None
    max_length: Positive
    validation_fraction: Fraction | None = None
    test_fraction: Fraction | None = None
    limit: Limit = Limit()
    options: dict[str, Any] = {}

    @property
    def text_columns(self) -> list[str]:
        """The columns of the texts: one, or two whose texts are classified together."""
        return [self.text] if isinstance(self.text, str) else self.text


class Train(Section):
    """The optimisation."""

    output_dir: str | None = None
    epochs: Annotated[float, Field(gt=0, le=10**6)] | None = None
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
    precision: Literal["float32", "bfloat16"] = "float32"
    recompute: bool | None = None
    sharding: Literal["stage1", "stage2"] | None = None
    eval_steps: Positive | None = None
    early_stopping_patience: Positive | None = None
    save_best: str | None = None


class Parity(Section):
    """What the gate compares before the run."""

    dtype: Literal["both", "float64", "float32"] = "both"
    examples: Positive = 2
    device: Literal["auto", "cpu", "gpu"] = "auto"
    length: Positive | None = None
    max_memory: Annotated[float, Field(gt=0, le=10**6)] | None = None
    reference_python: str | None = None


class Tracking(Section):
    """Where metrics go beside the run folder."""

    wandb: bool = False
    wandb_mode: Literal["online", "offline"] | None = None
    project: str | None = None
    log_model: bool = False
    visualdl: bool = False


class Runtime(Section):
    """Where the run happens."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None


class Card(Section):
    """What the model card tells the hub and nothing here can know: a licence's id there, and codes of languages."""

    license: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")] | None = None
    language: list[Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")]] | None = None


class Recipe(Section):
    """A checked recipe; :func:`load_recipe` makes one."""

    task: Literal["classification", "question_answering", "language_modeling"] = "classification"
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] = 42
    model: Model = Model()
    tokenizer: Tokenizer = Tokenizer()
    data: Data
    train: Train
    parity: Parity = Parity()
    tracking: Tracking = Tracking()
    runtime: Runtime = Runtime()
    card: Card = Card()

    _notes: list[str] = PrivateAttr(default_factory=list)
    _commits: dict[str, str] = PrivateAttr(default_factory=dict)
    _source: yaml_source.Source = PrivateAttr(default_factory=lambda: yaml_source.Source("recipe"))

    @property
    def path(self) -> Path:
        """The file that the recipe was read from."""
        return Path(self._source.name)

    @property
    def output_dir(self) -> Path:
        """The run folder."""
        return Path(self.train.output_dir or Path("runs") / self.path.stem)

    def in_folder(self, folder: Path) -> Recipe:
        """The same recipe with another run folder."""
        return self.model_copy(update={"train": self.train.model_copy(update={"output_dir": str(folder)})})

    @property
    def notes(self) -> list[str]:
        """What the user should know about how the recipe was read, a line each."""
        return self._notes

    def note(self, text: str) -> None:
        """Add to :attr:`notes` what became clear later, once."""
        if text not in self._notes:
            self._notes.append(text)

    @property
    def commits(self) -> dict[str, str]:
        """By section, the commit of its hub repository that is used, once :mod:`toolkit.revisions` has settled it."""
        return self._commits

    @property
    def hub_weights(self) -> str | None:
        """The hub repository of `model.weights`; None for a folder or a file of Paddle's, and for new weights."""
        weights = self.model.weights
        local = weights is None or weights.endswith(".pdparams") or self.resolve(weights).is_dir()
        return None if local else weights

    @property
    def hub_dataset(self) -> str | None:
        """The hub repository of `data.dataset`; None for files, a folder, and data that is built in."""
        name = self.data.dataset
        local = name in (*FILE_KINDS, *_task_module(self).CORPORA) or self.resolve(name).is_dir()
        return None if local else name

    def is_overridden(self, key: str) -> bool:
        """Whether the command line set a key, or the section that it stands in."""
        path = tuple(key.split("."))
        return any(path[:depth] in self._source.overridden for depth in range(1, len(path) + 1))

    def resolve(self, path: str) -> Path:
        """A path of the recipe: relative to the current directory if it exists there, else to the recipe's folder."""
        written = Path(path).expanduser()
        beside = self.path.parent / written
        return beside if not written.exists() and beside.exists() else written

    def resolve_all(self, path: str) -> list[Path]:
        """The files that a path of the recipe names: what is called so, or what fits it as a pattern (``*``, ``?``,
        ``[...]``, and ``**`` for folders at any depth), in the order of their names. None where nothing fits."""
        found = self.resolve(path)
        if os.path.lexists(found) or not glob.has_magic(path):
            return [found]
        for pattern in self._patterns(path):
            if matches := sorted(match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match)):
                return [Path(match) for match in matches]
        return []

    def _patterns(self, path: str) -> list[str]:
        """A pattern with where it is looked for before it: here, then beside the recipe."""
        written = os.path.expanduser(path)
        return [os.path.join(glob.escape(os.path.abspath(folder)), written) for folder in (os.curdir, self.path.parent)]

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
        for path in _paths(values):
            section, key = _section(values, path), path[-1]
            if (found := self.resolve(section[key])).exists():
                section[key] = str(found.absolute())
            elif path[:2] in FILE_KEYS and glob.has_magic(section[key]):
                patterns = (at for at in self._patterns(section[key]) if glob.glob(at, recursive=True))
                section[key] = next(patterns, section[key])
        return yaml_source.dump(values)


def _paths(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Where the values stand that may be a path: keys, and numbers of a list's items."""
    places: list[tuple[Any, ...]] = [
        ("model", "weights"),
        ("tokenizer", "path"),
        ("train", "output_dir"),
        ("parity", "reference_python"),
    ]
    if values["data"]["dataset"] not in FILE_KINDS:  # a folder may have the name of a kind
        places.append(("data", "dataset"))
    places += [("data", "files", split) for split in values["data"]["files"] or {}]
    for code, files in (values["data"]["sources"] or {}).items():
        source = ("data", "sources", code)
        places += [(*source, index) for index in range(len(files))] if isinstance(files, list) else [source]
    return [path for path in places if _section(values, path)[path[-1]]]


def _section(values: Any, path: tuple[Any, ...]) -> Any:
    """What the last part of a path is a key of."""
    for name in path[:-1]:
        values = values[name]
    return values


def settled(value: Setting | None) -> Setting:
    """A recipe's value that is None only for other tasks or models: :func:`load_recipe` has given it its default."""
    assert value is not None
    return value


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the YAML file.
        overrides: ``key.path=value`` from the command line; values are YAML.

    Raises:
        UserError: a line for each thing that is wrong.
    """
    values, source = yaml_source.read(Path(path), overrides)
    notes = _rename_former(values, source)
    try:
        recipe = Recipe.model_validate(values)
    except pydantic.ValidationError as problems:
        found = sorted(problems.errors(), key=lambda problem: source.line(tuple(map(str, problem["loc"]))))
        raise UserError("\n".join(str(source.error(*_explain(problem))) for problem in found)) from None
    recipe._source, recipe._notes = source, notes
    _check_paths(recipe)
    if recipe.data.problem_type is not None and recipe.train.save_best is None:
        recipe.train.save_best = PROBLEM_METRICS[recipe.data.problem_type][0]
    _settle(recipe, "task", recipe.task, TASK_KEYS)
    _settle(recipe, "model", recipe.model.name, MODEL_KEYS)
    _check_task(recipe)
    _check_choices(recipe)
    if recipe.train.eval_batch_size is None:
        recipe.train.eval_batch_size = recipe.train.batch_size
    return recipe


def _rename_former(values: dict[str, Any], source: yaml_source.Source) -> list[str]:
    """Give keys with a former name the one that they have now; returns a note for each.

    Raises:
        UserError: a key under both names.
    """
    notes = []
    for former, now in FORMER_KEYS.items():
        old, new = tuple(former.split(".")), tuple(now.split("."))
        section = values.get(old[0])
        if not isinstance(section, dict) or old[1] not in section:
            continue
        if new[1] in section:
            raise source.error(old, f"is called {now} now, which is set too; remove this one")
        where, value = source.where(old), section.pop(old[1])
        section[new[1]] = value
        source.rename(old, new)
        if value is not None:
            notes.append(f"{where}: {former} is called {now} now")
    return notes


def _check_paths(recipe: Recipe) -> None:
    """Refuse what no file can be called, before anybody looks for it."""
    values = recipe.model_dump()
    for path in _paths(values):
        written = _section(values, path)[path[-1]]
        try:
            Path(written).expanduser().exists()
        except (OSError, RuntimeError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise recipe.error(tuple(map(str, path)), f"{written}: no file can be called so: {reason}") from None


def _settle(recipe: Recipe, what: str, name: str, keys: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the keys that this task or model knows their defaults; refuse those that only others know."""
    for key in dict.fromkeys(key for known in keys.values() for key in known):
        section_name, _, field = key.partition(".")
        section = getattr(recipe, section_name)
        if getattr(section, field) is None:
            setattr(section, field, keys[name].get(key))
        elif key not in keys[name]:
            others = " or ".join(other for other, known in keys.items() if key in known)
            raise recipe.error(key, f"is for {what} {others}, not for {name}; remove it")


def _check_task(recipe: Recipe) -> None:
    """What the task says about the recipe."""
    task = _task_module(recipe)
    if recipe.model.name not in task.HEADS:
        raise recipe.error("model.name", f"{recipe.model.name} cannot do {recipe.task}; {_any(task.HEADS)} can")
    known = list(PROBLEM_METRICS.get(recipe.data.problem_type or "", task.LOWER_IS_BETTER))
    if recipe.train.save_best not in known:
        given = recipe.train.save_best or ""
        message = f"{given!r} is not one of {', '.join(known)}{yaml_source.suggest(given, known)}"
        raise recipe.error("train.save_best", message)
    task.check(recipe)


def _task_module(recipe: Recipe) -> Any:
    return importlib.import_module(f"toolkit.tasks.{recipe.task}.task")  # by name: the tasks import this module


def _check_choices(recipe: Recipe) -> None:
    """Keys that only make sense together, or not together."""
    train, data, tokenizer = recipe.train, recipe.data, recipe.tokenizer
    _settle_length(recipe)
    if (train.epochs is None) == (train.max_steps is None):
        if train.epochs is None:
            raise recipe.error("train.epochs", "missing; set epochs or max_steps")
        raise recipe.error("train.max_steps", "epochs is set too; set one of them to null (train.epochs=null)")
    if len(data.text_columns) > 1 and recipe.task != "classification":
        raise recipe.error("data.text", f"two columns are for task classification; for {recipe.task}, name one")
    if data.dataset in FILE_KINDS and data.files is None and data.sources is None:
        raise recipe.error("data.files", f"missing; name a {data.dataset} file for train, and for validation and test")
    for key in ("filter", "split_column"):
        if data.dataset == "text" and getattr(data, key) is not None:
            raise recipe.error(f"data.{key}", "is for data with columns, not for text; remove it")
    if data.split_column is not None and data.files is not None:
        for split in ("validation", "test"):
            if getattr(data.files, split) is not None:
                message = "data.split_column says which rows are of which split; put all files in data.files.train"
                raise recipe.error(f"data.files.{split}", message)
    if data.splits is not None:
        if data.dataset in FILE_KINDS and data.split_column is None:
            message = f"is for folders and hub data sets; with {data.dataset}, name the files in data.files"
            raise recipe.error("data.splits", message)
        if data.splits.get("train", "") is None:
            raise recipe.error("data.splits.train", "null: without it there is nothing to train on; name a split")
    _check_files(recipe)
    if data.dataset not in FILE_KINDS and data.files is not None:
        raise recipe.error("data.files", f"is for dataset {_any(FILE_KINDS)}, not for {data.dataset}")
    kinds = TOKENIZER_KINDS[recipe.model.name]
    if tokenizer.kind not in kinds:
        raise recipe.error("tokenizer.kind", f"{tokenizer.kind} is not for {recipe.model.name}; {_any(kinds)} is")
    if tokenizer.kind in TRAINED_KINDS and (tokenizer.path is None) == (tokenizer.vocab_size is None):
        file = TRAINED_KINDS[tokenizer.kind]
        message = f"give path ({file}) or vocab_size (train one on this recipe's training text), and not both"
        raise recipe.error("tokenizer.path" if tokenizer.path else "tokenizer.kind", message)
    if tokenizer.kind not in TRAINED_KINDS:
        for key in ("path", "vocab_size"):
            if getattr(tokenizer, key) is not None:
                owners = _any([kind for kind in kinds if kind in TRAINED_KINDS])
                raise recipe.error(f"tokenizer.{key}", f"is for kind: {owners}, not for kind: {tokenizer.kind}")
    if tokenizer.kind == "checkpoint" and recipe.model.weights is None:
        raise recipe.error("tokenizer.kind", "checkpoint takes the tokenizer of model.weights, which is not set")
    _check_revisions(recipe)


def _check_files(recipe: Recipe) -> None:
    """How files are read is only open for those that do not say it themselves."""
    data, delimiter, encoding = recipe.data, recipe.data.delimiter, recipe.data.encoding
    if delimiter is not None:
        if data.dataset != "csv":
            raise recipe.error("data.delimiter", f"is for dataset: csv, not for {data.dataset}; remove it")
        if not DELIMITER.fullmatch(delimiter):
            right = "one character that is no letter or figure, such as ';' or \"\\t\" (a tab)"
            raise recipe.error("data.delimiter", f"{delimiter!r} is none; it should be {right}")
    if encoding is not None:
        known = ENCODED_KINDS if recipe.task != "question_answering" else ("csv",)
        if data.dataset not in known:
            raise recipe.error("data.encoding", f"is for dataset: {_any(known)}, not for {data.dataset}; remove it")
        if not is_encoding(encoding):
            right = "utf-8, cp1252 or utf-16"
            raise recipe.error("data.encoding", f"no encoding of text is called {encoding!r}; set one such as {right}")


def _check_revisions(recipe: Recipe) -> None:
    """A revision is one of a hub repository."""
    places = (
        ("model", "model.weights", recipe.model.weights, recipe.hub_weights),
        ("data", "data.dataset", recipe.data.dataset, recipe.hub_dataset),
    )
    for section, key, written, repository in places:
        revision = getattr(recipe, section).revision
        if revision is None:
            continue
        if repository is None:
            what = f"{key} is {written}, which is none" if written else f"{key} is not set"
            raise recipe.error(f"{section}.revision", f"is of a hub repository, and {what}; remove it")
        if not revision.strip() or revision.startswith(("/", ".")) or ".." in revision:
            right = "a branch, a tag, refs/pr/NUMBER or a commit of the hub repository"
            raise recipe.error(f"{section}.revision", f"{revision!r} is no revision; it should be {right}")


def _settle_length(recipe: Recipe) -> None:
    """Where the file says epochs and the command line max_steps, or the other way round, the command line has it."""
    train = recipe.train
    if train.epochs is None or train.max_steps is None:
        return
    for chosen, other in (("epochs", "max_steps"), ("max_steps", "epochs")):
        if recipe.is_overridden(f"train.{chosen}") and not recipe.is_overridden(f"train.{other}"):
            setattr(train, other, None)
            recipe._notes.append(f"train.{chosen}={getattr(train, chosen)} takes the place of the recipe's {other}")


def _any(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def _explain(problem: Any) -> tuple[yaml_source.KeyPath, str]:
    """A pydantic error as the key it is about and a sentence that says what would be right."""
    path = tuple(str(part) for part in problem["loc"] if part != "[key]")  # of a mapping, not of a section
    kind, given = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        return path, "unknown key" + (yaml_source.suggest(path[-1], known) or f"; known: {', '.join(known)}")
    if kind == "missing":
        return path, "missing; it has no default"
    if kind == "literal_error":
        known = problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return path, f"{given!r} is not one of {', '.join(known)}{yaml_source.suggest(str(given), known)}"
    if kind == "value_error":  # of a validator here
        return path, str(problem["ctx"]["error"])
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


def keys() -> list[str]:
    """Every key that a recipe may have, as the command line writes it."""
    found = []
    for section, known in Recipe.model_fields.items():
        kind = known.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += [f"{section}.{key}" for key in kind.model_fields]
        else:
            found.append(section)
    return found
