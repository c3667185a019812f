"""The keys of a recipe: their types and defaults, and the tasks and models that have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, create_model

from models.families import FAMILIES, default_family, family

#: Largest signed integer of 32 bits, which Paddle and `datasets` use.
MOST = 2**31 - 1
#: NumPy's largest seed.
MOST_SEED = 2**32 - 1
Positive = Annotated[int, Field(gt=0, le=MOST)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]

#: Name of a model family -> its description.
FAMILIES_BY_NAME = {name: family(name) for name in FAMILIES}
#: Setting of a port -> its possible values.
SETTINGS = {key: values for details in FAMILIES_BY_NAME.values() for key, values in details.settings.items()}
if TYPE_CHECKING:
    FamilyName = str
    TokenizerKind = str
else:
    FamilyName = Literal[FAMILIES]
    TokenizerKind = Literal[
        tuple(dict.fromkeys(kind for details in FAMILIES_BY_NAME.values() for kind in details.tokenizers))
    ]

#: Values of ``data.dataset`` that stand for files of the user.
FILE_KINDS = ("json", "csv", "xlsx", "parquet", "arrow", "text")

#: Kinds of files that may have another encoding than UTF-8.
ENCODED_KINDS = ("csv", "json", "text")
#: Kinds of files that may lack a header with the names of the columns.
HEADERLESS_KINDS = ("csv", "xlsx", "json")
#: Pattern of a delimiter of csv.
DELIMITER = re.compile(r"[^\w\r\n\"\\]", re.ASCII)

#: Task -> keys that only some tasks have, with their defaults. Other tasks must not set them.
TASK_KEYS: dict[str, dict[str, Any]] = {
    "classification": {
        "data.label": "label",
        "data.label_names": None,
        "data.label_separator": None,
        "data.missing_labels": "refuse",
        "data.missing_texts": "refuse",
        "data.long_texts": "cut",
        "data.problem_type": "single_label",
        "data.sources": None,
        "data.validation_sources": None,
        "data.test_sources": None,
        "data.test_fraction": None,
        "train.class_weights": None,
        "train.label_smoothing": 0.0,
        "train.token_dropout": 0.0,
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
    "masked_language_modeling": {
        "data.sources": None,
        "data.test_fraction": None,
        "data.mask_fraction": 0.15,
        "data.whole_words": False,
        "train.save_best": "perplexity",
    },
    "token_classification": {
        "data.label": "entities",
        "data.label_names": None,
        "data.stride": 32,
        "data.test_fraction": None,
        "train.token_dropout": 0.0,
        "train.save_best": "f1",
    },
}

#: ``data.problem_type`` -> possible values of ``train.save_best``; the first is the default.
PROBLEM_METRICS: dict[str, tuple[str, ...]] = {
    "single_label": ("accuracy", "macro_f1", "loss"),
    "multi_label": ("micro_f1", "macro_f1", "subset_accuracy", "loss"),
    "regression": ("mse", "mae", "pearson", "spearman", "loss"),
}

#: Model -> keys that only some models have, with their defaults.
MODEL_KEYS: dict[str, dict[str, Any]] = {
    name: {
        **{f"model.{key}": values[0] for key, values in details.settings.items()},
        "tokenizer.kind": next(iter(details.tokenizers)),
        **details.recipe_keys,
    }
    for name, details in FAMILIES_BY_NAME.items()
}

#: Optimizer -> keys that only some optimizers have, with their defaults.
OPTIMIZER_KEYS: dict[str, dict[str, Any]] = {
    "adamw": {"train.adam_beta1": 0.9, "train.adam_beta2": 0.999, "train.adam_epsilon": 1e-8},
    "lion": {"train.adam_beta1": 0.9, "train.adam_beta2": 0.99},
    "sgd": {"train.momentum": 0.9},
    "adafactor": {},
}

#: Former name of a key -> its current name. Former names still work, with a note.
FORMER_KEYS = {"data.config_name": "data.config"}

#: Split -> key of its plain texts by label or control code.
SOURCE_KEYS = {"train": "sources", "validation": "validation_sources", "test": "test_sources"}
#: Keys whose values may be patterns of files.
FILE_KEYS = (("data", "files"), *(("data", key) for key in SOURCE_KEYS.values()))

#: Kind of tokenizer that is read from a file or trained on the recipe's text -> description of the file.
TRAINED_KINDS = {
    kind: file for details in FAMILIES_BY_NAME.values() for kind, file in details.tokenizers.items() if file
}


class Section(BaseModel):
    """A section of the recipe. Values must have the declared type, so "3" is not accepted for 3."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class NamedModel(Section):
    """The model and its initial weights."""

    name: FamilyName = default_family()
    weights: str | None = None
    revision: str | None = None
    config: dict[str, Any] = {}


