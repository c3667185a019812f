"""One train-mode step of the port, in a dtype, with the reference's draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from models.families import part
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.job import files
from toolkit.parity.measure.naming import ModuleStack, numbered
from toolkit.parity.measure.updates import given_gradient

#: Called with the name and value of everything that is computed.
Measure = Callable[[str, np.ndarray], None]
#: What heads score with, besides the loss.
SCORES = ("logits", "start_logits", "end_logits")


class Step:
    """A port with the job's weights and batch. Subclasses say what a family needs beside what every model does.

    Args:
        folder: of the job, with what the reference wrote.
        dtype: ``float64`` or ``float32``.
        backward: one of :attr:`backwards`; by default the first.
    """

    #: The ways in which the port can make its gradients: that of training first, ``autograd`` among them.
    backwards: tuple[str, ...] = ("autograd",)
    #: The module whose output is the embedded input.
    embedded = ""

    def __init__(self, job: dict, folder: Path, dtype: str, backward: str | None = None) -> None:
        import paddle

        modeling, weights = part(job["model"], "modeling"), part(job["model"], "weights")
        self.settings = job["optimizer"]
        self.recorded = [
            folder / "reference" / f"draws-{number}.safetensors" for number in range(1, 2 + job["updates"])
        ]
        self.draws_by_name = files.read_tensors(self.recorded[0])
        self.rates = files.read_json(folder / "reference" / "rates.json")
        self.batch = {
            name: paddle.to_tensor(value) for name, value in files.read_tensors(folder / "batch.safetensors").items()
        }
        self.given = files.read_tensors(folder / "weights.safetensors")
        self.model = self.build(modeling.CLASSES[job["head"]], job["config"], backward or self.backwards[0])
        if dtype == "float64":
            self.model.to(dtype="float64")
        weights.load(self.model, self.given)
        self.constant_errors = self.take_constants(
            files.read_tensors(folder / "reference" / "constants.safetensors"),
        )
        self.model.train()

    def build(self, kind: type, keys: dict, backward: str):
        """The port of class ``kind``, with its gradients made as ``backward`` says."""
        raise NotImplementedError

    def take_constants(self, constants: dict[str, np.ndarray]) -> dict[str, float]:
        """Use the reference's constants in place of the port's own.

        Returns:
            How far its own were off, in units of rounding of what they are computed from; by name.
        """
        return {}

    @contextlib.contextmanager
    def given_choices(self) -> Iterator[None]:
        """The port's discrete choices are compared with R64's, then R64's are used, inside the ``with`` block."""
        yield

    def outputs_of(self, name: str, layer, output) -> dict[str, object] | None:
        """What to compare of a module whose output is no tensor or tuple of tensors; None for any other."""
        return None

    def facts(self) -> dict:
        """What else of the port the verdict needs to know."""
        from paddle import nn

        norms = {name: layer for name, layer in self.model.named_sublayers() if isinstance(layer, nn.LayerNorm)}
        return {"epsilons": {name: norm._epsilon for name, norm in norms.items()}}

    def run(self, measure: Measure, watched: bool = True) -> RecordedDraws:
        """Forward and backward. Without ``watched`` only the loss and the gradients are handed on."""
        from models.randomness import use

        stack = ModuleStack()
        draws = RecordedDraws(self.draws_by_name, self.rates, stack)
        self.embedded_output = None
        self.model.clear_gradients()
        left = self._left(measure if watched else None)
        with use(draws), given_signs(self.model, draws), self.given_choices(), watch(self.model, stack, left):
            self.recording = watched
            output = self.model(**self.batch)
            self.recording = False
            for name in SCORES:
                if watched and getattr(output, name, None) is not None:
                    measure(name, getattr(output, name).numpy())
            measure("loss", output.loss.numpy())
            output.loss.backward()
        self._measure_gradients(measure)
        return draws

    def train_on(self, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Go on with R64's gradients, as many updates as the job says, with the optimizer of training. The parameters
        after each, and the losses thereafter, are handed on."""
        import paddle

        from models.randomness import use
        from models.weights import dump
        from toolkit.optimizer import adamw

        rate = self.settings["learning_rate"]
        optimizer = adamw(self.model, rate, **{k: v for k, v in self.settings.items() if k != "learning_rate"})
        self.model.clear_gradients()
        for number, path in enumerate(self.recorded[1:], 1):
            self._accumulate(truth, number)
            optimizer.step()
            optimizer.clear_grad()
            for name, value in dump(self.model):
                measure(numbered(f"updated:{name}", number), value)
            self.draws_by_name = files.read_tensors(path)
            stack = ModuleStack()
            draws = RecordedDraws(self.draws_by_name, self.rates, stack)
            watched = watch(self.model, stack, _ignore)
            with paddle.no_grad(), use(draws), given_signs(self.model, draws), self.given_choices(), watched:
                measure(numbered("loss", number + 1), self.model(**self.batch).loss.numpy())

    def _accumulate(self, gradients: Mapping[str, np.ndarray], update: int) -> None:
        """Add to each parameter's gradient what the update is given, as a backward does."""
        import paddle

        from models.weights import to_paddle

        for name, parameter in self.model.named_parameters():
            if f"gradient:{name}" in gradients and name in self.model.table:
                given = given_gradient(gradients[f"gradient:{name}"], update)
                gradient = to_paddle(given, self.model.table[name].role)
                (parameter * paddle.to_tensor(gradient).astype(parameter.dtype)).sum().backward()

    def own_gradients(self) -> dict[str, np.ndarray]:
        """The parameters' gradients of one step with the port's own draws and choices, nothing watched."""
        self.model(**self.batch).loss.backward()
        return {f"gradient:{n}": p.grad.numpy() for n, p in self.model.named_parameters() if p.grad is not None}

    def _left(self, measure: Measure | None) -> Callable[[str, str, object, object], None]:
        def left(name: str, called: str, layer, output) -> None:
            if name == self.embedded and self.embedded_output is None:
                self.embedded_output = output
                output.retain_grads()
            if measure is None or not self.recording or name == "":
                return
            several = self.outputs_of(name, layer, output)
            if several is not None:
                for key, value in several.items():
                    measure(key, value.numpy())
                return
            tensor = first_tensor(output)
            if tensor is not None:
                measure(called, tensor.numpy())

        return left

    def _measure_gradients(self, measure: Measure) -> None:
        from models.weights import to_paddle

        table = self.model.table
        if self.embedded_output is not None and self.embedded_output.grad is not None:
            measure(f"gradient:{self.embedded}", self.embedded_output.grad.numpy())
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                role = table[name].role if name in table else "unknown"
                measure(f"gradient:{name}", to_paddle(parameter.grad.numpy(), role))

    def parameter_errors(self) -> dict[str, float]:
        """By how much each parameter that the port holds differs from the one it was given: 0 everywhere, or wrong."""
        from models.weights import dump

        held = dict(dump(self.model))
        return {name: float(np.abs(held[name].astype("float64") - value).max()) for name, value in self.given.items()}


def _ignore(name: str, called: str, layer, output) -> None:
    """Nothing is to be measured of a module's output."""


@contextlib.contextmanager
def given_signs(model, draws: RecordedDraws) -> Iterator[None]:
    """Which inputs of a ReLU are positive is decided by R64, inside the ``with`` block."""
    from paddle import nn

    layers = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, nn.ReLU)]
    for layer in layers:
        layer.forward = lambda x, plain=layer.forward: draws.relu(x, plain(x))
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextlib.contextmanager
def watch(
    model, stack: ModuleStack, left: Callable[[str, str, object, object], object], prefix: str = ""
) -> Iterator[None]:
    """Inside the ``with`` block ``stack`` knows which module is running.

    Args:
        model: a port, or a part of it.
        left: called after each module with its path, the name of its output, itself and the output. What it gives, if
            anything, goes on in place of the output.
        prefix: the path of ``model`` in the whole model; "" for the whole.
    """
    hooks = []
    for name, layer in model.named_sublayers(include_self=True):
        name = ".".join(filter(None, [prefix, name]))
        hooks.append(layer.register_forward_pre_hook(lambda layer, args, name=name: stack.enter(name)))
        hooks.append(
            layer.register_forward_post_hook(
                lambda layer, args, output, name=name: left(name, stack.leave(), layer, output)
            )
        )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def first_tensor(output):
    """The tensor that a module's output is compared by: itself, or the first of a tuple or model output."""
    import paddle

    if isinstance(output, paddle.Tensor):
        return output
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    return next((value for value in values if isinstance(value, paddle.Tensor)), None)
