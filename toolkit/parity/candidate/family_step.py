"""One train-mode step of a port of one of this project's families, Reformer or CTRL.

In addition to the steps of a user's pair, such a step has random generators, a loader, newly initialized weights, two
backwards, adapters, and the run's own evaluations and training loop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from models.families import family, part
from models.operations import precision, randomness
from models.port import weights
from models.port.adapter import add_adapter
from models.port.lora import LoRA
from toolkit.parity.candidate import evaluation_scores
from toolkit.parity.candidate.places import head_places, places
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import PLAIN, Measure, Step, apply_signs, step_class
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import CandidateFacts, Place
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure.evaluation import NO_PADDING, READ_WITHOUT_PADDING, RUNS, build_batches, is_scored
from toolkit.parity.measure.naming import ModuleStack


def ported_class(model: str) -> type[PortedStep]:
    """Return the step class of one of this project's families, given the family's name, such as ``reformer``."""
    kind = step_class(model)
    assert issubclass(kind, PortedStep)
    return kind


class PortedStep(Step):
    """The step of a port of one of this project's families. Subclasses add the parts that only their family needs.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
        dtype: ``float64``, ``float32`` or ``bfloat16``, as in :class:`.step.Step`.
        backward: name of the backward, one of :attr:`backwards`; None for the first.
    """

    #: Name of the recomputing backward, such as ``recompute``; :data:`PLAIN` if the family has none.
    recomputing_backward = PLAIN
    #: Names of the heads that do not read all outputs of the last layer, so that the port can skip the unread outputs
    #: (``leaves_out_unread`` of its class).
    narrowed_heads: tuple[str, ...] = ()

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        """Build the port and load the job's weights into it; see the class for the arguments."""
        self.family = job.model
        classes = part(job.model, "modeling").CLASSES
        self.backwards = (
            (PLAIN, self.recomputing_backward)
            if self.trains_by_autograd(job.port)
            else (self.recomputing_backward, PLAIN)
        )
        self.reads_without_padding = job.head in READ_WITHOUT_PADDING
        self.is_narrowed = job.head in self.narrowed_heads
        self.port = job.port
        self.dtype = dtype
        self.lowered = job.lowered if dtype == "bfloat16" else ()
        self.brief = job.brief
        self.config = job.config
        self.optimizer = job.training.optimizer
        self.folder = folder
        batch_arrays = files.read_tensors(folder / "batch.safetensors")
        # Float labels are cast up exactly, as the weights are.
        float_dtype = "float64" if dtype == "float64" else "float32"
        batch_arrays = {
            name: value.astype(float_dtype) if value.dtype == np.float32 else value
            for name, value in batch_arrays.items()
        }
        self.batch = {name: paddle.to_tensor(value) for name, value in batch_arrays.items()}
        self.reference_weights = TensorFile(folder / "weights.safetensors")
        self.model = self.build(classes[job.head], job.config, backward or self.backwards[0])
        self.model.class_weights = None if job.class_weights is None else np.array(job.class_weights, np.float32)
        self.model.label_smoothing = job.label_smoothing
        if self.is_narrowed:  # all outputs of a layer are compared
            self.model.leaves_out_unread = False
        if job.lora is not None:
            add_adapter(self.model, LoRA.from_json(job.lora))
        if dtype == "float64":
            self.model.to(dtype="float64")
        part(job.model, "weights").load(self.model, self.reference_weights)
        self.constants = self.take_constants(files.read_tensors(folder / "reference" / "constants.safetensors"))
        self.model.train()

    @functools.cached_property
    def recorded_draws(self) -> Mapping[str, Mapping[str, np.ndarray]]:  # type: ignore[override]
        """R64's draws by run and name, read on first use: a port that uses its own draws needs none."""
        return {run: TensorFile(self.folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}

    @functools.cached_property
    def rates(self) -> Mapping[str, float]:  # type: ignore[override]
        """The rates of R64's dropout masks by name, read on first use."""
        return files.read_json(self.folder / "reference" / "rates.json")

    def evaluated_unit(self) -> int:
        """Return the number that the length of a text must be a multiple of in evaluation."""
        return 1

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings keeps all activations, so that its backward recomputes nothing.

        Args:
            settings: settings of the port by name, such as ``residual``.
        """
        return True

    def build(self, kind: type, keys: Mapping[str, Any], backward: str) -> nn.Layer:
        """Return a new model of the port.

        Args:
            kind: class of the model.
            keys: the model's configuration.
            backward: name of the backward, one of :attr:`backwards`.
        """
        settings = {key: self.port[key] for key in family(self.family).settings if key in self.port}
        return kind(part(self.family, "config").CONFIG_CLASS(**{**keys, **settings}))

    def take_constants(self, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replace the port's constants by the reference's, and return the port's own constants by name."""
        return {}

    def make_draws(self, draw_tensors: Mapping[str, np.ndarray], *arguments: Any) -> RecordedDraws:
        """Return recorded draws as a source of draws, by the names of this project's modules."""
        return RecordedDraws(draw_tensors, self.rates, ModuleStack(), *arguments)

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        """Run forward and backward, and measure the tensors as :meth:`.step.Step.run` does.

        Without hooks, the model also skips the outputs that it skips in training.

        Args:
            measure: called with the name and value of each tensor.
            with_hooks: whether to measure the modules' outputs, too; otherwise only the loss and the gradients.
        """
        if self.is_narrowed:
            self.model.leaves_out_unread = not with_hooks
        super().run(measure, with_hooks)
        if self.is_narrowed:
            self.model.leaves_out_unread = False

    @contextlib.contextmanager
    def apply_draws(self, draws: RecordedDraws) -> Iterator[None]:
        """Inside the ``with`` block the model uses these draws and choices.

        The products in ``lowered`` are computed in bfloat16.
        """
        with (
            precision.cast_to_bfloat16(self.lowered),
            randomness.use_rng(draws),
            apply_signs(self.model, draws),
            self.apply_choices(draws),
        ):
            yield

    def places(self) -> dict[str, Place]:
        """Return the source locations of the modules, the head, the padding code and the training code."""
        from toolkit.parity.candidate import training  # it imports the Trainer and pandas

        return {
            **places(self.model),
            **head_places(type(self.model)),
            **(
                {NO_PADDING: evaluation_scores.place_of_padding(self.model.config)}
                if self.reads_without_padding
                else {}
            ),
            **training.training_places(self.optimizer),
        }

    def facts(self) -> CandidateFacts:
        """Return the epsilon of each layer norm of the port."""
        norms = {name: layer for name, layer in self.model.named_sublayers() if isinstance(layer, nn.LayerNorm)}
        return CandidateFacts(epsilons={name: norm._epsilon for name, norm in norms.items()})

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        """Return the batch of each evaluation by the evaluation's name (:func:`.evaluation.build_batches`)."""
        return build_batches(self.batch, self.config, self.evaluated_unit(), is_unpadded=self.reads_without_padding)

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        """Return whether a batch has a label that counts, so that its evaluation has a loss."""
        return is_scored(batch)

    def parameter_names(self) -> list[str]:
        """Return the names of all parameters."""
        return [name for name, _ in self.model.named_parameters()]

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and gradient of every parameter that has a gradient, in the reference's layout."""
        table = self.model.parameter_table
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                role = table[name].role if name in table else "unknown"
                yield name, weights.to_paddle(parameter.grad.numpy(), role)

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Train for the job's number of updates with R64's gradients and the run's Trainer, and measure the results.

        Args:
            job: the job.
            folder: job folder.
            measure: called with the name and value of each tensor.
            truth: R64's tensors by name, with its gradients.
        """
        from toolkit.parity.candidate import training  # it imports the Trainer and pandas

        training.train_on(self, job, folder, measure, truth)

    def score_again(self, batch: Mapping[str, paddle.Tensor], output: Any, measure: Measure) -> None:
        """Measure the scores of a batch without the outputs and the padding that the run's evaluations omit."""
        evaluation_scores.evaluate(self, batch, output, measure)

    def merge(self, measure: Measure) -> None:
        """Measure the weights that an adapted model saves, if the adapter changes them or a plain model lacks them.

        Nothing is measured if the model has no adapter.
        """
        if self.model.adapter is None:
            return
        plain = part(self.model.config.model_type, "weights").parameters(self.config, self.model.head)
        for name, value in self.model.state_to_save()[1].items():
            if name not in plain or self.model.adapter.is_target(name.removesuffix(".weight")):
                measure(f"merged:{name}", value)

    def own_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the parameter gradients of one step without hooks, with the port's own draws and choices.

        Each is a pair of the name ``gradient:PARAMETER`` and the value.
        """
        with precision.cast_to_bfloat16(self.lowered):
            self.model(**self.batch).loss.backward()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                yield f"gradient:{name}", parameter.grad.numpy()

    def parameter_values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and value of each parameter that the job has weights for, in the reference's layout."""
        return (pair for pair in weights.dump(self.model) if pair[0] in self.reference_weights)
