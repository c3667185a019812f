"""What is compared in evaluation mode, in which the best weights are chosen, measured and exported.

Tensor names have the evaluation's name before their kind: ``evaluation/output:MODULE``, ``shorter/logits``,
``decoding/logits#2``, ``narrowed/logits``, ``unpadded/logits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from toolkit.parity.measure.updates import IGNORED_LABEL

#: The step itself, and the loss after the updates: each run has its own draws, in a file of its name.
TRAINING, FINAL_LOSS = "training", "updated"
#: The batch as it is (except a single text, see :func:`batches`), and with its texts cut: a training length is padded
#: and chunked, any other only in evaluation.
EVALUATIONS = WHOLE, SHORTER = ("evaluation", "shorter")
#: Tokens one by one, each with the keys and values of all before it, if a model can do that.
DECODING = "decoding"
NUM_DECODED = 3
#: The scores of the batch again, with what the head does not read left out of the last layer; and also without the
#: padding that the task's evaluations leave out.
NARROW, NO_PADDING = "narrowed", "unpadded"
READ_WITHOUT_PADDING = ("sequence_classification", "question_answering", "token_classification")
#: The step once more, as training makes it: without a hook on any layer.
NO_HOOKS = "unwatched"
#: All runs that draw.
RUNS = (TRAINING, FINAL_LOSS, *EVALUATIONS)

Tensor = TypeVar("Tensor", bound=Any)


def build_batches(
    batch: Mapping[str, Tensor], config: Mapping[str, Any], unpadded: bool, unit: int = 1
) -> dict[str, dict[str, Tensor]]:
    """The batch of each evaluation.

    Args:
        batch: ``input_ids`` (B, T) and others; those with T columns are cut, too.
        config: of the model, with the lengths that it can evaluate.
        unit: divisor that a text's length must have in evaluation.
        unpadded: whether the port leaves out padding; a single text may be full, and is given some.
    """
    length = batch["input_ids"].shape[1]
    found = {WHOLE: _half_padded(batch, config) if unpadded and len(batch["input_ids"]) == 1 else dict(batch)}
    if 0 < (shorter := choose_shorter_length(length, unit)) < length:
        found[SHORTER] = {name: _cut(value, length, shorter) for name, value in batch.items()}
    return found


def split_for_decoding(batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Inputs of successive calls, each to be given the state that the one before left: the first tokens of each text,
    then :data:`DECODED` more, one by one."""
    length = choose_shorter_length(batch["input_ids"].shape[1])
    first = max(1, length - NUM_DECODED)
    return [
        {"input_ids": batch["input_ids"][:, start:end], "attention_mask": batch["attention_mask"][:, :end]}
        for start, end in [(0, first), *((place, place + 1) for place in range(first, length))]
    ]


def choose_shorter_length(length: int, unit: int = 1) -> int:
    """About three quarters, and odd: a multiple of no chunk; of a ``unit`` above 1, the next multiple below."""
    wanted = max(3, 3 * length // 4 - 1) | 1
    return wanted // unit * unit


def is_scored(batch: Mapping[str, Tensor]) -> bool:
    """Whether any label is not ignored: of shorter texts there may be none, and no loss."""
    if "labels" in batch:
        labels = batch["labels"]
        of_tokens = labels.shape == batch["input_ids"].shape
        return bool(((labels[:, 1:] if of_tokens else labels) != IGNORED_LABEL).any())
    length = batch["input_ids"].shape[1]
    return all(bool((batch[f"{end}_positions"] < length).any()) for end in ("start", "end"))


def name_in_run(run: str, name: str) -> str:
    """A tensor's name in a run: plain in the step, else with the run's name before it."""
    return name if run == TRAINING else f"{run}/{name}"


def name_in_step(name: str) -> str:
    """The step's tensor that one of the step without hooks is judged as; other names as they are."""
    return name.removeprefix(name_in_run(NO_HOOKS, ""))


def name_choice(kind: str, place: str) -> str:
    """Name of a choice of ``kind`` at a named module, ``evaluation/buckets:MODULE``; else ``evaluation/choice``."""
    run, slash, module = place.rpartition("/")
    return f"{run}{slash}{kind}:{module}" if module else f"{run}{slash}{kind}"


def _half_padded(batch: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The first half of each text, at least a token, padded to its length; unchanged if nothing marks padding."""
    padding = {"input_ids": config.get("pad_token_id"), "attention_mask": 0}
    if padding["input_ids"] is None or "attention_mask" not in batch:
        return dict(batch)
    padded = {name: batch[name].clone() for name in padding}
    for name, value in padding.items():
        padded[name][:, (batch[name].shape[1] + 1) // 2 :] = value
    return {**batch, **padded}


def _cut(value: Tensor, length: int, shorter: int) -> Tensor:
    return value[:, :shorter] if len(value.shape) == 2 and value.shape[1] == length else value
