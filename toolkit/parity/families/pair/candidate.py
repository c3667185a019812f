"""A step of a pair's port: any Paddle layer, run by the gate like the ports of this project's families."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from toolkit.parity.candidate.places import line_of
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import PLAIN, Measure, OnLeave, Step, first_tensor
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.results import CandidateFacts, Place
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.families.pair import buffers, calls, choices, replaced_functions, score_limit
from toolkit.parity.families.pair.layout import Layout
from toolkit.parity.families.pair.replaced_functions import (
    LIBRARIES,
    PairDraws,
    keep_float64,
    to_port_axes,
    use_dense_gradients,
    use_draws,
    use_dtype,
)
from toolkit.parity.job import outputs, user_code
from toolkit.parity.job.buffers import hide_initial_infinities, restore_initial_infinities
from toolkit.parity.job.job import Job, TrainingSettings
from toolkit.parity.job.pair import CHOICES, RANDOM, OutputOrder, PairMap
from toolkit.parity.measure.evaluation import RUNS, WHOLE
from toolkit.parity.measure.naming import TensorName, append_number
from toolkit.parity.measure.updates import scale_gradient

#: Pattern of a source line that computes a loss.
LOSS_PATTERN = r"\bloss\w*\s*=.*\(|\w_loss\s*=.*\(|cross_entropy\("


class PairStep(Step):
    """A forward and a backward of a user's Paddle layer, with the reference's weights, batch and draws.

    Tensors have the reference's names if the pair's map has a counterpart. This holds for parameters, modules, their
    outputs, and draws. A module without a counterpart is named `port PATH`.

    Attributes:
        source: loaded module of the user's file.
        map: correspondence of the two sides.
        reference_paths: the reference's path of each mapped module, by the port's path.
        reference_weights: the reference's weights, by name.
        reference_buffers: the reference's buffers before the step, by name.
        truth: R64's tensors, by name.
        layout: correspondence of the parameters of both sides.
    """

    #: During a run, the function that receives a gradient before it is freed; None outside of a run.
    _measure_gradient: Measure | None = None

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        """Build the user's layer, and load the reference's weights and buffers.

        Args:
            job: job of the pair.
            folder: job folder, with the reference's files.
            dtype: `float64` or `float32`.
            backward: unused, because a user's layer has only one backward.
        """
        assert job.pair is not None
        self.backwards = (PLAIN, PLAIN)  # a user's layer has a single backward
        self.port = job.port
        self.lowered = ()
        self.brief = job.brief
        self.config = job.config
        self.dtype = dtype
        self.settings = job.training
        self.map = job.pair.map or PairMap()
        self._has_loss, self.forward_only = job.pair.has_loss, job.pair.forward_only
        self.reference_paths = {port: reference for reference, port in self.map.modules.items()}
        self.recorded_draws = {run: TensorFile(folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}
        self.rates = files.read_json(folder / "reference" / "rates.json")
        self.reference_weights = TensorFile(folder / "weights.safetensors")
        # The import happens before the default dtype changes, because a library may store the default dtype on import.
        self.source = user_code.load(job.pair.port)
        with self.use_step_dtype():
            self.model = build_model(self.source, job)
        # Layer.to would also cast integers and tensors without memory.
        self.model._to_impl(dtype=dtype, floating_only=True)
        shapes = {name: self.reference_weights.shape(name) for name in self.reference_weights}
        self.layout = Layout(self.map.parameters, shapes)
        self.batch = as_tensors(files.read_tensors(folder / "batch.safetensors"), dtype)
        buffers_path = folder / "reference" / "buffers.safetensors"
        self.truth = TensorFile(folder / "reference" / "float64.safetensors")
        initial = files.read_tensors(folder / files.INITIAL_BUFFERS)
        self.reference_buffers = {**files.read_tensors(buffers_path), **initial} if self.map.buffers else {}
        own_buffers = buffers.copy_buffers(self.model)
        self.constants = {
            f"buffer:{match.reference}": buffers.reshape_like(
                own_buffers[match.port], self.reference_buffers[match.reference], match
            )
            for match in self.map.buffers
            if match.reference not in self.map.drawn_buffers
        }
        self._load()
        if job.pair.is_large:
            self._drop_gradients()
        self.start()

    @staticmethod
    def leaks() -> list[str]:
        """Return the lines of the port, `file:line`, where a float64 step would have computed in fewer digits."""
        return list(replaced_functions.leaks)

    @staticmethod
    def limited_lines() -> list[str]:
        """Return the lines of the port where Paddle's limit of scores was removed (:mod:`.score_limit`).

        Each line is written `file:line`.
        """
        return list(score_limit.limited_lines)

    def _load(self) -> None:
        """Set the port's trained parameters to the reference's weights."""
        for name, parameter in self.model.named_parameters():
            value = self.layout.port_array(name, parameter.shape, self._read_weight, is_weight=True)
            if value is not None:
                parameter.set_value(value.astype(self.dtype))

    def _read_weight(self, name: str) -> np.ndarray | None:
        """Return a parameter of the reference in the step's dtype; None if the reference does not have it.

        An offset of the map is added to the result, so that the sum is rounded to this dtype, too.

        Args:
            name: the reference's name of the parameter.
        """
        value = self.reference_weights.get(name)
        return None if value is None else value.astype(self.dtype)

    def _drop_gradients(self) -> None:
        """Register hooks that measure each parameter's gradient as soon as it is complete, and then free it.

        All gradients together are as large as the model. A gradient is kept if the parameter has only a part of a
        parameter of the reference.
        """

        def pass_gradient_on(name: str, parameter: paddle.Tensor, names: list[str]) -> None:
            """Measure the gradient of a parameter by the reference's names, and free it."""
            if parameter.grad is None or self._measure_gradient is None:
                return
            gradient = gradient_of(parameter)
            for reference_name in names:
                value = self.layout.reference_array(reference_name, lambda _: gradient)
                assert value is not None
                self._measure_gradient(f"gradient:{reference_name}", value)
            if not names:
                self._measure_gradient(f"gradient:{name}", gradient)
            parameter.clear_gradient(False)

        for name, parameter in self.model.named_parameters():
            names = self.layout.complete_counterparts(name)
            if names is not None and not parameter.stop_gradient:
                parameter._register_backward_hook(functools.partial(pass_gradient_on, name, parameter, names))

    def _to_reference_arrays(
        self, get_array: Callable[[paddle.Tensor], np.ndarray | None], is_weight: bool = False
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and an array of each parameter, in the reference's layout.

        A parameter without a counterpart has the port's name and layout.

        Args:
            get_array: function that returns the array of a parameter of the port, such as its gradient, or None.
            is_weight: whether the arrays are the values of the parameters, so that the map's offsets are subtracted.
        """
        parameters = dict(self.model.named_parameters())
        yield from self.layout.reference_arrays(lambda name: get_array(parameters[name]), is_weight)
        for name, parameter in parameters.items():
            if name not in self.layout.by_port and (array := get_array(parameter)) is not None:
                yield name, array

    def parameter_values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the reference's name and the port's value of each parameter, in the reference's layout."""
        for name, value in self._to_reference_arrays(_parameter_value, is_weight=True):
            if name in self.reference_weights:
                yield name, self._remove_rounding(name, value)

    def _remove_rounding(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return a parameter without the rounding error of the map's offset.

        If an offset of 1 is added to a small number, the sum keeps fewer digits of the number. Elements that differ
        from the reference only by this rounding are replaced by the reference's elements.

        Args:
            name: the reference's name of the parameter.
            value: the port's value of the parameter after subtraction of the offset.
        """
        offset = max((abs(match.offset) for match in self.layout.by_reference.get(name, ())), default=0.0)
        reference_value = self._read_weight(name)
        if not offset or reference_value is None:
            return value
        rounding = np.finfo(value.dtype).eps * (offset + np.abs(reference_value))
        return np.where(np.abs(value - reference_value) <= rounding, reference_value, value)

    def compute(self, inputs: Mapping[str, paddle.Tensor]) -> Any:
        """Return the output of the port for a batch, with its loss unless only a forward is compared.

        If a file of the pair has its own ``loss`` function, the logits are None, because they are not compared.
        """
        with self.use_step_dtype(), user_code.running(self.source):
            output = compute_output(self.source, self.model, inputs, not self.forward_only)
        return replace(output, logits=None) if self._has_loss else output

    @contextlib.contextmanager
    def use_step_dtype(self) -> Iterator[None]:
        """Let the user's code compute in the step's dtype inside the ``with`` block."""
        with use_dtype(self.dtype), keep_float64() if self.dtype == "float64" else contextlib.nullcontext():
            yield

    def start(self) -> None:
        """Set the model to the mode of the step, and its buffers to the reference's values before the step."""
        super().start()
        buffers.set_buffers(self.model, self.map.buffers, self.reference_buffers)

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        """Run forward and backward, and measure outputs, gradients, and the buffers after the step.

        Args:
            measure: function that receives the name and value of each tensor.
            with_hooks: whether outputs and buffers are measured, too. Otherwise only the loss and the gradients are
                measured.
        """
        self._measure_gradient = measure
        with use_dense_gradients(), user_code.running(self.source, alone=False):  # the file may define a backward
            super().run(measure, with_hooks)
        self._measure_gradient = None
        own_buffers = buffers.copy_buffers(self.model) if with_hooks else {}
        for match in self.map.buffers:
            if match.port in own_buffers:
                initial_value = self.reference_buffers[match.reference]
                value = buffers.reshape_like(own_buffers[match.port], initial_value, match)
                measure(f"buffer:{match.reference}", hide_initial_infinities(value, initial_value))
        for name in self.map.port_state:
            if name in own_buffers:
                measure(f"buffer:port {name}", own_buffers[name])

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        """Return the only evaluation of a pair, which uses the batch of the step."""
        return {WHOLE: dict(self.batch)}

    def evaluate(self, measure: Measure) -> None:
        """Run the port in evaluation mode, starting from the reference's buffers after its step.

        The port's own buffers are compared after the step. If they differed here, every output behind them would
        differ, too.

        Args:
            measure: function that receives the name and value of each tensor.
        """
        if self.forward_only:  # the step is already a forward in evaluation mode
            return
        final_buffers = {match.reference: self.truth.get(f"buffer:{match.reference}") for match in self.map.buffers}
        buffer_values = {
            name: restore_initial_infinities(value, self.reference_buffers[name])
            for name, value in final_buffers.items()
            if value is not None
        }
        buffers.set_buffers(
            self.model, [match for match in self.map.buffers if match.reference in buffer_values], buffer_values
        )
        super().evaluate(measure)

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        """Return True, because the evaluation of a pair always has a loss."""
        return True

    def make_draws(self, recorded_draws: Mapping[str, np.ndarray], *arguments: Any) -> PairDraws:
        """Return recorded draws as a source that maps the port's names of draws to the reference's names.

        Args:
            recorded_draws: recorded draws by the reference's name.
            arguments: further arguments of :class:`.replaced_functions.PairDraws`: sender, run and order.
        """
        return PairDraws(recorded_draws, self.rates, self.map, *arguments)

    @contextlib.contextmanager
    def apply_draws(self, draws: RecordedDraws) -> Iterator[None]:
        """Let the port's dropout, random numbers and discrete choices come from ``draws`` inside the ``with`` block."""
        assert isinstance(draws, PairDraws)
        with use_draws(draws):
            yield

    @contextlib.contextmanager
    def watch_calls(self, draws: RecordedDraws, sender: Sender) -> Iterator[calls.CallRecorder]:
        """Send every call of a Paddle function inside the ``with`` block, and yield the recorder of the calls.

        After the block, the recorded calls of module inputs and outputs are sent, too.

        Args:
            draws: draws of the run, which know the running module.
            sender: receiver of the calls.
        """
        paddle_layers = {name for name, layer in self.model.named_sublayers() if is_paddle_layer(layer)}

        def get_layer_name() -> str:
            """Return the reference's name of the running layer if its class is Paddle's own, otherwise ""."""
            name = draws.stack.module
            return self.reference_paths.get(name, f"port {name}") if name in paddle_layers else ""

        recorder = calls.CallRecorder(sender, get_layer_name)
        with calls.watch(recorder):
            yield recorder
        sender.send_json("computed_by", recorder.call_numbers)
        sender.send_json("entered_at", recorder.entry_lines)

    def _on_leave(self, measure: Measure | None) -> OnLeave:
        """Return a function that measures the first output tensor of each mapped module after its call.

        It measures nothing if ``measure`` is None.
        """

        def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
            """Measure the first output tensor of a mapped module, in the reference's layout."""
            if measure is None or not self.recording or TensorName.parse(call_name).module not in self.reference_paths:
                return
            tensor = first_tensor(output)
            if tensor is not None:
                call_name = self.name_of(call_name)
                measure(call_name, self.to_reference_layout(call_name, tensor.numpy()))

        return on_leave

    def to_reference_layout(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return an output of the port, or its gradient, in the axes, shape and feature order of the reference.

        The port's (B, T, D) may be the reference's (B*T, D). An array with another number of elements keeps its shape.

        Args:
            name: the reference's name of the tensor.
            value: tensor in the port's layout.
        """
        module = TensorName.parse(name).module
        axes, shape = self.map.axes.get(module, ()), self.map.shapes.get(module, value.shape)
        value = value.transpose(axes) if value.ndim == len(axes) else value
        value = value.reshape(shape) if math.prod(shape) == value.size else value
        order = self._feature_order(module, value)
        return value if order is None else value.take(order.places, order.axis)

    def _feature_order(self, module: str, value: np.ndarray) -> OutputOrder | None:
        """Return the order of an output's features in the port; None if it equals the reference's order.

        Args:
            module: the reference's path of the module.
            value: output of the module, or its gradient. If its shape does not fit the order, the result is None.
        """
        order = self.map.orders.get(module)
        fits = order is not None and value.ndim > order.axis and value.shape[order.axis] == len(order.places)
        return order if fits else None

    def to_port_layout(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return an output of the reference in the axes, shape and feature order of the port.

        Args:
            name: the reference's name of the tensor.
            value: tensor in the reference's layout.
            shape: shape of the tensor in the port.
        """
        module = TensorName.parse(name).module
        if (order := self._feature_order(module, value)) is not None:
            value = value.take(np.argsort(order.places), order.axis)
        return to_port_axes(value, self.map.axes.get(module, ()), shape)

    def name_of(self, call_name: str) -> str:
        """Return the reference's name of a tensor, given the port's name.

        Example: `output:blocks.0` -> `output:layers.0`, or `output:port blocks.0` if the map lacks the module.

        Args:
            call_name: name with the port's path of the module.
        """
        name = TensorName.parse(call_name)
        return str(name._replace(module=self.reference_paths.get(name.module, f"port {name.module}")))

    def parameter_names(self) -> list[str]:
        """Return the reference's names of its parameters, then the port's names of parameters without a counterpart."""
        own = (name for name, _ in self.model.named_parameters() if name not in self.layout.by_port)
        return [*self.layout.by_reference, *own]

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and gradient of each parameter that has a gradient, in the reference's layout."""
        return self._to_reference_arrays(lambda parameter: None if parameter.grad is None else gradient_of(parameter))

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Update the parameters with Paddle's AdamW and gradients made from R64's, and measure them after each update.

        Args:
            job: job of the pair, with the number of updates.
            folder: unused.
            measure: function that receives the name and value of each parameter, such as `updated:head.weight#2`.
            truth: R64's tensors by name, with the gradients.
        """
        if self.forward_only or not job.updates:
            return
        settings = self.settings
        self._remove_offsets()
        schedule = [_learning_rate_of(settings, update) for update in range(1, job.updates + 1)]
        adamw = create_adamw(self.model, settings)
        for update, rate in enumerate(schedule, 1):
            adamw.set_lr(rate)
            with set_scaled_gradients(self, truth, update, settings.max_grad_norm):
                adamw.step()
            for name, value in self._to_reference_arrays(lambda p: None if p.stop_gradient else p.numpy()):
                if name in self.reference_weights:
                    measure(append_number(f"updated:{name}", update), value)

    def _remove_offsets(self) -> None:
        """Replace parameters that the map shifts by the reference's values, without the offset.

        AdamW decays a parameter toward 0, so the decay depends on the offset.
        """
        shifted_names = {match.port for match in self.map.parameters if match.offset}
        for name, parameter in self.model.named_parameters():
            value = self.layout.port_array(name, parameter.shape, self._read_weight) if name in shifted_names else None
            if value is not None:
                parameter.set_value(value)

    def facts(self) -> CandidateFacts:
        """Return the epsilon of each mapped layer norm, as facts about the port."""
        layers = dict(self.model.named_sublayers())
        mapped_layers = {name: layers[port] for name, port in self.map.modules.items() if port in layers}
        norms = {name: layer for name, layer in mapped_layers.items() if isinstance(layer, nn.LayerNorm)}
        return CandidateFacts(epsilons={name: norm._epsilon for name, norm in norms.items()})

    def places(self) -> dict[str, Place]:
        """Return the source locations of the port's modules, loss and random draws.

        The keys are the reference's paths of modules, the port's paths of modules without a counterpart, `logits`,
        `losses`, `loss`, and the kinds of draws and choices.
        """
        layers = dict(self.model.named_sublayers(include_self=True))
        matches = (*self.map.parameters, *self.map.buffers)
        port_paths = {match.reference: match.port.rpartition(".")[0] for match in matches}
        modules = {**self.map.modules, **{name.rpartition(".")[0]: path for name, path in port_paths.items()}}
        places = {name: find_place(layers, path) for name, path in modules.items() if path in layers}
        paths_with_parameters = {name.rpartition(".")[0] for name, _ in self.model.named_parameters()}
        for path, layer in layers.items():  # layers without a counterpart in the reference
            if (path in paths_with_parameters or isinstance(layer, nn.Dropout)) and path not in places:
                places[path] = find_place(layers, path)
        loss = getattr(self.source, "loss", type(self.model).forward)
        loss_name = getattr(loss, "__qualname__", "loss")
        function_line = line_of(loss, "") or ""
        places["logits"] = Place(loss_name, function_line)
        places["losses"] = places["loss"] = Place(loss_name, line_of(loss, LOSS_PATTERN) or function_line)
        model_place = Place(type(self.model).__name__, line_of(type(self.model), r"class ") or "")
        return {**{kind: model_place for kind in (*RANDOM, *CHOICES)}, **places}


def gradient_of(parameter: paddle.Tensor) -> np.ndarray:
    """Return a parameter's gradient in the parameter's shape.

    Paddle stores a sparse gradient of an embedding with only the rows that were used. The missing rows are filled with
    zeros.
    """
    gradient = parameter.grad
    if not gradient.is_selected_rows():
        return gradient.numpy()
    whole = np.zeros(parameter.shape, gradient.numpy().dtype)
    np.add.at(whole, gradient.rows(), gradient.numpy())
    return whole


def _parameter_value(parameter: paddle.Tensor) -> np.ndarray:
    """Return a parameter's value as an array."""
    return parameter.numpy()


def _learning_rate_of(settings: Any, update: int) -> float:
    """Return the learning rate of an update: a linear warm-up, then the schedule of the settings.

    Args:
        settings: settings of the training.
        update: number of the update, counted from 1.
    """
    num_warmup = math.ceil(settings.max_steps * settings.warmup_ratio)
    num_done = update - 1
    if num_done < num_warmup:
        return settings.learning_rate * num_done / max(1, num_warmup)
    if settings.lr_scheduler == "constant":
        return settings.learning_rate
    rest = max(0.0, (settings.max_steps - num_done) / max(1, settings.max_steps - num_warmup))
    return settings.learning_rate * ((1 - math.cos(math.pi * rest)) / 2 if settings.lr_scheduler == "cosine" else rest)


def create_adamw(model: nn.Layer, settings: TrainingSettings) -> paddle.optimizer.AdamW:
    """Return Paddle's AdamW for the trained parameters of a model, which all have weight decay."""
    return paddle.optimizer.AdamW(
        learning_rate=settings.learning_rate,
        beta1=settings.adam_beta1,
        beta2=settings.adam_beta2,
        epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        parameters=[parameter for parameter in model.parameters() if not parameter.stop_gradient],
    )


@contextlib.contextmanager
def set_scaled_gradients(
    step: PairStep, truth: Mapping[str, np.ndarray], update: int, max_norm: float | None
) -> Iterator[None]:
    """Set the port's gradients to the gradients of an update inside the ``with`` block, and clear them afterwards.

    They are R64's gradients, multiplied by the factors of the update (:func:`.updates.scale_gradient`).

    Args:
        step: step of the port.
        truth: R64's tensors by name, with the gradients.
        update: number of the update, counted from 1.
        max_norm: maximum norm of all gradients together; larger gradients are clipped. None or 0 disables clipping.
    """
    gradients = {
        name: scale_gradient(truth[f"gradient:{name}"], update, [1.0])
        for name in step.layout.by_reference
        if f"gradient:{name}" in truth
    }
    norm = float(np.sqrt(sum(float((value.astype("float64") ** 2).sum()) for value in gradients.values())))
    scale = min(1.0, max_norm / (norm + 1e-6)) if max_norm else 1.0
    for name, parameter in step.model.named_parameters():
        value = None if parameter.stop_gradient else step.layout.port_array(name, parameter.shape, gradients.get)
        if value is not None:
            parameter.clear_gradient(False)
            parameter.grad = paddle.to_tensor((value.astype("float64") * scale).astype(step.dtype))
    try:
        yield
    finally:
        step.model.clear_gradients()


# -- the user's file ------------------------------------------------------------------------------------------------
def build_model(source: Any, job: Job, seed: int | None = None) -> nn.Layer:
    """Return the layer that the ``build`` function of the port's file creates.

    Args:
        source: loaded module of the port's file.
        job: job of the pair, with the configuration and the seed.
        seed: seed of Paddle's generators; by default the job's seed.

    Raises:
        UserCodeError: ``build`` raised an error, or did not return a new Paddle layer; or the layer has complex
            parameters.
    """
    paddle.seed(job.seed if seed is None else seed)
    with user_code.running(source):
        model = source.build(dict(job.config))
    user_code.check_built(source, model, nn.Layer, "paddle.nn.Layer")
    user_code.check_real(source, model.named_parameters())
    return model


def compute_output(
    source: Any, model: nn.Layer, inputs: Mapping[str, paddle.Tensor], needs_loss: bool = True
) -> outputs.StepOutput:
    """Return the logits and the loss of a user's layer for a batch (:func:`.outputs.compute_step`).

    Args:
        source: loaded module of the user's file.
        model: layer of the user.
        inputs: tensors of the batch by name.
        needs_loss: whether a loss is required; False if only a forward is compared.
    """

    def is_tensor(value: Any) -> bool:
        return isinstance(value, paddle.Tensor)

    return outputs.compute_step(source, model, inputs, is_tensor, nn.functional.cross_entropy, needs_loss=needs_loss)


def as_tensors(batch: Mapping[str, np.ndarray], dtype: str) -> dict[str, paddle.Tensor]:
    """Return the arrays of a batch as Paddle tensors, with floating-point numbers in ``dtype``."""
    return {
        name: paddle.to_tensor(value.astype(dtype) if value.dtype.kind == "f" else value)
        for name, value in batch.items()
    }


def find_place(layers_by_path: Mapping[str, nn.Layer], path: str) -> Place:
    """Return the source location of a layer.

    It consists of the layer's class, the line of the outer layer's code that creates the layer, and the line of the
    class definition if the class is not Paddle's. If no line of the outer layer names the attribute, the line of the
    outer layer's class is used.

    Args:
        layers_by_path: all layers of the port by path.
        path: path of the layer.
    """
    layer = layers_by_path[path]
    outer_path, _, attribute = path.rpartition(".")
    while attribute.isdigit() and outer_path:  # for a member of a list, find the line that creates the list
        outer_path, _, attribute = outer_path.rpartition(".")
    creation_line = None
    if outer_path in layers_by_path:
        outer_class = type(layers_by_path[outer_path])
        creation_line = line_of(outer_class, rf"\b\w+\.{attribute}\b.*=") or line_of(outer_class, r"class ")
    class_line = None if is_paddle_layer(layer) else line_of(type(layer), r"class ")
    lines = ", ".join(filter(None, [creation_line, class_line and f"class at {class_line}"]))
    return Place(type(layer).__name__, lines)


def is_paddle_layer(layer: nn.Layer) -> bool:
    """Return whether a layer's class is defined in Paddle itself, or in the gate."""
    return (inspect.getsourcefile(type(layer)) or "").startswith(LIBRARIES)


replaced_functions.install()
choices.install()
calls.install()
#: Class of the step of a pair's port.
STEP = PairStep
