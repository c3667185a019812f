"""A training step of a reference model: forward and backward, in a dtype, with replayed draws."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Note, ReferenceFacts
from toolkit.parity.exchange.tensor_file import SpilledTensors, TensorFile
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import (
    FINAL_LOSS,
    NARROW,
    NO_PADDING,
    READ_WITHOUT_PADDING,
    RUNS,
    TRAINING,
    WHOLE,
    build_batches,
    is_scored,
    name_in_run,
)
from toolkit.parity.measure.naming import append_number
from toolkit.parity.measure.updates import clean_examples, count_loss_terms, scale_gradient, weigh_terms
from toolkit.parity.reference.class_weights import weighted_loss
from toolkit.parity.reference.float64_checks import NarrowingWatch, SaturationWatch, keep_float64
from toolkit.parity.reference.lora import adapt_model, merge_adapters
from toolkit.parity.reference.optimizer import Optimizer, decayed_parameters
from toolkit.parity.reference.points import Keep, Operation, OperationWatch, Points, keep_nothing, to_numpy, values_of
from toolkit.parity.reference.precision import use_precision
from toolkit.parity.reference.recorder import Draws, Recorder

#: torch's dtype of each run without mixed precision, by the name of the dtype.
DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Dtype of a run's weights and activations, by the name of the run's dtype. A run in ``bfloat16`` stores float32, and
#: only its products compute in bfloat16.
STORAGE_DTYPES = {**DTYPES, "bfloat16": torch.float32}
#: Attributes of a model's output that hold scores. Each head has one or two of them.
LOGITS = ("logits", "start_logits", "end_logits")

#: Stems of the safetensors files in the job folder that both workers read.
INPUT_FILES = ("weights", "batch", "labels")

#: Number of elements of a weight that are nudged at a time. All pieces use the same draws, since the largest matrix has
#: 3 * 10^8 elements.
PIECE = 2**20
#: A quarter of bfloat16's unit in the last place, as a number of float32's units in the last place.
QUARTER = 2**14


def make_step(job: Job, folder: Path) -> Step:
    """Return the step of the job's family, with the weights and the batch of the job folder.

    Args:
        job: content of the job folder's ``job.json``.
        folder: folder of the job.
    """
    kind = family_part(job.model, "reference").STEP
    weights, *others = (folder / f"{name}.safetensors" for name in INPUT_FILES)
    read: Callable[[Path], Mapping[str, np.ndarray]] = TensorFile if job.brief else files.read_tensors
    step = kind(job, read(weights), *map(files.read_tensors, others))
    if job.pair is not None:
        step.set_initial_buffers(files.read_tensors(folder / files.INITIAL_BUFFERS))
    return step


class Step:
    """A training step of a reference model with its weights and a batch, which can run several times.

    Subclasses define the class of each head, and the changes of the reference for a clean run, which stays in float64
    and uses plain autograd (``toolkit/parity/README.md``, "How the reference is run").

    Attributes:
        uses_reference_backward: whether the port recomputes layers from rounded residual streams, as the reference's
            own reversible backward does.
        draws: draws of each run of :data:`.evaluation.RUNS`, by the run's name. R64 makes them, and later runs repeat
            them.
        leaks: source locations where the last run would have computed in float32 although the model is float64.
        narrowings: source locations where R64 still computed in less than float64.
        saturation: share of R64's attention rows that are saturated, by attention module (see
            :class:`SaturationWatch`).
        reads_without_padding: whether the port's run evaluates short texts without the padding that does not change
            their results.
        is_narrowed: whether the port may omit the positions that the head does not read (``narrowed_heads``).
        saturated: number of attention rows of the last run whose scores are all masked, if the softmax had to be fixed.

    Args:
        job: settings of the step.
        weights: float32 weights by the reference's parameter names.
        batch: batch of the step, by the names of the model's inputs.
        labels: labels and other inputs of the examples of an update, by name.
    """

    #: Class of the reference model for each head, by the head's name.
    heads: ClassVar[Mapping[str, type]] = {}
    #: DottedText path of the module whose output is the embedded input, and whose gradient is compared.
    embedding_module = ""
    #: Whether the step is only a forward in evaluation mode, without a backward.
    forward_only = False
    #: Mask of the elements of each of R64's outputs that the loss does not depend on, by the output's name
    #: (:attr:`.recorder.Recorder.unread`); None except for pairs.
    unread: dict[str, np.ndarray] | None = None
    #: Whether the memory of each gradient is freed as soon as ``keep`` has the gradient, to save the size of the model.
    drops_gradients = False
    #: Name of each tied parameter, by its second name in the reference's own ``state_dict``.
    aliases: ClassVar[Mapping[str, str]] = {}
    #: Names of the heads that read only some positions, so that the port may omit the others.
    narrowed_heads: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        job: Job,
        weights: Mapping[str, np.ndarray],
        batch: Mapping[str, np.ndarray],
        labels: Mapping[str, np.ndarray],
    ) -> None:
        self.batch = {name: torch.from_numpy(value) for name, value in batch.items()}
        self.model = self.build(job)
        adapt_model(self.model, job.lora)
        self.adapted = job.lora is not None
        self.weights = {name: torch.from_numpy(value) for name, value in weights.items()}
        self.device = torch.device("cuda" if job.device == "gpu" else "cpu")
        self.settings = job.training
        self.config = job.config
        self.task = job.task
        self.reads_without_padding = job.head in READ_WITHOUT_PADDING
        self.is_narrowed = job.head in self.narrowed_heads
        self.updates = job.updates
        self.lowered = job.lowered
        self.measures_bfloat16 = "bfloat16" in job.dtypes
        self.dtype = "float64"
        self.labels = labels
        self.class_weights = job.class_weights
        self.label_smoothing = job.label_smoothing
        self.spare_memory = job.spare_memory
        self.brief = job.brief
        self.uses_reference_backward = job.port.get("residual") == "plain"
        self.draws = {run: Draws(job.seed, number, is_spilled=job.spare_memory) for number, run in enumerate(RUNS)}
        self.read_beside: set[str] = set()
        self.leaks: list[str] = []
        self.narrowings: list[str] = []
        self.saturated = 0
        self.saturation: dict[str, float] = {}

    def build(self, job: Job) -> nn.Module:
        """Return a newly created reference model of the job's head and configuration."""
        return self.heads[job.head](self.configuration(job.config))

    def evaluated_unit(self) -> int:
        """Return the number of tokens that the length of each text in an evaluation must be a multiple of."""
        return 1

    def compute(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Return the model's output, which has the attribute ``loss`` if the inputs have labels.

        Args:
            inputs: tensors by the names of the model's arguments.
        """
        return self.model(**inputs)

    def evaluations(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the batch of each evaluation, by the evaluation's name such as ``shorter``."""
        return build_batches(self._inputs(), self.config, self.evaluated_unit(), is_unpadded=self.reads_without_padding)

    def is_scored(self, batch: Mapping[str, torch.Tensor]) -> bool:
        """Return whether the model computes a loss for this batch of an evaluation."""
        return is_scored(batch)

    def configuration(self, keys: Mapping[str, Any]) -> object:
        """Return the configuration object of the reference's model class.

        Args:
            keys: Hugging Face's configuration keys and their values.
        """
        raise NotImplementedError

    def constants(self) -> dict[str, np.ndarray]:
        """Return the constants that the reference computes in addition to its parameters, by name.

        An example is CTRL's position table. The port gets these constants, too.
        """
        return {}

    def positions_of(self, model: nn.Module) -> dict[str, np.ndarray]:
        """Return the part of a checkpoint's position table that evaluation uses for texts of the job's length, by name.

        The result is empty if the job uses the whole table.

        Args:
            model: model of the whole checkpoint, in evaluation mode.
        """
        return {}

    def facts(self, records: Mapping[str, TensorRecord]) -> ReferenceFacts:
        """Return the properties of R64 that the verdict needs in addition to the tensors.

        Args:
            records: record of each of R64's tensors, by name.
        """
        norms = {name: m for name, m in self.model.named_modules() if isinstance(m, torch.nn.LayerNorm)}
        return ReferenceFacts(
            epsilons={name: norm.eps for name, norm in norms.items()},
            decayed=decayed_parameters(self.model),
            saturation=self.saturation,
            relu_moved=self._collect_changes(lambda draws: draws.moved),
            relu_moved_lowered=self._collect_changes(lambda draws: draws.moved_lowered),
        )

    def _collect_changes(self, get_changes: Callable[[Draws], Mapping[str, float]]) -> dict[str, float]:
        """Return the largest changes of ReLU inputs by rounding in all runs, by module.

        The names of all runs except the training step have the run in front, such as ``shorter/encoder.act``.

        Args:
            get_changes: returns the changes that the draws of a run have recorded, by module.
        """
        changes = ((run, get_changes(draws)) for run, draws in self.draws.items())
        return {name_in_run(run, name): change for run, by_name in changes for name, change in by_name.items()}

    @property
    def notes(self) -> list[Note]:
        """Notes for the report on changes of the reference, if its code differs from the model's definition."""
        return []

    def load(self, dtype: str, nudge: int = 0) -> None:
        """Load the weights into the model in the dtype of a run, and nudge them if requested.

        To nudge a weight is to move it by a few units in the last place, up or down at random.

        Args:
            dtype: dtype of the run: ``float64``, ``float32`` or ``bfloat16``.
            nudge: 0 for unchanged weights. Any other number moves each weight by one unit in the last place of
                ``dtype``, up or down by a draw that depends on the number. In bfloat16, it moves only the weights of
                linear layers, by a quarter of bfloat16's unit, so that some of them are rounded up instead of down.
        """
        self.dtype = dtype
        for draws in self.draws.values():
            draws.is_lowered = dtype == "bfloat16"
        storage_dtype, units = STORAGE_DTYPES[dtype], QUARTER if dtype == "bfloat16" else 1
        nudged_names = self._find_nudged_weights()
        values = {
            name: nudge_copy(value, storage_dtype, nudge if name in nudged_names else 0, units)
            for name, value in self.weights.items()
        }
        self.model.to(dtype=storage_dtype)
        missing = self.model.state_dict().keys() - values.keys()  # an output layer that is not tied has its own
        values.update({alias: values[name] for alias, name in self.aliases.items() if alias in missing})
        self.model.load_state_dict(values, strict=True)
        self.model.to(device=self.device)

    def _find_nudged_weights(self) -> set[str]:
        """Return the names of the weights that a nudge moves: all, or in bfloat16 only the weights of linear layers."""
        if self.dtype != "bfloat16":
            return set(self.weights)
        layers = (name for name, layer in self.model.named_modules() if isinstance(layer, torch.nn.Linear))
        return {f"{name}.weight" for name in layers}

    def in_precision(self) -> contextlib.AbstractContextManager:
        """Return a context manager that computes in the dtype of the last :meth:`load` inside the ``with`` block."""
        return use_precision(self.dtype, self.lowered, self.device)

    def run(self, dtype: str, keep: Keep, nudge: int = 0, plain: bool = True, has_hooks: bool = True) -> None:
        """Load the weights, and run the forward and the backward of the training step once.

        Args:
            dtype: dtype of the run: ``float64``, ``float32`` or ``bfloat16``.
            keep: called with the name and value of each module output, the loss, the scores and each gradient.
            nudge: number of the nudge of the weights, as in :meth:`load`; 0 for unchanged weights.
            plain: whether gradients are computed by plain autograd, even if the reference has its own backward.
            has_hooks: whether hooks pass the outputs of modules to ``keep``, too. Otherwise ``keep`` gets only the loss
                and the gradients.
        """
        self.load(dtype, nudge)
        self.forward_and_backward(keep, nudge, plain, has_hooks)

    def forward_and_backward(self, keep: Keep, nudge: int = 0, plain: bool = True, has_hooks: bool = True) -> None:
        """Run the forward and the backward with the parameters that the model has now.

        Args:
            keep: called with the name and value of each module output, the loss, the scores and each gradient.
            nudge: number of the nudge that :meth:`load` has applied; 0 for unchanged weights.
            plain: whether gradients are computed by plain autograd, as in :meth:`run`.
            has_hooks: whether hooks pass the outputs of modules to ``keep``, too, as in :meth:`run`.
        """
        self.model.train(not self.forward_only)
        self.model.zero_grad(set_to_none=True)
        recorder = Recorder(self.model, self.draws[TRAINING], keep, embedding_module=self.embedding_module)
        recorder.recording = has_hooks
        is_truth = has_hooks and self.dtype == "float64" and not nudge
        recorder.unread = self.unread if is_truth else None
        hooks = self._drop_gradients(keep) if self.drops_gradients else []
        narrowing = NarrowingWatch()
        saturation = SaturationWatch(lambda: recorder.stack.module)
        with (
            self.in_precision(),  # entered first, so that it acts last: the other modes see float32
            keep_float64() as leaks,
            recorder.watch(),
            self.clean(recorder, plain),
            self.vary_rounding(recorder, nudge),
            narrowing if is_truth else contextlib.nullcontext(),
            saturation if is_truth else contextlib.nullcontext(),
        ):
            output = self._run_training_forward()
            for name, value in scores_of(output).items() if has_hooks else ():
                keep(name, value)
            recorder.recording = False
            self.backward(output, keep)
        for hook in hooks:
            hook.remove()
        self.read_beside |= recorder.read_beside
        self.leaks = leaks
        if is_truth:
            self.narrowings, self.saturation = narrowing.places, saturation.shares
        recorder.keep_embedded_gradient()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                keep(f"gradient:{name}", to_numpy(parameter.grad))

    def _drop_gradients(self, keep: Keep) -> list[RemovableHandle]:
        """Register hooks that pass each parameter's complete gradient to ``keep``, and then free its memory.

        Returns:
            the handles that remove the hooks.
        """

        def keep_and_drop(name: str, torch_parameter: torch.nn.Parameter) -> None:
            """Pass the gradient of a parameter to ``keep``, and free its memory."""
            assert torch_parameter.grad is not None
            keep(f"gradient:{name}", values_of(torch_parameter.grad))
            torch_parameter.grad = None

        return [
            parameter.register_post_accumulate_grad_hook(functools.partial(keep_and_drop, name))
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]

    def sort_records(self, records: Mapping[str, TensorRecord]) -> dict[str, TensorRecord]:
        """Return the records of a run's tensors by name, with gradients in the order of their parameters' use."""
        return dict(records)

    def backward(self, output: Any, keep: Keep) -> None:
        """Pass the loss to ``keep``, and compute the gradients of the parameters.

        Args:
            output: output of the model with its loss.
            keep: called with ``loss`` and its value.
        """
        if output.loss is not None:
            keep("loss", to_numpy(output.loss))
        if not self.forward_only:
            output.loss.backward()

    def trace(self, dtype: str, points: Points, nudge: int = 0) -> None:
        """Run the step so that the output of each module and operation passes through ``points``.

        Args:
            dtype: dtype of the run, as in :meth:`run`.
            points: points that record each tensor and may replace it by R64's tensor.
            nudge: number of the nudge of the weights, as in :meth:`load`.
        """
        self.load(dtype, nudge)
        self.model.train(not self.forward_only)
        self.model.zero_grad(set_to_none=True)
        recorder = Recorder(self.model, self.draws[TRAINING], keep_nothing, points=points)
        operations = OperationWatch(recorder, self.operation)
        with (
            self.in_precision(),
            keep_float64(),
            recorder.watch(),
            operations,
            self.clean(recorder, True),
            self.watch_other_operations(operations),
        ):
            output = self._run_training_forward()
            for name, value in scores_of(output).items():
                points.keep(name, value)
            self.backward(output, points.keep)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                points.keep(f"gradient:{name}", to_numpy(parameter.grad))

    def operation(self, module: str, function: Callable, arguments: tuple) -> Operation | None:
        """Return the traced operation of a torch function's call, or None if its result has no point.

        The operation has the names of the port's points, so that both sides can be compared.

        Args:
            module: dotted path of the running module.
            function: the torch function (see :mod:`models.operations.trace` for the points).
            arguments: arguments of the call.
        """
        return None

    @contextlib.contextmanager
    def watch_other_operations(self, watch: OperationWatch) -> Iterator[None]:
        """Inside the ``with`` block, pass the tensors through points that :meth:`operation` cannot name.

        Args:
            watch: watch of the trace, which has the points.
        """
        yield

    def write_draws(self, folder: Path) -> None:
        """Write each run's draws as ``draws-RUN.safetensors``, and the dropout rates as ``rates.json``.

        Args:
            folder: the reference's folder in the job folder.
        """
        for run, draws in self.draws.items():
            path = folder / f"draws-{run}.safetensors"
            if isinstance(draws.tensors, SpilledTensors):
                draws.tensors.write(path)
            else:
                files.write_tensors(path, draws.tensors)
        files.write_json(folder / "rates.json", self.draws[TRAINING].rates)

    def train_on(self, keep: Keep, truth: Mapping[str, np.ndarray], has_float32_powers: bool = False) -> None:
        """Continue from :meth:`run` with the job's number of optimizer updates, which use R64's gradients.

        ``keep`` gets the inputs of each update's forwards, ``trained:KEY`` and ``trained:KEY#2``, the parameters after
        each update, ``updated:NAME``, Lion's moments, ``moment:NAME``, the ``learning_rate`` of the whole run, and the
        loss after the last update, ``loss#2``.

        All runs get the same gradients (:mod:`toolkit.parity.measure.updates`): Adam divides a gradient by its own
        magnitude, so the rounding of a gradient near zero would change the whole update.

        Args:
            keep: called with the name and value of each tensor.
            truth: R64's tensors by name, with its gradients.
            has_float32_powers: whether AdamW keeps the powers of its betas in float32
                (:meth:`.optimizer.Optimizer.update`).
        """
        optimizer = Optimizer(self.model, self.settings)
        terms = count_loss_terms(self.task, self.labels, self.class_weights)
        weights, examples = weigh_terms(terms), clean_examples(self.labels, terms)
        self.model.train()
        self.model.zero_grad()
        for number in range(1, self.updates + 1):
            for name, value in examples.items():
                keep(append_number(name, number), value)
            for name, parameter in self.model.named_parameters():
                if (gradient := truth.get(f"gradient:{name}")) is not None:
                    update_gradient = scale_gradient(gradient, number, weights, self.settings.optimizer)
                    parameter.grad = torch.from_numpy(update_gradient).to(parameter)
                    if self.measures_bfloat16 and number == 1:
                        keep(f"accumulated:{name}", to_numpy(parameter.grad))
            optimizer.update(number, has_float32_powers)
            for name, parameter in self.model.named_parameters():
                keep(append_number(f"updated:{name}", number), to_numpy(parameter))
            for name, moment in optimizer.moments():
                keep(append_number(f"moment:{name}", number), to_numpy(moment))
        keep("learning_rate", optimizer.rates())
        recorder = Recorder(self.model, self.draws[FINAL_LOSS], keep)
        recorder.recording = False
        with torch.no_grad(), self.in_precision(), keep_float64(), recorder.watch(), self.clean(recorder, True):
            keep(append_number("loss", 2), to_numpy(self._run_training_forward().loss))

    def evaluate(self, keep: Keep, nudge: int = 0) -> None:
        """Continue from :meth:`run` with all evaluations of the model in evaluation mode.

        :mod:`toolkit.parity.measure.evaluation` describes the evaluations.

        Args:
            keep: called with the name, such as ``shorter/logits``, and value of each output, the scores and the loss.
            nudge: number of the nudge that :meth:`load` has applied, as in :meth:`vary_rounding`.
        """
        self.model.eval()
        again = {NARROW: self.is_narrowed, NO_PADDING: self.reads_without_padding}
        scores: dict[str, np.ndarray] = {}
        for run, batch in self.evaluations().items():

            def measure(name: str, value: np.ndarray, run: str = run) -> None:
                """Pass a tensor to ``keep`` with the name of its evaluation in front."""
                keep(name_in_run(run, name), value)

            recorder = Recorder(self.model, self.draws[run], measure)
            with (
                torch.no_grad(),
                self.in_precision(),
                keep_float64(),
                recorder.watch(),
                self.clean(recorder, True),
                self.vary_rounding(recorder, nudge),
            ):
                output = self.compute({name: value.contiguous() for name, value in batch.items()})
                for name, value in scores_of(output).items():
                    measure(name, value)
                    if run == WHOLE:
                        scores[name] = value
                if self.is_scored(batch):
                    measure("loss", to_numpy(output.loss))
        # Last, because a fault that other evaluations show, too, is named there by its module.
        for run in filter(again.get, again):
            for name, value in scores.items():
                keep(name_in_run(run, name), value)
        with torch.no_grad(), self.in_precision(), keep_float64():
            self.decode(keep)
            for name, value in merge_adapters(self.model):
                keep(f"merged:{name}", to_numpy(value))

    def decode(self, keep: Keep) -> None:
        """Pass the scores of tokens that are decoded one by one to ``keep``, if the model caches keys and values."""

    def vary_rounding(self, recorder: Recorder, nudge: int) -> contextlib.AbstractContextManager:
        """Return a context manager that varies the roundings which nudged weights do not change.

        Args:
            recorder: recorder of the run.
            nudge: seed of the variation; 0 leaves the roundings unchanged.
        """
        return contextlib.nullcontext()

    def _run_training_forward(self) -> Any:
        """Return the model's output on the batch, whose loss has the run's class weights and label smoothing."""
        inputs = self._inputs()
        output = self.compute(inputs)
        if self.class_weights is not None or self.label_smoothing:
            settings = self.class_weights, self.label_smoothing
            output.loss = weighted_loss(output.logits, inputs["labels"], *settings)
        return output

    def _inputs(self) -> dict[str, torch.Tensor]:
        """Return the batch on the step's device; float labels get the model's dtype, as the reference's loss needs."""
        floating = next(self.model.parameters()).dtype
        dtypes = {name: floating if x.is_floating_point() else x.dtype for name, x in self.batch.items()}
        return {name: value.to(self.device, dtypes[name]) for name, value in self.batch.items()}

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        """Inside the ``with`` block, apply the family's changes for float64 and plain autograd.

        Args:
            recorder: recorder of the run.
            plain: whether plain autograd replaces the reference's own backward.
        """
        yield


def scores_of(output: Any) -> dict[str, np.ndarray]:
    """Return the scores in a model's output and the separate terms of its loss, as arrays by tensor name."""
    scores = {name: getattr(output, name) for name in LOGITS if getattr(output, name, None) is not None}
    scores |= {f"logits:{name}": value for name, value in getattr(output, "scores", {}).items()}
    losses = {f"losses:{name}": loss for name, loss in getattr(output, "losses", {}).items()}
    return {name: to_numpy(value) for name, value in {**scores, **losses}.items()}


def nudge_copy(weight: torch.Tensor, dtype: torch.dtype, nudge: int, units: int = 1) -> torch.Tensor:
    """Return a copy of a weight in a dtype, with each element moved by ``units`` in the last place.

    Args:
        weight: float32 weight.
        dtype: dtype of the result.
        nudge: seed of each element's direction, up or down; 0 moves nothing.
        units: distance in units in the last place of ``dtype``.
    """
    return nudge_tensor_(weight.to(dtype, copy=True), nudge, units) if nudge else weight.to(dtype)


def nudge_tensor_(tensor: torch.Tensor, nudge: int, units: int = 1) -> torch.Tensor:
    """Move each element of a contiguous tensor in place by ``units`` in the last place, and return the tensor.

    The tensor is changed in pieces that stay in the processor's cache.

    Args:
        tensor: the tensor, float64 or float32.
        nudge: seed of each element's direction, up or down; 0 moves nothing.
        units: distance in units in the last place.
    """
    if not nudge:
        return tensor
    steps = steps_of(nudge, tensor.numel(), tensor.dtype)
    for piece in tensor.view(-1).split(PIECE):
        nudge_piece_(piece, steps, units)
    return tensor


def nudge_piece_(piece: torch.Tensor, steps: torch.Tensor, units: int = 1) -> None:
    """Move each element of a piece of a parameter in place, by ``units`` in the last place.

    An element 0 becomes the smallest normal number.

    Args:
        piece: the elements, (n,).
        steps: direction of each element, 1 or -1, for at least n elements (:func:`steps_of`).
        units: distance in units in the last place.
    """
    zero = piece == 0
    # The next number away from zero, or toward it, is the next bit pattern.
    piece.view(steps.dtype).add_(steps[: len(piece)], alpha=units)
    if zero.any():
        piece[zero] = torch.finfo(piece.dtype).tiny


@functools.lru_cache(maxsize=8)
def steps_of(nudge: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a random direction, 1 or -1, for each of ``count`` elements, as integers of the dtype's size.

    At most :data:`PIECE` directions are returned, which each piece of a larger tensor reuses.

    Args:
        nudge: seed of the directions.
        count: number of elements.
        dtype: dtype of the elements, float64 or float32.
    """
    integer_dtype = {torch.float64: torch.int64, torch.float32: torch.int32}[dtype]
    generator = torch.Generator().manual_seed(nudge)
    return 2 * torch.randint(0, 2, (min(PIECE, count),), generator=generator, dtype=integer_dtype) - 1