class Model(
    create_model(  # type: ignore[misc]
        "Model", __base__=NamedModel, **{key: (Literal[values] | None, None) for key, values in SETTINGS.items()}
    )
):
    """The model and its initial weights, with the settings of the ports of all families."""


class Tokenizer(Section):
    """The tokenizer."""

    kind: TokenizerKind | None = None
    path: str | None = None
    vocab_size: Annotated[int, Field(ge=8, le=MOST)] | None = None


class Files(Section):
    """The file of each split."""

    train: str
    validation: str | None = None
    test: str | None = None


class Limit(Section):
    """The maximum number of examples of each split."""

    train: Positive | None = None
    validation: Positive | None = None
    test: Positive | None = None


def _as_label_names(value: Any) -> dict[str, str] | list[str] | None:
    """Return ``data.label_names`` with all names as texts. In a mapping, labels may share a name.

    Raises:
        ValueError: the value is not a mapping or a list, or has fewer than two distinct names.
    """
    if value is None:
        return None
    hint = "write {0: negative, 1: positive}, or the names in the order of the ids, [negative, positive]"
    names = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
        raise ValueError(f"{value!r} names no labels; {hint}")
    texts = [str(name).lower() if isinstance(name, bool) else str(name) for name in names]
    if not all(text.strip() for text in texts):
        raise ValueError("a name is empty; write what the label is called")
    if len(set(texts)) < 2:
        raise ValueError(f"{len(set(texts))} named; classification needs two labels or more: {hint}")
    if isinstance(value, dict):
        return dict(zip(value, texts, strict=True))
    if duplicate := next((text for text in texts if texts.count(text) > 1), None):
        raise ValueError(f"{duplicate} is in the list twice; {{label: {duplicate}, label: {duplicate}}} joins labels")
    return texts


