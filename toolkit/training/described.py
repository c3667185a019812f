"""Describe a trainer and its model field by field, and the results of one step bit for bit.

The gate's port process describes what it judges, and :mod:`toolkit.finetune.judged` what is about to train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from toolkit.files.digest import digest_of_array

if TYPE_CHECKING:
    from toolkit.training.trainer import Finetuner

#: The Trainer's arguments that make the loop and the schedule; the optimizer is described as it is.
ARGUMENTS = ("max_steps", "per_device_train_batch_size", "lr_scheduler_type", "warmup_steps")
#: Keys of ``train`` that :meth:`.trainer.Finetuner.training_step` reads.
SETTINGS = ("batch_size", "precision")
#: Attributes that are not described: whether a model leaves out what its head does not read, which the gate compares
#: by results, and a note of Paddle's.
UNREAD = ("leaves_out_unread", "_is_initialized")
PLAIN = (bool, int, float, str, type(None))


def described(trainer: Finetuner) -> dict[str, str]:
    """Every plain attribute of the model's layers, its parameters, the optimizer and the loop, by name.

    The trainer must have made no step: a forward may settle what a model's configuration leaves open.
    """
    trainer.create_optimizer_and_scheduler(trainer.schedule.max_steps)
    return dict(_fields(trainer))


def _fields(trainer: Finetuner) -> Iterator[tuple[str, str]]:
    model, optimizer = trainer.model, trainer.optimizer
    yield from _written("config", model.config.to_hf())
    yield "class_weights", "none" if model.class_weights is None else _text(model.class_weights.tolist())
    common = _common_attributes()
    yield "label_smoothing", _text(model.label_smoothing)
    for path, layer in model.named_sublayers(include_self=True):
        where = path or "model"
        yield where, type(layer).__qualname__
        own = {key: value for key, value in vars(layer).items() if key not in common and key not in UNREAD}
        yield from _written(where, own)
    trained = {id(parameter) for parameter in optimizer._parameter_list}
    decays = optimizer._apply_decay_param_fun
    for name, parameter in model.named_parameters():
        ways = (
            "is trained" if id(parameter) in trained and not parameter.stop_gradient else "is left as it is",
            "decays" if decays is None or decays(parameter.name) else "does not decay",
        )
        yield f"parameter {name}", f"{parameter.dtype} {list(parameter.shape)}, {', '.join(ways)}"
    for what, one in {"optimizer": optimizer, "clipping": optimizer._grad_clip, "rate": trainer.lr_scheduler}.items():
        yield what, type(one).__qualname__
        yield from _written(what, vars(one) if one is not None else {})
    yield from _written("train", {key: getattr(trainer.recipe.train, key) for key in SETTINGS})
    yield from _written("train", {key: str(getattr(trainer.args, key)) for key in ARGUMENTS})


def digests(model: Any, loss: Any) -> dict[str, str]:
    """SHA-256 of a loss, and of each gradient by its parameter's name."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: digest_of_array(value.numpy()) for name, value in {"loss": loss, **gradients}.items()}


def _written(where: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in attributes.items():
        if _is_plain(value):
            yield f"{where}.{key}", _text(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN) or (is_dataclass(value) and not isinstance(value, type))


def _text(value: Any) -> str:
    """Write a value out; floats as float32 holds them, as the gate gets a run's settings."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _common_attributes() -> set[str]:
    """Attributes of every Paddle layer but ``training``: numbered names, hooks, sublayers."""
    from paddle import nn

    return set(vars(nn.Layer())) - {"training"}
