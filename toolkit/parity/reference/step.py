"""One train-mode step of a reference model: forward and backward, in a dtype, with its draws given."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from toolkit.parity.job import files
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import Note, ReferenceFacts
from toolkit.parity.job.tensor_file import SpilledTensors, TensorFile
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
from toolkit.parity.reference.clean import NarrowingWatch, SaturationWatch, no_downcast
from toolkit.parity.reference.lora import adapt, merged
from toolkit.parity.reference.optimizer import Optimizer, decayed_parameters
from toolkit.parity.reference.points import Keep, Operation, OperationWatch, Points, ignore, to_numpy, values_of
from toolkit.parity.reference.precision import in_precision
from toolkit.parity.reference.recorder import Draws, Recorder

DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Storage dtype of a run; only the lowered products use another.
HELD_IN = {**DTYPES, "bfloat16": torch.float32}
#: Outputs of heads, besides the loss.
LOGITS = ("logits", "start_logits", "end_logits")

#: Names of the job folder's files given to both workers.
GIVEN = ("weights", "batch", "labels")

#: Elements of a weight nudged at a time, each piece by the same draws: the largest matrix has 3 * 10^8 of them.
PIECE = 2**20
#: A quarter of bfloat16's unit in the last place, in units of float32.
QUARTER = 2**14


def make_step(job: Job, folder: Path) -> Step:
    """The step of the job's family, on the job's weights and batch."""
    kind = family_part(job.model, "reference").STEP
    weights, *others = (folder / f"{name}.safetensors" for name in GIVEN)
    read: Callable[[Path], Mapping[str, np.ndarray]] = TensorFile if job.brief else files.read_tensors
    step = kind(job, read(weights), *map(files.read_tensors, others))
    if job.pair is not None:
        step.set_initial_buffers(files.read_tensors(folder / files.INITIAL_BUFFERS))
    return step


class Step:
    """A model of a family, its weights and a batch.

    Subclasses name each head's class, and what else to watch or keep clean.

    Attributes:
        goes_back_as_the_reference: whether the port computes layers again from streams that it has rounded, as the
            reference's own backward does.
        draws: first draws in each of :data:`.evaluation.RUNS`; later runs repeat them.
        leaks: where the last run would have computed in float32 although the model is float64.
        narrowings: where R64 still computed in less than float64.
        saturation: by attention module, the share of R64's rows that are saturated (see :class:`SaturationWatch`).
        reads_without_padding: whether the port's run evaluates texts without the padding that changes nothing.
        is_narrowed: whether the port may leave out what the head does not read (``narrowed_heads``).
        saturated: number of rows of the last run with every attention score masked, if that had to be mended.
    """

    #: head -> the reference's class.
    heads: ClassVar[Mapping[str, type]] = {}
    #: The module whose output is the embedded input.
    embedded = ""
    #: Whether the step is a forward in evaluation mode, and trains nothing.
    forward_only = False
    #: Of a user's pair, where the loss does not depend on R64's outputs (:attr:`.recorder.Recorder.unread`).
    unread: dict[str, np.ndarray] | None = None
    #: Whether each gradient is dropped as soon as it is kept: all of a large model's are as large as the model.
    drops_gradients = False
    #: Second names of a parameter in the reference's own ``state_dict``.
    aliases: ClassVar[Mapping[str, str]] = {}
    #: Heads of which the port leaves out what they do not read.
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
        adapt(self.model, job.lora)
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
        self.goes_back_as_the_reference = job.port.get("residual") == "plain"
        self.draws = {run: Draws(job.seed, number, job.spare_memory) for number, run in enumerate(RUNS)}
        self.read_beside: set[str] = set()
        self.leaks: list[str] = []
        self.narrowings: list[str] = []
        self.saturated = 0
        self.saturation: dict[str, float] = {}

    def build(self, job: Job) -> torch.nn.Module:
        """The model of the job's head."""
        return self.heads[job.head](self.configuration(job.config))

    def evaluated_unit(self) -> int:
        """Divisor that a text's length must have in evaluation."""
        return 1

    def compute(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """The model's output, with its ``loss`` where there are labels."""
        return self.model(**inputs)

    def evaluations(self) -> dict[str, dict[str, torch.Tensor]]:
        """The batch of each evaluation, by its name."""
        return build_batches(self._inputs(), self.config, self.reads_without_padding, self.evaluated_unit())

    def is_scored(self, batch: Mapping[str, torch.Tensor]) -> bool:
        """Whether an evaluation has a loss."""
        return is_scored(batch)

    def configuration(self, keys: Mapping) -> object:
        """The reference's configuration object."""
        raise NotImplementedError

    def constants(self) -> dict[str, np.ndarray]:
        """Return what the reference computes once and holds beside its parameters; the port is given the same."""
        return {}

    def positions_of(self, model: torch.nn.Module) -> dict[str, np.ndarray]:
        """Return the part of the position table that the whole checkpoint's model, in evaluation mode, uses for texts
        of the job's length, if the job has cut it."""
        return {}

    def facts(self, records: Mapping[str, TensorRecord]) -> ReferenceFacts:
        """Return further facts that the verdict needs."""
        norms = {name: m for name, m in self.model.named_modules() if isinstance(m, torch.nn.LayerNorm)}
        return ReferenceFacts(
            epsilons={name: norm.eps for name, norm in norms.items()},
            decayed=decayed_parameters(self.model),
            saturation=self.saturation,
            relu_moved=self._moved(lambda draws: draws.moved),
            relu_moved_lowered=self._moved(lambda draws: draws.moved_lowered),
        )

    def _moved(self, of: Callable[[Draws], Mapping[str, float]]) -> dict[str, float]:
        return {name_in_run(run, name): by for run, draws in self.draws.items() for name, by in of(draws).items()}

    @property
    def notes(self) -> list[Note]:
        """How the reference was made to compute what the model is defined to compute, where its code does not."""
        return []

    def load(self, dtype: str, nudge: int = 0) -> None:
        """Put the weights into the model; ``nudge`` > 0 moves each by one unit in the last place of ``dtype``, up or
        down by a draw that differs with the number. In bfloat16 it moves those of linear layers alone, by a quarter of
        bfloat16's unit, so that half of them are rounded up or down by luck."""
        self.dtype = dtype
        for draws in self.draws.values():
            draws.is_lowered = dtype == "bfloat16"
        held, moved = HELD_IN[dtype], self._moved_weights()
        values = {
            name: nudged(value, held, nudge if name in moved else 0, QUARTER if dtype == "bfloat16" else 1)
            for name, value in self.weights.items()
        }
        self.model.to(dtype=held)
        held = self.model.state_dict().keys() - values.keys()  # an output layer that is not tied has its own
        values.update({alias: values[name] for alias, name in self.aliases.items() if alias in held})
        self.model.load_state_dict(values, strict=True)
        self.model.to(device=self.device)

    def _moved_weights(self) -> set[str]:
        """Names of the weights that a nudge moves."""
        if self.dtype != "bfloat16":
            return set(self.weights)
        layers = (name for name, layer in self.model.named_modules() if isinstance(layer, torch.nn.Linear))
        return {f"{name}.weight" for name in layers}

    def in_precision(self) -> contextlib.AbstractContextManager:
        """Use the precision of the last :meth:`load` inside the ``with`` block."""
        return in_precision(self.dtype, self.lowered, self.device)

    def run(self, dtype: str, keep: Keep, nudge: int = 0, plain: bool = True, watched: bool = True) -> None:
        """Forward and backward; every output, the loss, the scores and every gradient go to ``keep`` (name, array).

        Args:
            nudge: as :meth:`load`.
            plain: gradients by plain autograd, even if the reference has its own backward.
            watched: False to keep the loss and the gradients alone, and no output.
        """
        self.load(dtype, nudge)
        self.forward_and_backward(keep, nudge, plain, watched)

    def forward_and_backward(self, keep: Keep, nudge: int = 0, plain: bool = True, watched: bool = True) -> None:
        """As :meth:`run`, with the parameters as they are."""
        self.model.train(not self.forward_only)
        self.model.zero_grad(set_to_none=True)
        recorder = Recorder(self.model, self.draws[TRAINING], keep, embedded=self.embedded)
        recorder.recording = watched
        is_truth = watched and self.dtype == "float64" and not nudge
        recorder.unread = self.unread if is_truth else None
        hooks = self._drop_gradients(keep) if self.drops_gradients else []
        narrowing = NarrowingWatch()
        saturation = SaturationWatch(lambda: recorder.stack.module)
        with (
            self.in_precision(),  # the first to be entered is the last to be asked: others see float32
            no_downcast() as leaks,
            recorder.watch(),
            self.clean(recorder, plain),
            self.rounded_otherwise(recorder, nudge),
            narrowing if is_truth else contextlib.nullcontext(),
            saturation if is_truth else contextlib.nullcontext(),
        ):
            output = self._trained_on()
            for name, value in scores_of(output).items() if watched else ():
                keep(name, value)
            recorder.recording = False
            self.go_back(output, keep)
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
        """Have each parameter's gradient kept when it is complete, and then dropped."""

        def hand_on(name: str, parameter: torch.nn.Parameter) -> None:
            assert parameter.grad is not None
            keep(f"gradient:{name}", values_of(parameter.grad))
            parameter.grad = None

        return [
            parameter.register_post_accumulate_grad_hook(functools.partial(hand_on, name))
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]

    def in_order(self, records: Mapping[str, TensorRecord]) -> dict[str, TensorRecord]:
        """Return the records of a run, the gradients in the order in which their parameters are used."""
        return dict(records)

    def go_back(self, output: Any, keep: Keep) -> None:
        """Keep the loss, and compute the gradients."""
        if output.loss is not None:
            keep("loss", to_numpy(output.loss))
        if not self.forward_only:
            output.loss.backward()

    def trace(self, dtype: str, points: Points, nudge: int = 0) -> None:
        """As a watched :meth:`run`, with the output of every module and operation passing through ``points``."""
        self.load(dtype, nudge)
        self.model.train(not self.forward_only)
        self.model.zero_grad(set_to_none=True)
        recorder = Recorder(self.model, self.draws[TRAINING], ignore, points=points)
        operations = OperationWatch(recorder, self.operation)
        with (
            self.in_precision(),
            no_downcast(),
            recorder.watch(),
            operations,
            self.clean(recorder, True),
            self.operations_apart(operations),
        ):
            output = self._trained_on()
            for name, value in scores_of(output).items():
                points.keep(name, value)
            self.go_back(output, points.keep)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                points.keep(f"gradient:{name}", to_numpy(parameter.grad))

    def operation(self, module: str, function: Callable, arguments: tuple) -> Operation | None:
        """What a call of a function of torch is inside a module of the reference, by the names of the port's own points
        (see :mod:`models.operations.trace`); None for any that has no point there."""
        return None

    @contextlib.contextmanager
    def operations_apart(self, watch: OperationWatch) -> Iterator[None]:
        """Inside the ``with`` block, pass through points what :meth:`operation` alone cannot."""
        yield

    def write_draws(self, folder: Path) -> None:
        """Write each run's draws, and the dropout rates, into the reference's part of a job."""
        for run, draws in self.draws.items():
            path = folder / f"draws-{run}.safetensors"
            if isinstance(draws.tensors, SpilledTensors):
                draws.tensors.write(path)
            else:
                files.write_tensors(path, draws.tensors)
        files.write_json(folder / "rates.json", self.draws[TRAINING].rates)

    def train_on(self, keep: Keep, truth: Mapping[str, np.ndarray], rounded: bool = False) -> None:
        """Continue from :meth:`run` with the job's number of updates, on R64's gradients. ``keep`` gets each update's
        examples as the forwards should be given them, ``trained:KEY`` and ``trained:KEY#2``, the parameters after it,
        ``updated:NAME``, Lion's moments, ``moment:NAME``, the ``learning_rate`` over the whole run, and the
        loss after the last update, ``loss#2``.

        Every run is given the same gradients (:mod:`toolkit.parity.measure.updates`): Adam divides each by its own
        size, so the rounding of one that is nearly zero would change the whole update.

        Args:
            rounded: as :meth:`.optimizer.Optimizer.update`.
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
                    given = scale_gradient(gradient, number, weights, self.settings.optimizer)
                    parameter.grad = torch.from_numpy(given).to(parameter)
                    if self.measures_bfloat16 and number == 1:
                        keep(f"accumulated:{name}", to_numpy(parameter.grad))
            optimizer.update(number, rounded)
            for name, parameter in self.model.named_parameters():
                keep(append_number(f"updated:{name}", number), to_numpy(parameter))
            for name, moment in optimizer.moments():
                keep(append_number(f"moment:{name}", number), to_numpy(moment))
        keep("learning_rate", optimizer.rates())
        recorder = Recorder(self.model, self.draws[FINAL_LOSS], keep)
        recorder.recording = False
        with torch.no_grad(), self.in_precision(), no_downcast(), recorder.watch(), self.clean(recorder, True):
            keep(append_number("loss", 2), to_numpy(self._trained_on().loss))

    def evaluate(self, keep: Keep, nudge: int = 0) -> None:
        """Go on from :meth:`run` in evaluation mode (:mod:`toolkit.parity.measure.evaluation`): every output, the
        scores and the loss go to ``keep``."""
        self.model.eval()
        again = {NARROW: self.is_narrowed, NO_PADDING: self.reads_without_padding}
        scores: dict[str, np.ndarray] = {}
        for run, batch in self.evaluations().items():

            def measure(name: str, value: np.ndarray, run: str = run) -> None:
                keep(name_in_run(run, name), value)

            recorder = Recorder(self.model, self.draws[run], measure)
            with (
                torch.no_grad(),
                self.in_precision(),
                no_downcast(),
                recorder.watch(),
                self.clean(recorder, True),
                self.rounded_otherwise(recorder, nudge),
            ):
                output = self.compute({name: value.contiguous() for name, value in batch.items()})
                for name, value in scores_of(output).items():
                    measure(name, value)
                    if run == WHOLE:
                        scores[name] = value
                if self.is_scored(batch):
                    measure("loss", to_numpy(output.loss))
        for run in filter(again.get, again):  # last: what is wrong in another evaluation, too, is of a module
            for name, value in scores.items():
                keep(name_in_run(run, name), value)
        with torch.no_grad(), self.in_precision(), no_downcast():
            self.decode(keep)
            for name, value in merged(self.model):
                keep(f"merged:{name}", to_numpy(value))

    def decode(self, keep: Keep) -> None:
        """Hand on the scores of tokens one by one, each with the keys and values before it if the model keeps them."""

    def rounded_otherwise(self, recorder: Recorder, nudge: int) -> contextlib.AbstractContextManager:
        """Inside the ``with`` block, round otherwise what is rounded by the same luck however the weights are moved, by
        draws that differ with ``nudge``; 0: unchanged."""
        return contextlib.nullcontext()

    def _trained_on(self) -> Any:
        """Return the model's output on the batch, with the training loss."""
        inputs = self._inputs()
        output = self.compute(inputs)
        if self.class_weights is not None or self.label_smoothing:
            given = self.class_weights, self.label_smoothing
            output.loss = weighted_loss(output.logits, inputs["labels"], *given)
        return output

    def _inputs(self) -> dict[str, torch.Tensor]:
        """Return the batch; float labels get the dtype of the model, as the reference's loss needs."""
        floating = next(self.model.parameters()).dtype
        dtypes = {name: floating if x.is_floating_point() else x.dtype for name, x in self.batch.items()}
        return {name: value.to(self.device, dtypes[name]) for name, value in self.batch.items()}

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        """Apply the family's changes for a clean run inside the ``with`` block."""
        yield


def scores_of(output: Any) -> dict[str, np.ndarray]:
    """The scores in a model's output, and the losses that its loss is the sum of, by their names."""
    scores = {name: getattr(output, name) for name in LOGITS if getattr(output, name, None) is not None}
    scores |= {f"logits:{name}": value for name, value in getattr(output, "scores", {}).items()}
    losses = {f"losses:{name}": loss for name, loss in getattr(output, "losses", {}).items()}
    return {name: to_numpy(value) for name, value in {**scores, **losses}.items()}


def nudged(value: torch.Tensor, dtype: torch.dtype, nudge: int, units: int = 1) -> torch.Tensor:
    """The values in a dtype, moved by ``units`` in the last place by draws that differ with ``nudge``; 0: none."""
    return nudge_(value.to(dtype, copy=True), nudge, units) if nudge else value.to(dtype)


def nudge_(value: torch.Tensor, nudge: int, units: int = 1) -> torch.Tensor:
    """As :func:`nudged`, in place, of a contiguous tensor; a piece at a time, which stays in the cache."""
    if not nudge:
        return value
    steps = steps_of(nudge, value.numel(), value.dtype)
    for piece in value.view(-1).split(PIECE):
        move_(piece, steps, units)
    return value


def move_(piece: torch.Tensor, steps: torch.Tensor, units: int = 1) -> None:
    """Move each element of a piece of a parameter, in place, by ``units`` in the last place in the direction of its
    step in ``steps`` (:func:`steps_of`)."""
    zero = piece == 0
    # The next number away from zero, or towards it, is the next bit pattern.
    piece.view(steps.dtype).add_(steps[: len(piece)], alpha=units)
    if zero.any():
        piece[zero] = torch.finfo(piece.dtype).tiny


@functools.lru_cache(maxsize=8)
def steps_of(nudge: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return 1 or -1 for each of ``count`` elements, at most :data:`PIECE`, which then repeat: integers of the dtype's
    size."""
    whole = {torch.float64: torch.int64, torch.float32: torch.int32}[dtype]
    generator = torch.Generator().manual_seed(nudge)
    return 2 * torch.randint(0, 2, (min(PIECE, count),), generator=generator, dtype=whole) - 1