def _as_text_columns(value: Any) -> str | list[str]:
    """Return ``data.text`` after checking that it is a column or a list of two columns.

    Raises:
        ValueError: it has another type, or the columns are equal.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(column, str) for column in value) or len(value) != 2:
        raise ValueError(f"{value!r} is neither the name of a column nor two of them; write text, or [question, text]")
    if value[0] == value[1]:
        raise ValueError(f"{value[0]} is named twice; name two columns, or one without brackets")
    return value


def _as_label_columns(value: Any) -> str | list[str] | None:
    """Return ``data.label`` after checking that it is a column or a list of columns with 0 and 1.

    Raises:
        ValueError: it has another type, or a column is named twice.
    """
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(column, str) for column in value) or len(value) < 2:
        hint = "write label, or [toxic, insult] for columns of 0 and 1"
        raise ValueError(f"{value!r} is neither the name of a column nor several of them; {hint}")
    if duplicate := next((column for column in value if value.count(column) > 1), None):
        raise ValueError(f"{duplicate} is named twice; name each column once")
    return value


def _as_missing_labels(value: Any) -> str | list[str] | None:
    """Return ``data.missing_labels``: ``refuse``, ``drop``, or a list of words that stand for a missing label.

    Raises:
        ValueError: the value has another form.
    """
    if value in (None, "refuse", "drop"):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(word, str | int | float) for word in value):
        raise ValueError(f"{value!r} is not one of refuse, drop; nor a list of words for no label, such as [nan]")
    return [str(word) for word in value]


def _as_filter(value: Any) -> dict[str, Any] | None:
    """Return ``data.filter`` after checking that it maps a column to a value, or to a list of values, to keep.

    Raises:
        ValueError: the value has another form.
    """
    if value is None:
        return None
    hint = "write {column: value} or {column: [value, value]}"
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{value!r} names no column; {hint}")
    for column, entry in value.items():
        entries = entry if isinstance(entry, list) else [entry]
        if not entries or not all(value is None or isinstance(value, str | int | float) for value in entries):
            raise ValueError(f"{entry!r} is no value for {column} to have; {hint}")
    return value


def _as_class_weights(value: Any) -> dict[str, Any] | str | None:
    """Return ``train.class_weights`` after checking that it is null, ``balanced``, or maps labels to weights.

    Raises:
        ValueError: the value has another form.
    """
    if value is None or value == "balanced":
        return value
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{value!r} weighs no labels; write balanced, or {{LABEL: 2.5}} (others weigh 1)")
    return value


ClassWeights = Annotated[dict[str, Any] | str | None, PlainValidator(_as_class_weights)]
Filter = Annotated[dict[str, Any] | None, PlainValidator(_as_filter)]
TextColumns = Annotated[str | list[str], PlainValidator(_as_text_columns)]
LabelColumns = Annotated[str | list[str] | None, PlainValidator(_as_label_columns)]
MissingLabels = Annotated[str | list[str] | None, PlainValidator(_as_missing_labels)]
Sources = dict[str, str | list[str]] | None
LabelNames = Annotated[dict[str, str] | list[str] | None, PlainValidator(_as_label_names)]


class Data(Section):
    """The data: texts, labels, splits, and the maximum length of a text."""

    dataset: str
    revision: str | None = None
    config: str | None = None
    splits: dict[Literal["train", "validation", "test"], str | None] | None = None
    split_column: str | None = None
    filter: Filter = None
    streaming: bool = False
    shuffle_buffer: Positive | None = None
    files: Files | None = None
    delimiter: str | None = None
    quote: Literal['"', "'", "none"] | None = None
    columns: Annotated[list[str], Field(min_length=1)] | None = None
    encoding: str | None = None
    sources: Sources = None
    validation_sources: Sources = None
    test_sources: Sources = None
    text: TextColumns = "text"
    label: LabelColumns = None
    label_separator: Annotated[str, Field(min_length=1)] | None = None
    missing_labels: MissingLabels = None
    missing_texts: Literal["refuse", "drop"] | None = None
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
    mask_fraction: Fraction | None = None
    long_texts: Literal["cut", "windows"] | None = None
    max_length: Positive
    validation_fraction: Fraction | None = None
    test_fraction: Fraction | None = None
    limit: Limit = Limit()
    options: dict[str, Any] = {}

    @property
    def paths(self) -> list[str]:
        """Paths or patterns of all files in ``files`` and in the sources, as written in the recipe."""
        paths = [path for path in (self.files.model_dump().values() if self.files else ()) if path]
        for key in SOURCE_KEYS.values():
            for source in (getattr(self, key) or {}).values():
                paths += [source] if isinstance(source, str) else source
        return paths

    @property
    def text_columns(self) -> list[str]:
        """Columns of the texts: a single column, or two columns whose texts are classified as a pair."""
        return [self.text] if isinstance(self.text, str) else self.text

    @property
    def label_columns(self) -> list[str]:
        """Columns of the labels: a single column, or several columns with 0 and 1; empty for a task without labels."""
        return self.label if isinstance(self.label, list) else [] if self.label is None else [self.label]


class LoRA(Section):
    """Low-rank adaptation (LoRA), which trains small matrices instead of the weights."""

    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Annotated[list[str], Field(min_length=1)] | None = None


class Train(Section):
    """The optimization: length, batches, optimizer, schedule and evaluation."""

    output_dir: str | None = None
    epochs: Annotated[float, Field(gt=0, le=10**6)] | None = None
    max_steps: Positive | None = None
    batch_size: Positive = 8
    eval_batch_size: Positive | None = None
    gradient_accumulation_steps: Positive = 1
    optimizer: Literal["adamw", "lion", "sgd", "adafactor"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    adam_beta1: Beta | None = None
    adam_beta2: Beta | None = None
    adam_epsilon: Annotated[float, Field(gt=0)] | None = None
    momentum: Beta | None = None
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lr_scheduler: Literal["linear", "cosine", "constant"] = "linear"
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    recompute: bool | None = None
    sharding: Literal["stage1", "stage2"] | None = None
    lora: LoRA | None = None
    eval_steps: Positive | None = None
    early_stopping_patience: Positive | None = None
    class_weights: ClassWeights = None
    label_smoothing: Beta | None = None
    token_dropout: Beta | None = None
    save_best: str | None = None
    baseline: bool = True


class Parity(Section):
    """The comparison of the parity gate before the run."""

    dtype: Literal["both", "float64", "float32"] = "both"
    examples: Positive = 2
    device: Literal["auto", "cpu", "gpu"] = "auto"
    length: Positive | None = None
    max_memory: Annotated[float, Field(gt=0, le=10**6)] | None = None
    reference_python: str | None = None


class Tracking(Section):
    """The services that record metrics, in addition to the run folder."""

    wandb: bool = False
    wandb_mode: Literal["online", "offline"] | None = None
    project: str | None = None
    log_model: bool = False
    visualdl: bool = False
    tensorboard: bool = False


class Runtime(Section):
    """The device and the CPU threads of the run."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None


class Card(Section):
    """Facts for the model card that only the user knows: the id of a license on the hub, and language codes."""

    license: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")] | None = None
    language: list[Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")]] | None = None
