"""Conversion of a gate's request to a job folder that both workers can run."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from models.operations.precision import PRODUCTS
from toolkit.machine import runtime
from toolkit.machine.scratch import scratch_folder
from toolkit.parity.exchange import files
from toolkit.parity.inputs.class_labels import contrast_labels, spread_labels_by_weight
from toolkit.parity.inputs.synthetic import random_batch
from toolkit.parity.inputs.texts import FULL, MOSTLY_PADDED, layouts_of
from toolkit.parity.inputs.tokenizer_texts import ADVERSARIAL, random_texts, texts_of_characters
from toolkit.parity.job.family import family
from toolkit.parity.job.job import TASKS, Job, TokenizerJob, TrainingSettings
from toolkit.parity.measure.updates import SHARES, count_loss_terms, make_distinct_inputs
from toolkit.parity.request.request import GateRequest

#: Number of runs of the reference that measure its rounding, in addition to the run that computes R64, by dtype.
NOISE_RUNS = {"float32": 5, "float64": 2}
#: The same number in bfloat16, if the gate judges bfloat16: for most models, and for large models and long texts.
LOWERED_RUNS, FEW_LOWERED_RUNS = {"bfloat16": 5}, {"bfloat16": 3}
#: The same number for large models and long texts, whose tensors have so many elements that a few runs suffice.
FEW_NOISE_RUNS = {"float32": 3, "float64": 1}
#: The same number in a gate stage by stage that does not judge float32. The noise of float32 is needed for a bound of
#: float64.
FEW_RUNS_OF_FLOAT64 = {"float32": 2, "float64": 1}
#: Smallest number of tokens in a batch for which the workers keep few tensors, and run one after the other unless the
#: memory is enough for both. With all activations in float64, 6 layers of 256 dimensions on 16,384 tokens took 8.8 and
#: 8.3 GB at the same time.
LONG = 2**14
#: Keys of a batch that only the loss uses.
LABELS = ("labels", "start_positions", "end_positions")
#: Number of synthetic examples that are added to a run's examples (:func:`added_examples`).
NUM_ADDED = 3
#: Largest number of texts of the run's data whose tokens are compared, in addition to the adversarial texts.
TOKENIZER_TEXTS = 64
#: Number of random texts whose tokens are compared, drawn by a gate's seed.
DRAWN_TEXTS = 200


def is_streamed(request: GateRequest) -> bool:
    """Return whether a request's model is compared stage by stage, since it is too large to be held whole."""
    if request.streamed is not None:
        return request.streamed
    return family(request.model).is_compared_by_stages(request.config, request.head)


def is_brief(request: GateRequest) -> bool:
    """Return whether the model is so large that it is compared as a whole with fewer checks.

    :attr:`~toolkit.parity.job.job.Job.brief` lists the omitted checks.
    """
    if request.pair is not None:
        return request.pair.is_large
    return not is_streamed(request) and family(request.model).is_large(request.config, request.head)


def spares_memory(request: GateRequest) -> bool:
    """Return whether the workers keep few tensors in memory: for a large model or a long text.

    They then run one after the other unless the request states that both fit.
    """
    return is_brief(request) or ("input_ids" in request.batch and math.prod(shape_of(request)) >= LONG)


def job_of(request: GateRequest) -> Job:
    """Return the workers' job for a request whose model is compared as a whole."""
    model_family, full_config = family(request.model), request.checkpoint_config
    settings = {
        **request.common(),
        "config": model_family.keys(request.config),
        "training": _round_settings(request.training),
        "tokenizer": _with_adversarial_texts(request.tokenizer, request.seed),
        "class_weights": _as_float32(request.class_weights),
        "checkpoint_config": None if full_config is None else model_family.keys(full_config),
        "at_once": request.at_once or not spares_memory(request),
    }
    return Job(
        **settings,
        noise_runs=_noise_runs(request),
        updates=0 if request.pair and request.pair.is_large else min(len(SHARES), request.training.max_steps),
        lowered=PRODUCTS,
        spare_memory=spares_memory(request),
        brief=is_brief(request),
        threads=request.threads or runtime.default_num_threads(),
        reference_python=workers_of(request)["reference"],
        own_examples=len(request.batch["input_ids"]) if request.widened else None,
    )


def _noise_runs(request: GateRequest) -> dict[str, int]:
    """Return the number of the reference's noise runs for a request, by dtype."""
    few = spares_memory(request)
    runs = FEW_NOISE_RUNS if few else NOISE_RUNS
    if "bfloat16" not in request.dtypes:
        return runs
    return {**runs, **(FEW_LOWERED_RUNS if few else LOWERED_RUNS)}


def streamed_job_of(request: GateRequest) -> Job:
    """Return the workers' job for a request whose model is compared stage by stage."""
    dtypes = tuple(dtype for dtype in request.dtypes if dtype != "bfloat16")
    runs = FEW_NOISE_RUNS if "float32" in dtypes else FEW_RUNS_OF_FLOAT64
    return replace(job_of(request), dtypes=dtypes, noise_runs=runs, updates=0, streamed=True)


def batch_of(request: GateRequest) -> dict[str, np.ndarray]:
    """Return the request's batch, followed by :func:`added_examples` synthetic examples, by name.

    The synthetic examples have the same length and keys.
    """
    own_batch = {name: np.asarray(value) for name, value in request.batch.items()}
    count = added_examples(request)
    if not count:
        return own_batch
    length = own_batch["input_ids"].shape[1]
    layouts = [MOSTLY_PADDED] if count == 1 else list(layouts_of(count))
    if "attention_mask" not in own_batch:
        layouts = [FULL] * count
    added_batch = random_batch(request.config, request.head, count, length, request.seed, request.model, layouts)
    if request.class_weights is not None:
        added_batch["labels"] = contrast_labels(added_batch["labels"], request.class_weights, own_batch["labels"])
    return {name: np.concatenate([value, added_batch[name].astype(value.dtype)]) for name, value in own_batch.items()}


