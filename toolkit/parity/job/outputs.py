"""Access to the outputs of a user's model or module.

An output is a tensor, a tuple, a mapping, a dataclass or an object of a library's own output class.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.parity.job import user_code
from toolkit.parity.job.pair import batches_in


@dataclass
class StepOutput:
    """Output of a pair's model for a step's batches.

    Attributes:
        loss: scalar tensor, the sum of ``losses`` if there are several; None if only a forward is compared and the
            model returns none.
        logits: logits of the model; None if the file defines the loss, or for several batches.
        losses: loss terms by name if there are several; otherwise empty.
        scores: logits of each batch without a loss, by the batch's name, if there are several batches.
    """

    loss: Any
    logits: Any = None
    losses: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)


def compute_step(
    source: Any,
    model: Any,
    inputs: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
    cross_entropy: Callable[[Any, Any], Any],
    *,
    needs_loss: bool,
) -> StepOutput:
    """Return the output of a side's model for a step's batches (:func:`.pair.batches_in`).

    The loss comes from the file's own function, otherwise from the model (:func:`loss_and_logits`), otherwise from the
    cross entropy of its logits against ``labels``. The loss of several batches is the sum of their losses, which are
    also kept separately.

    Args:
        source: imported module of the side's file.
        model: model of the side.
        inputs: batches of the step.
        needs_loss: whether a loss is required; False if only a forward is compared.
        is_tensor: function that returns whether a value is a tensor of the framework.
        cross_entropy: the framework's cross entropy of scores (N, C) and labels (N,).

    Raises:
        UserCodeError: the model returns no loss, and there are no labels and logits to compute a loss from.
    """
    step_outputs = [
        _compute_batch(source, model, batch, is_tensor, cross_entropy, needs_loss=needs_loss)
        for batch in batches_in(inputs)
    ]
    if len(step_outputs) == 1:
        return step_outputs[0]
    losses = {
        f"batch {number}": output.loss for number, output in enumerate(step_outputs, 1) if output.loss is not None
    }
    named_losses = {
        f"{name} of batch {number}": loss
        for number, output in enumerate(step_outputs, 1)
        for name, loss in output.losses.items()
    }
    # Without a loss, only the logits show computations after the last module.
    scores = {f"batch {number}": output.logits for number, output in enumerate(step_outputs, 1) if output.loss is None}
    return StepOutput(sum(losses.values()) if losses else None, None, {**named_losses, **losses}, scores)


def _compute_batch(
    source: Any,
    model: Any,
    inputs: Mapping[str, Any],
    is_tensor: Callable[[Any], bool],
    cross_entropy: Callable[[Any, Any], Any],
    *,
    needs_loss: bool,
) -> StepOutput:
    """Return the output of a side's model for one batch (:func:`compute_step`)."""
    if hasattr(source, "loss"):
        loss, logits = source.loss(model, inputs), None
    else:
        loss, logits = loss_and_logits(model(**_select_inputs(model, inputs)), is_tensor)
        if loss is None and logits is not None and "labels" in inputs:
            loss = cross_entropy(logits.reshape((-1, logits.shape[-1])), inputs["labels"].flatten())
    if loss is None and needs_loss:
        raise user_code.UserCodeError(
            f"{user_code.display_path(source)}: the model gives no loss, and there are no logits and labels to make "
            "one of; define loss(model, batch), or compare the forward alone (--forward-only)"
        )
    losses = {} if is_tensor(loss) else several_losses(loss, is_tensor)
    return StepOutput(sum(losses.values()) if losses else loss, logits, losses)


def _select_inputs(model: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs of a model's forward: a batch, without ``labels`` if the forward does not accept them.

    Only the loss needs the labels.

    Args:
        model: model of a side.
        inputs: the batch, by name.
    """
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters
    except (TypeError, ValueError):  # a compiled function has no signature
        return inputs
    if "labels" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return inputs
    return {name: value for name, value in inputs.items() if name != "labels"}


def parts_of(output: Any) -> Iterable[Any]:
    """Return the parts of a module's output in their order, or () if the output has no parts."""
    if isinstance(output, Mapping):
        return list(output.values())
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name) for field in dataclasses.fields(output)]
    if hasattr(output, "to_tuple"):
        return output.to_tuple()
    return output if isinstance(output, (tuple, list)) else ()


def part(output: Any, name: str) -> Any:
    """Return a part of a model's output, or None if the output has no such part.

    Args:
        output: mapping, or object with attributes.
        name: key or attribute of the part, such as ``loss``.
    """
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def several_losses(losses: Any, is_tensor: Callable[[Any], bool]) -> dict[str, Any]:
    """Return several losses by name, or {} if the value is not several scalar tensors.

    The losses of a tuple are named by their numbers, ``1``, ``2`` and so on.

    Args:
        losses: value that a model or a file's ``loss`` has returned.
        is_tensor: function that returns whether a value is a tensor of the framework.
    """
    named_losses = losses.items() if isinstance(losses, Mapping) else enumerate(parts_of(losses), 1)
    losses_by_name = {str(name): one for name, one in named_losses}
    are_scalars = all(is_tensor(one) and one.ndim == 0 for one in losses_by_name.values())
    return losses_by_name if len(losses_by_name) > 1 and are_scalars else {}


def loss_and_logits(output: Any, is_tensor: Callable[[Any], bool]) -> tuple[Any, Any]:
    """Return the loss and the logits in a model's output, each None if it is absent.

    They are the parts with these names; otherwise a leading scalar and the tensor after it; otherwise the first tensor
    as logits. Several losses are returned by name.

    Args:
        output: output of the model.
        is_tensor: function that returns whether a value is a tensor of the framework.
    """
    if is_tensor(output):
        return (output, None) if output.ndim == 0 else (None, output)
    loss, logits = (one if is_tensor(one) else None for one in (part(output, "loss"), part(output, "logits")))
    if loss is not None or logits is not None:
        return loss, logits
    if several := several_losses(output, is_tensor):
        return several, None
    first, second, *_ = [*(one for one in parts_of(output) if is_tensor(one)), None, None]
    return (first, second) if first is not None and first.ndim == 0 else (None, first)
