"""The keys of a recipe: their types, their defaults, and which tasks and models know them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, create_model

from models.families import FAMILIES, default, family

#: Largest number that Paddle and `datasets` keep in 32 bits.
MOST = 2**31 - 1
#: NumPy's largest seed.
MOST_SEED = 2**32 - 1
Positive = Annotated[int, Field(gt=0, le=MOST)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]

#: The families of models.
KNOWN = {name: family(name) for name in FAMILIES}
#: Settings of their ports -> the values.
SETTINGS = {key: values for known in KNOWN.values() for key, values in known.settings.items()}
if TYPE_CHECKING:
    FamilyName = str
    TokenizerKind = str
else:
    FamilyName = Literal[FAMILIES]
    TokenizerKind = Literal[tuple(dict.fromkeys(kind for known in KNOWN.values() for kind in known.tokenizers))]

#: Data sets that are the user's files.
FILE_KINDS = ("json", "csv", "xlsx", "parquet", "arrow", "text")

#: Those that may be in another encoding than UTF-8.
ENCODED_KINDS = ("csv", "json", "text")
#: Those whose rows may come without the names of the columns.
HEADERLESS_KINDS = ("csv", "xlsx", "json")
#: Delimiters that csv may have.
DELIMITER = re.compile(r"[^\w\r\n\"\\]", re.ASCII)

#: Keys that only some tasks know, with their defaults there; for the other tasks they must be absent.
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

#: By ``data.problem_type``, what ``train.save_best`` may name; the first is its default.
PROBLEM_METRICS: dict[str, tuple[str, ...]] = {
    "single_label": ("accuracy", "macro_f1", "loss"),
    "multi_label": ("micro_f1", "macro_f1", "subset_accuracy", "loss"),
    "regression": ("mse", "mae", "pearson", "spearman", "loss"),
}

#: Likewise keys that only some models know.
MODEL_KEYS: dict[str, dict[str, Any]] = {
    name: {
        **{f"model.{key}": values[0] for key, values in known.settings.items()},
        "tokenizer.kind": next(iter(known.tokenizers)),
        **known.recipe_keys,
    }
    for name, known in KNOWN.items()
}

#: Likewise keys that only some optimizers know.
OPTIMIZER_KEYS: dict[str, dict[str, Any]] = {
    "adamw": {"train.adam_beta1": 0.9, "train.adam_beta2": 0.999, "train.adam_epsilon": 1e-8},
    "lion": {"train.adam_beta1": 0.9, "train.adam_beta2": 0.99},
    "sgd": {"train.momentum": 0.9},
    "adafactor": {},
}

#: Keys' names in earlier versions -> their names now. The former are still understood, with a note.
FORMER_KEYS = {"data.config_name": "data.config"}

#: Split -> the key of its plain texts, by label or by control code.
SOURCE_KEYS = {"train": "sources", "validation": "validation_sources", "test": "test_sources"}
#: Keys that take patterns of files.
FILE_KEYS = (("data", "files"), *(("data", key) for key in SOURCE_KEYS.values()))

#: Tokenizers that are read from a file or trained on the recipe's text -> the file, in words.
TRAINED_KINDS = {kind: file for known in KNOWN.values() for kind, file in known.tokenizers.items() if file}


class Section(BaseModel):
    """A mapping of the recipe. Values must have the type they are declared with: "3" is not 3."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class NamedModel(Section):
    """Which network, from which weights."""

    name: FamilyName = default()
    weights: str | None = None
    revision: str | None = None
    config: dict[str, Any] = {}


class Model(
    create_model(  # type: ignore[misc]
        "Model", __base__=NamedModel, **{key: (Literal[values] | None, None) for key, values in SETTINGS.items()}
    )
):
    """The same, with the settings of the families' ports."""


