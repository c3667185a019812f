"""The job of the two workers: the content of ``job.json``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from toolkit.parity.job.pair import Pair
from toolkit.parity.measure.updates import count_update_rows

#: Schema of the job folder, increased whenever a worker writes or needs other files.
SCHEMA = 7


#: Task of a recipe, by the head of the model.
TASKS = {
    "sequence_classification": "classification",
    "question_answering": "question_answering",
    "causal_lm": "language_modeling",
    "masked_lm": "masked_language_modeling",
    "token_classification": "token_classification",
}


@dataclass(frozen=True)
class TokenizerJob:
    """A tokenizer to compare, with the texts that both sides encode.

    Attributes:
        kind: name of the kind (:attr:`.family.TokenizerKind.kind`).
        texts: texts of the run's data, and adversarial texts.
        max_length: number of tokens that a text is padded or cut to.
        path: path of the SentencePiece model, or of the folder with ``vocab.json`` and ``merges.txt``; None for bytes.
        offsets: whether the characters that each token stands for are compared, too.
        padded: number of first texts that are also compared padded and cut; None for every text.
    """

    kind: str
    texts: list[str]
    max_length: int
    path: str | None = None
    offsets: bool = False
    padded: int | None = None

    def numbered_texts(self) -> list[tuple[str, bool]]:
        """Return each text, and whether it is also compared padded and cut."""
        return [(text, self.padded is None or number < self.padded) for number, text in enumerate(self.texts)]


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a run's optimizer updates, with the names of a recipe's ``train`` section.

    The defaults are for a gate without a recipe: a short run with accumulation, whose first updates are warm-up.
    """

    max_steps: int = 12
    batch_size: int = 2
    gradient_accumulation_steps: int = 2
    learning_rate: float = 1e-3
    lr_scheduler: str = "linear"
    warmup_ratio: float = 0.25
    weight_decay: float = 0.01
    optimizer: str = "adamw"
    adam_beta1: float | None = 0.9
    adam_beta2: float | None = 0.999
    adam_epsilon: float | None = 1e-8
    momentum: float | None = None
    max_grad_norm: float | None = 1.0

    @property
    def examples_of_update(self) -> int:
        """Number of the run's examples that the gate uses in each update."""
        return count_update_rows(self.batch_size, self.gradient_accumulation_steps)


@dataclass(frozen=True)
class ComparisonSettings:
    """Settings that a gate's request (:class:`.request.GateRequest`) and the workers' job have in common.

    Attributes:
        model: name of the family, one of ``models.families.FAMILIES``, or :data:`.pair.PAIR`.
        head: name of the model's head, one of ``HEADS`` in the family's ``weights``.
        config: Hugging Face's configuration keys and their values.
        dtypes: dtypes of the comparison. ``float64`` decides whether the function is the same, ``float32`` whether it
            is as accurate, ``bfloat16`` whether it is in mixed precision.
        device: ``cpu`` or ``gpu``, for both sides.
        seed: seed of the dropout masks and rotations.
        port: settings of the port itself that are not part of the model: ``backward``, ``residual``, ``recompute``.
        training: settings of the run's updates.
        tokenizer: tokenizer to compare, with texts of the run's data; None without a tokenizer.
        class_weights: weight of each class in the training loss: torch's ``CrossEntropyLoss(weight=...)`` for one
            label per text, ``BCEWithLogitsLoss(pos_weight=...)`` for several; None for equal weights. The
            loss of evaluation is not weighted.
        label_smoothing: label smoothing of the training loss, torch's ``CrossEntropyLoss(label_smoothing=...)``.
        judge_reference_reversible: whether to measure the reference's own reversible backward, too. Nothing is judged
            by it.
        checkpoint: folder of the safetensors that the weights were read from, which each side reads with its own
            loader; None without a checkpoint.
        checkpoint_config: configuration of the model in ``checkpoint``, if ``config`` has only the first of its
            positions; otherwise None.
        origin: the hub repository and commit of ``checkpoint``, in words; None for a model that is not from the hub.
        at_once: whether the workers run at the same time, as both fit the memory.
        pair: the user's own port and reference; None for a family.
        lora: settings of the adapter (``rank``, ``alpha``, ``dropout``, ``targets``) and the parameters that are also
            trained (``whole``); None without an adapter.
    """

    model: str
    head: str
    config: dict[str, Any]
    _: KW_ONLY
    dtypes: tuple[str, ...] = ("float64", "float32")
    device: str = "cpu"
    seed: int = 0
    port: dict[str, Any] = field(default_factory=dict)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    tokenizer: TokenizerJob | None = None
    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    judge_reference_reversible: bool = False
    checkpoint: str | None = None
    checkpoint_config: dict[str, Any] | None = None
    origin: str | None = None
    at_once: bool = False
    pair: Pair | None = None
    lora: dict[str, Any] | None = None

    def common(self) -> dict[str, Any]:
        """Return the attributes of this class by name, without the attributes that a subclass adds."""
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(ComparisonSettings)}


@dataclass(frozen=True)
class Job(ComparisonSettings):
    """A training step to run on both sides.

    Attributes:
        noise_runs: number of runs of the reference that measure its rounding, in addition to R64, by dtype.
        updates: number of parameter updates after the step.
        spare_memory: whether the workers keep few tensors in memory.
        brief: whether the model is so large that checks which smaller models also show are left out (the effect of
            hooks, the port's own generator with recomputed layers), and the port's plain gradients are computed from
            each layer's input, not every activation.
        threads: number of threads of each side.
        reference_python: interpreter of the reference.
        mutants: names of faults that the port is measured with, one after another.
        streamed: whether the model is compared stage by stage.
        lowered: products that ``bfloat16`` computes in bfloat16 (:data:`models.operations.precision.PRODUCTS`), on both
            sides; other operations stay in float32.
        kernels: kinds of kernels that the port takes from the reference in a float32 step that is compared bit for bit;
            None for a gate.
        rounded: keys of a pair's constants that Paddle's kernels hold in float32. If operations are traced, and in
            training, the reference also runs with these constants in float32.
        own_examples: number of the batch's first examples that are the following run's; None if no run follows.
    """

    _: KW_ONLY
    noise_runs: dict[str, int]
    updates: int
    spare_memory: bool
    brief: bool
    threads: int
    reference_python: str
    mutants: list[str] = field(default_factory=list)
    streamed: bool = False
    lowered: tuple[str, ...] = ()
    kernels: list[str] | None = None
    rounded: list[str] = field(default_factory=list)
    own_examples: int | None = None
    schema: int = SCHEMA

    @property
    def task(self) -> str:
        """Task of recipes with this head, which determines the terms of the loss; empty for a pair."""
        return TASKS.get(self.head, "")
