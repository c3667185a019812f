"""The runs of a model in evaluation mode whose tensors are compared, in addition to the step.

This mode selects, measures and exports the best weights. Tensor names have the evaluation's name before their kind:
``evaluation/output:MODULE``, ``shorter/logits``, ``decoding/logits#2``, ``narrowed/logits``, ``unpadded/logits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from toolkit.parity.measure.updates import IGNORED_LABEL

#: Names of two runs in train mode: the step, and the loss after the updates. Each run has its own random draws, in a
#: file with the run's name.
TRAINING, FINAL_LOSS = "training", "updated"
#: Names of two evaluations: the unchanged batch (except a single text, see :func:`build_batches`), and the batch with
#: shorter texts. Only evaluation pads and chunks texts of a length that training does not have.
EVALUATIONS = WHOLE, SHORTER = ("evaluation", "shorter")
#: Name of the evaluation that decodes tokens one by one, each with the cached keys and values of all earlier tokens if
#: the model has a cache.
DECODING = "decoding"
#: Number of tokens that are decoded one by one.
NUM_DECODED = 3
#: Names of two evaluations that compute the batch's scores again: without the positions of the last layer that the
#: head does not read, and also without the padding that the task's evaluations omit.
NARROW, NO_PADDING = "narrowed", "unpadded"
#: Heads whose evaluations omit padding that does not change the scores.
READ_WITHOUT_PADDING = ("sequence_classification", "question_answering", "token_classification")
#: Name of the step's second run, without a hook on any layer, as in training.
NO_HOOKS = "unwatched"
#: All runs with recorded draws or choices.
RUNS = (TRAINING, FINAL_LOSS, *EVALUATIONS)

#: Tensor of NumPy or of a framework.
Tensor = TypeVar("Tensor", bound=Any)


def build_batches(
    batch: Mapping[str, Tensor], config: Mapping[str, Any], length_unit: int = 1, *, is_unpadded: bool
) -> dict[str, dict[str, Tensor]]:
    """Return the batch of each evaluation, by the evaluation's name.

    Args:
        batch: ``input_ids`` (B, T) and other tensors; tensors with T columns are cut, too.
        config: the model's configuration, with the id of its padding token.
        is_unpadded: whether the port omits padding. The second half of a single text is then replaced by padding,
            because a full text has none.
        length_unit: number that the length of a text must be a multiple of in evaluation.
    """
    length = batch["input_ids"].shape[1]
    batches = {WHOLE: _pad_second_half(batch, config) if is_unpadded and len(batch["input_ids"]) == 1 else dict(batch)}
    if 0 < (short_length := choose_shorter_length(length, length_unit)) < length:
        batches[SHORTER] = {name: _cut_texts(value, length, short_length) for name, value in batch.items()}
    return batches


def split_for_decoding(batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the inputs of successive calls that decode texts: first prefixes, then single tokens.

    The prefixes are followed by :data:`NUM_DECODED` calls with one token of each text. Each call continues from the
    state that the previous call returned.

    Args:
        batch: ``input_ids`` and ``attention_mask``, (B, T) each.
    """
    length = choose_shorter_length(batch["input_ids"].shape[1])
    num_first = max(1, length - NUM_DECODED)
    return [
        {"input_ids": batch["input_ids"][:, start:end], "attention_mask": batch["attention_mask"][:, :end]}
        for start, end in [(0, num_first), *((position, position + 1) for position in range(num_first, length))]
    ]


def choose_shorter_length(length: int, length_unit: int = 1) -> int:
    """Return about three quarters of a length: an odd number, or a multiple of ``length_unit``.

    An odd number is not a multiple of the length of a chunk.

    Args:
        length: number of tokens of the batch's texts.
        length_unit: number that the length of a text must be a multiple of in evaluation; 1 for no restriction.
    """
    target_length = max(3, 3 * length // 4 - 1) | 1
    return target_length // length_unit * length_unit


def is_scored(batch: Mapping[str, Tensor]) -> bool:
    """Return whether a batch has a label that is not ignored, so that it has a loss.

    Shorter texts may have none.

    Args:
        batch: tensors by name, with ``labels``, or ``start_positions`` and ``end_positions``.
    """
    if "labels" in batch:
        labels = batch["labels"]
        is_for_tokens = labels.shape == batch["input_ids"].shape
        return bool(((labels[:, 1:] if is_for_tokens else labels) != IGNORED_LABEL).any())
    length = batch["input_ids"].shape[1]
    return all(bool((batch[f"{end}_positions"] < length).any()) for end in ("start", "end"))


def name_in_run(run: str, name: str) -> str:
    """Return a tensor's name in a run: ``RUN/NAME``, or the plain name in the step."""
    return name if run == TRAINING else f"{run}/{name}"


def name_in_step(name: str) -> str:
    """Return a tensor's name in the step, given its name in the step without hooks.

    Other names are returned unchanged. Example: ``unwatched/loss`` -> ``loss``.
    """
    return name.removeprefix(name_in_run(NO_HOOKS, ""))


def name_choice(kind: str, module_name: str) -> str:
    """Return the name of a choice: ``evaluation/buckets:MODULE``, or ``evaluation/choice`` without a module.

    Args:
        kind: kind of the choice, such as ``buckets``.
        module_name: path of the module with the run's name before it, such as ``evaluation/MODULE``.
    """
    run, slash, module = module_name.rpartition("/")
    return f"{run}{slash}{kind}:{module}" if module else f"{run}{slash}{kind}"


def _pad_second_half(batch: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the batch with the second half of each text padded, or unchanged if nothing marks padding."""
    padding = {"input_ids": config.get("pad_token_id"), "attention_mask": 0}
    if padding["input_ids"] is None or "attention_mask" not in batch:
        return dict(batch)
    padded_tensors = {name: batch[name].clone() for name in padding}
    for name, value in padding.items():
        padded_tensors[name][:, (batch[name].shape[1] + 1) // 2 :] = value
    return {**batch, **padded_tensors}


def _cut_texts(tensor: Tensor, length: int, short_length: int) -> Tensor:
    """Return the first ``short_length`` columns of a tensor with ``length`` columns; another tensor unchanged."""
    return tensor[:, :short_length] if len(tensor.shape) == 2 and tensor.shape[1] == length else tensor