def shape_of(request: GateRequest) -> tuple[int, int]:
    """Return the shape (B, T) of :func:`batch_of` without building the batch."""
    examples, length = np.shape(request.batch["input_ids"])
    return examples + added_examples(request), length


def added_examples(request: GateRequest) -> int:
    """Return the number of synthetic examples that are added to a request's batch.

    It is :data:`NUM_ADDED`, or one more to make the total odd. All examples together are at most half of a :data:`LONG`
    batch, which both workers hold at the same time, but one example is always added to several. A large model gets at
    most one. A reference that accepts only one example gets none.
    """
    pad_token_id = family(request.model).pad_token_id(request.config)
    if not request.widened or (request.head == "sequence_classification" and pad_token_id is None):
        return 0
    examples, length = request.batch["input_ids"].shape
    num_added = NUM_ADDED + (examples + NUM_ADDED + 1) % 2
    room = LONG // 2 // length - examples
    return min(1 if is_streamed(request) or is_brief(request) else num_added, max(room, int(examples > 1), 0))


def write_job(
    job: Job,
    weights: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    folder: Path,
) -> None:
    """Fill the job folder with the files that both workers need.

    Args:
        job: settings of the comparison.
        weights: weights of the model, by name.
        batch: batch of the step, by name.
        labels: labels of the examples of an update, and the other compared inputs of these examples, by name.
        folder: folder of the job.
    """
    make_sides(folder)
    files.write_tensors(folder / "weights.safetensors", weights)
    files.write_tensors(folder / "batch.safetensors", batch)
    files.write_tensors(folder / "labels.safetensors", labels)
    files.write_json(folder / "job.json", job)


def write_request(
    request: GateRequest, weights: Mapping[str, np.ndarray], folder: Path, mutants: Sequence[str] = ()
) -> None:
    """Fill the job folder for a request whose model is compared as a whole.

    Args:
        request: request for the gate.
        weights: weights of the model, by name.
        folder: folder of the job.
        mutants: names of the mutants to measure in addition to the port.
    """
    labels = labels_of(request)
    examples = {**make_distinct_inputs(len(next(iter(labels.values())))), **labels}
    write_job(replace(job_of(request), mutants=list(mutants)), weights, batch_of(request), examples, folder)


@contextlib.contextmanager
def scratch_job() -> Iterator[Path]:
    """Yield a job folder that is removed after the ``with`` block."""
    with scratch_folder("parity-") as scratch:
        yield scratch


def make_sides(folder: Path) -> None:
    """Create the folder of each worker's results in a job folder."""
    for side in ("reference", "candidate"):
        (folder / side).mkdir(parents=True, exist_ok=True)


def workers_of(request: GateRequest) -> dict[str, str]:
    """Return the path of the interpreter that runs each side, by ``reference`` and ``candidate``."""
    interpreters = {"reference": request.reference_python, "candidate": request.port_python}
    return {side: python or sys.executable for side, python in interpreters.items()}


def labels_of(request: GateRequest) -> dict[str, np.ndarray]:
    """Return the labels of the examples of an update, by their keys in a batch.

    Examples with only ignored labels are left out if there are others: they would only scale the gradient of a
    micro-batch, which Adam does not see. With class weights, the labels run from the heaviest to the lightest class
    (:func:`.class_labels.spread_labels_by_weight`).
    """
    label_batch = request.batch if request.labels is None else request.labels
    labels = {key: np.asarray(value) for key, value in label_batch.items() if key in LABELS}
    terms = count_loss_terms(TASKS[request.head], labels)
    rows = np.flatnonzero(terms) if terms.any() else np.arange(len(terms))
    labels = {key: value[rows[: request.training.examples_of_update]] for key, value in labels.items()}
    if request.class_weights is not None:
        labels["labels"] = spread_labels_by_weight(labels["labels"], request.class_weights)
    return labels


def _round_settings(settings: TrainingSettings) -> TrainingSettings:
    """Return the settings of updates with their numbers rounded to float32, as Paddle stores them.

    The share of warm-up is not rounded, since it stands for whole updates.
    """
    rounded_settings: dict[str, Any] = {
        key: float(np.float32(value))
        for key, value in asdict(settings).items()
        if isinstance(value, float) and key != "warmup_ratio"
    }
    return replace(settings, **rounded_settings)


def _as_float32(class_weights: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return class weights rounded to float32, as the run stores them; None for equal weights."""
    return None if class_weights is None else tuple(np.asarray(class_weights, np.float32).tolist())


def _with_adversarial_texts(tokenizer: TokenizerJob | None, seed: int) -> TokenizerJob | None:
    """Return a tokenizer's job with adversarial and random texts in addition to its own texts.

    The random texts are not padded: it would show nothing more and cost a thousand times ``max_length``.

    Args:
        tokenizer: the job; None, which is returned, without a tokenizer.
        seed: seed of the random texts.
    """
    if tokenizer is None:
        return None
    padded_texts = [*tokenizer.texts[:TOKENIZER_TEXTS], *ADVERSARIAL]
    return replace(
        tokenizer,
        texts=[*padded_texts, *texts_of_characters(), *random_texts(seed, DRAWN_TEXTS)],
        padded=len(padded_texts),
    )