class Tokenizer(Section):
    """How text becomes ids."""

    kind: TokenizerKind | None = None
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
    """Return ``data.label_names`` as texts; a name may be a number. In a mapping, labels may share a name. Raises
    ValueError for anything but a mapping or a list of two or more distinct names."""
    if given is None:
        return None
    right = "write {0: negative, 1: positive}, or the names in the order of the ids, [negative, positive]"
    names = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
        raise ValueError(f"{given!r} names no labels; {right}")
    texts = [str(name).lower() if isinstance(name, bool) else str(name) for name in names]
    if not all(text.strip() for text in texts):
        raise ValueError("a name is empty; write what the label is called")
    if len(set(texts)) < 2:
        raise ValueError(f"{len(set(texts))} named; classification needs two labels or more: {right}")
    if isinstance(given, dict):
        return dict(zip(given, texts, strict=True))
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise ValueError(f"{twice} is in the list twice; {{label: {twice}, label: {twice}}} joins labels")
    return texts


def _as_text_columns(given: Any) -> str | list[str]:
    """``data.text``: a column, or two. Raises ValueError for anything else."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(column, str) for column in given) or len(given) != 2:
        raise ValueError(f"{given!r} is neither the name of a column nor two of them; write text, or [question, text]")
    if given[0] == given[1]:
        raise ValueError(f"{given[0]} is named twice; name two columns, or one without brackets")
    return given


def _as_label_columns(given: Any) -> str | list[str] | None:
    """``data.label``: a column, or several that hold 0 and 1. Raises ValueError for anything else."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(isinstance(column, str) for column in given) or len(given) < 2:
        right = "write label, or [toxic, insult] for columns of 0 and 1"
        raise ValueError(f"{given!r} is neither the name of a column nor several of them; {right}")
    if twice := next((column for column in given if given.count(column) > 1), None):
        raise ValueError(f"{twice} is named twice; name each column once")
    return given


def _as_missing_labels(given: Any) -> str | list[str] | None:
    """``data.missing_labels``: ``refuse``, ``drop``, or the words that stand for no label. Raises ValueError for
    anything else."""
    if given in (None, "refuse", "drop"):
        return given
    if not isinstance(given, list) or not given or not all(isinstance(word, str | int | float) for word in given):
        raise ValueError(f"{given!r} is not one of refuse, drop; nor a list of words for no label, such as [nan]")
    return [str(word) for word in given]


def _as_filter(given: Any) -> dict[str, Any] | None:
    """``data.filter``: a column -> the value, or the list of values, that its rows are to have. Raises ValueError for
    anything else."""
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


def _as_class_weights(given: Any) -> dict[str, Any] | str | None:
    """``train.class_weights``: null, ``balanced``, or a label -> its weight. Raises ValueError for anything else."""
    if given is None or given == "balanced":
        return given
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{given!r} weighs no labels; write balanced, or {{LABEL: 2.5}} (others weigh 1)")
    return given


ClassWeights = Annotated[dict[str, Any] | str | None, PlainValidator(_as_class_weights)]
Filter = Annotated[dict[str, Any] | None, PlainValidator(_as_filter)]
TextColumns = Annotated[str | list[str], PlainValidator(_as_text_columns)]
LabelColumns = Annotated[str | list[str] | None, PlainValidator(_as_label_columns)]
MissingLabels = Annotated[str | list[str] | None, PlainValidator(_as_missing_labels)]
Sources = dict[str, str | list[str]] | None
LabelNames = Annotated[dict[str, str] | list[str] | None, PlainValidator(_as_label_names)]


class Data(Section):
    """Which texts and labels, and how long a text may be."""

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
        """The files of ``files`` and of all sources, as they are written; a name may be a pattern."""
        written = [path for path in (self.files.model_dump().values() if self.files else ()) if path]
        for key in SOURCE_KEYS.values():
            for source in (getattr(self, key) or {}).values():
                written += [source] if isinstance(source, str) else source
        return written

    @property
    def text_columns(self) -> list[str]:
        """The columns of the texts: one, or two whose texts are classified together."""
        return [self.text] if isinstance(self.text, str) else self.text

    @property
    def label_columns(self) -> list[str]:
        """The columns of the labels: one, or several that hold 0 and 1; none for a task without labels."""
        return self.label if isinstance(self.label, list) else [] if self.label is None else [self.label]


class LoRA(Section):
    """Low-rank adaptation, trained instead of the weights."""

    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Annotated[list[str], Field(min_length=1)] | None = None


class Train(Section):
    """The optimisation."""

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
    """The gate's comparison before the run."""

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
    """Facts of the model card that nothing here can know: a licence's id on the hub, and language codes."""

    license: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")] | None = None
    language: list[Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")]] | None = None
