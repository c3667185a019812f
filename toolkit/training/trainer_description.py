"""Describe a trainer and its model field by field, and the results of one step bit for bit.

The gate's port process describes the model and trainer that it judges. :mod:`toolkit.finetune.judged_run` describes
those that are about to train, and compares the two descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from toolkit.files.digest import digest_array

if TYPE_CHECKING:
    from toolkit.training.trainer import Finetuner

#: The Trainer's arguments that set the loop and the schedule. The optimizer's own attributes are described separately.
TRAINER_ARGUMENTS = ("max_steps", "per_device_train_batch_size", "lr_scheduler_type", "warmup_steps")
#: Keys of the recipe's ``train`` section that :meth:`.trainer.Finetuner.training_step` reads.
RECIPE_KEYS = ("batch_size", "precision")
#: Attributes that are not described. `leaves_out_unread` skips computations that the head does not read; the gate
#: compares their results instead. `_is_initialized` is Paddle's own.
SKIPPED_ATTRIBUTES = ("leaves_out_unread", "_is_initialized")
PLAIN_TYPES = (bool, int, float, str, type(None))


def describe_trainer(trainer: Finetuner) -> dict[str, str]:
    """Return each plain attribute of the model, its parameters, the optimizer and the loop, by name.

    Each layer contributes its attributes. A parameter has its dtype and shape, and whether it is trained and decays.
    The loop has the clipping, schedule, micro-batches and precision.

    Call it before the first step: a forward may set attributes that the configuration leaves open.
    """
    trainer.create_optimizer_and_scheduler(trainer.schedule.max_steps)
    return dict(_fields(trainer))


def _fields(trainer: Finetuner) -> Iterator[tuple[str, str]]:
    """Yield names and values of everything that determines the training: model, parameters, optimizer and schedule."""
    model, optimizer = trainer.model, trainer.optimizer
    yield from _describe_attributes("config", model.config.to_hf())
    yield "class_weights", "none" if model.class_weights is None else _format_value(model.class_weights.tolist())
    common_attributes = _common_attributes()
    yield "label_smoothing", _format_value(model.label_smoothing)
    for path, layer in model.named_sublayers(include_self=True):
        prefix = path or "model"
        yield prefix, type(layer).__qualname__
        own_attributes = {
            key: value
            for key, value in vars(layer).items()
            if key not in common_attributes and key not in SKIPPED_ATTRIBUTES
        }
        yield from _describe_attributes(prefix, own_attributes)
    trained_ids = {id(parameter) for parameter in optimizer._parameter_list}
    decays_parameter = optimizer._apply_decay_param_fun
    for name, parameter in model.named_parameters():
        notes = (
            "is trained" if id(parameter) in trained_ids and not parameter.stop_gradient else "is left as it is",
            "decays" if decays_parameter is None or decays_parameter(parameter.name) else "does not decay",
        )
        yield f"parameter {name}", f"{parameter.dtype} {list(parameter.shape)}, {', '.join(notes)}"
    for title, part in {"optimizer": optimizer, "clipping": optimizer._grad_clip, "rate": trainer.lr_scheduler}.items():
        yield title, type(part).__qualname__
        yield from _describe_attributes(title, vars(part) if part is not None else {})
    yield from _describe_attributes("train", {key: getattr(trainer.recipe.train, key) for key in RECIPE_KEYS})
    yield from _describe_attributes("train", {key: str(getattr(trainer.args, key)) for key in TRAINER_ARGUMENTS})


def digest_step(model: Any, loss: Any) -> dict[str, str]:
    """Return the SHA-256 of a loss, and of each gradient by the name of its parameter."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: digest_array(value.numpy()) for name, value in {"loss": loss, **gradients}.items()}


def _describe_attributes(prefix: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name after ``prefix`` and the text of each attribute with a plain value."""
    for key, value in attributes.items():
        if _is_plain(value):
            yield f"{prefix}.{key}", _format_value(value)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, a dataclass or a sequence of these."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN_TYPES) or (is_dataclass(value) and not isinstance(value, type))


def _format_value(value: Any) -> str:
    """Format a value as text; floats get six digits, as many as float32 keeps of the gate's settings."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_value, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _common_attributes() -> set[str]:
    """Return the attributes that every Paddle layer has, except `training`: numbered names, hooks, sublayers."""
    from paddle import nn

    return set(vars(nn.Layer())) - {"training"}
