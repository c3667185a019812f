"""The runs whose tensors are compared in evaluation mode, the mode that selects, measures and exports the best weights.

Tensor names have the evaluation's name before their kind: ``evaluation/output:MODULE``, ``shorter/logits``,
``decoding/logits#2``, ``narrowed/logits``, ``unpadded/logits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from toolkit.parity.measure.updates import IGNORED_LABEL

#: The step itself, and the loss after the updates. Each run has its own draws, in a file of its name.
TRAINING, FINAL_LOSS = "training", "updated"
#: The batch as it is (except a single text, see :func:`build_batches`), and the batch with shorter texts. Lengths that
#: training does not have are padded and chunked only in evaluation.
EVALUATIONS = WHOLE, SHORTER = ("evaluation", "shorter")
#: Tokens that are decoded one by one, each with the keys and values of all earlier tokens, if a model can do that.
DECODING = "decoding"
NUM_DECODED = 3
#: The scores of the batch again, without the positions of the last layer that the head does not read, and also without
#: the padding that the task's evaluations omit.
NARROW, NO_PADDING = "narrowed", "unpadded"
READ_WITHOUT_PADDING = ("sequence_classification", "question_answering", "token_classification")
#: The step again, as training runs it: without a hook on any layer.
NO_HOOKS = "unwatched"
#: All runs that have random draws.
RUNS = (TRAINING, FINAL_LOSS, *EVALUATIONS)

Tensor = TypeVar("Tensor", bound=Any)


def build_batches(
    batch: Mapping[str, Tensor], config: Mapping[str, Any], is_unpadded: bool, length_unit: int = 1
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
    """Return the inputs of successive calls: the first tokens of each text, then :data:`NUM_DECODED` single tokens.

    Each call continues from the state that the previous call returned.
    """
    length = choose_shorter_length(batch["input_ids"].shape[1])
    num_first = max(1, length - NUM_DECODED)
    return [
        {"input_ids": batch["input_ids"][:, start:end], "attention_mask": batch["attention_mask"][:, :end]}
        for start, end in [(0, num_first), *((position, position + 1) for position in range(num_first, length))]
    ]


def choose_shorter_length(length: int, length_unit: int = 1) -> int:
    """Return about three quarters of a length: an odd number, or a multiple of ``length_unit`` if that is above 1.

    An odd number is not a multiple of the length of a chunk.
    """
    target_length = max(3, 3 * length // 4 - 1) | 1
    return target_length // length_unit * length_unit


def is_scored(batch: Mapping[str, Tensor]) -> bool:
    """Return whether a batch has a label that is not ignored. Shorter texts may have none, and so no loss."""
    if "labels" in batch:
        labels = batch["labels"]
        is_for_tokens = labels.shape == batch["input_ids"].shape
        return bool(((labels[:, 1:] if is_for_tokens else labels) != IGNORED_LABEL).any())
    length = batch["input_ids"].shape[1]
    return all(bool((batch[f"{end}_positions"] < length).any()) for end in ("start", "end"))


def name_in_run(run: str, name: str) -> str:
    """Return a tensor's name in a run: its plain name in the step, otherwise with the run's name before it."""
    return name if run == TRAINING else f"{run}/{name}"


def name_in_step(name: str) -> str:
    """Return the name in the step of a tensor of the step without hooks; other names are returned unchanged."""
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
    return tensor[:, :short_length] if len(tensor.shape) == 2 and tensor.shape[1] == length else tensor
