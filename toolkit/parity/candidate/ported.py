"""One train-mode step of a port of a family here. Besides what every pair has: generators, a loader, new weights, two
backwards, adapters and the run's own evaluations and training loop."""

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
from toolkit.parity.candidate import scored_again
from toolkit.parity.candidate.places import head_places, places
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import PLAIN, Measure, Step, apply_signs, step_class
from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import CandidateFacts, Place
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.evaluation import NO_PADDING, READ_WITHOUT_PADDING, RUNS, build_batches, is_scored
from toolkit.parity.measure.naming import ModuleStack


def ported_class(model: str) -> type[PortedStep]:
    """Return the steps of a family here."""
    kind = step_class(model)
    assert issubclass(kind, PortedStep)
    return kind


class PortedStep(Step):
    """A port of a family here. Subclasses add what only their family needs.

    Args:
        folder: job folder, with the reference's files.
        dtype: as of :class:`.step.Step`.
        backward: one of :attr:`backwards`; by default the first.
    """

    #: The backward besides :data:`PLAIN`, if there is one: it computes layers again.
    again = PLAIN
    #: Heads for which the port skips outputs that they do not read (``leaves_out_unread`` of its class).
    narrowed_heads: tuple[str, ...] = ()

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        self.family = job.model
        classes = part(job.model, "modeling").CLASSES
        self.backwards = (PLAIN, self.again) if self.trains_by_autograd(job.port) else (self.again, PLAIN)
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
        self.given_weights = TensorFile(folder / "weights.safetensors")
        self.model = self.build(classes[job.head], job.config, backward or self.backwards[0])
        self.model.class_weights = None if job.class_weights is None else np.array(job.class_weights, np.float32)
        self.model.label_smoothing = job.label_smoothing
        if self.is_narrowed:  # all outputs of a layer are compared
            self.model.leaves_out_unread = False
        if job.lora is not None:
            add_adapter(self.model, LoRA.from_json(job.lora))
        if dtype == "float64":
            self.model.to(dtype="float64")
        part(job.model, "weights").load(self.model, self.given_weights)
        self.constants = self.take_constants(files.read_tensors(folder / "reference" / "constants.safetensors"))
        self.model.train()

    @functools.cached_property
    def recorded_draws(self) -> Mapping[str, Mapping[str, np.ndarray]]:  # type: ignore[override]
        """R64's draws in each run, read on first use: a port that uses its own draws needs none."""
        return {run: TensorFile(self.folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}

    @functools.cached_property
    def rates(self) -> Mapping[str, float]:  # type: ignore[override]
        """The rates of R64's dropout masks; read as :attr:`recorded_draws`."""
        return files.read_json(self.folder / "reference" / "rates.json")

    def evaluated_unit(self) -> int:
        """Divisor that a text's length must have in evaluation."""
        return 1

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings of the port keeps all activations."""
        return True

    def build(self, kind: type, keys: Mapping[str, Any], backward: str) -> nn.Layer:
        """Build the port of class ``kind`` with the given backward."""
        settings = {key: self.port[key] for key in family(self.family).settings if key in self.port}
        return kind(part(self.family, "config").CONFIG_CLASS(**{**keys, **settings}))

    def take_constants(self, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Replace the port's constants by the reference's and return the port's own by name."""
        return {}

    def named_draws(self, draw_tensors: Mapping[str, np.ndarray], *arguments: Any) -> RecordedDraws:
        return RecordedDraws(draw_tensors, self.rates, ModuleStack(), *arguments)

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        """Run the step; without hooks, it skips the outputs that training skips. See :meth:`.step.Step.run`."""
        if self.is_narrowed:
            self.model.leaves_out_unread = not with_hooks
        super().run(measure, with_hooks)
        if self.is_narrowed:
            self.model.leaves_out_unread = False

    @contextlib.contextmanager
    def apply_draws(self, draws: RecordedDraws) -> Iterator[None]:
        with (
            precision.cast_to_bfloat16(self.lowered),
            randomness.use_rng(draws),
            apply_signs(self.model, draws),
            self.apply_choices(draws),
        ):
            yield

    def places(self) -> dict[str, Place]:
        from toolkit.parity.candidate import training  # it imports the Trainer and pandas

        return {
            **places(self.model),
            **head_places(type(self.model)),
            **({NO_PADDING: scored_again.place_of_padding(self.model.config)} if self.reads_without_padding else {}),
            **training.training_places(self.optimizer),
        }

    def facts(self) -> CandidateFacts:
        norms = {name: layer for name, layer in self.model.named_sublayers() if isinstance(layer, nn.LayerNorm)}
        return CandidateFacts(epsilons={name: norm._epsilon for name, norm in norms.items()})

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        return build_batches(self.batch, self.config, self.reads_without_padding, self.evaluated_unit())

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        return is_scored(batch)

    def parameter_names(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        table = self.model.parameter_table
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                role = table[name].role if name in table else "unknown"
                yield name, weights.to_paddle(parameter.grad.numpy(), role)

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Continue training after :meth:`run` with R64's gradients and the Trainer, for the job's number of updates."""
        from toolkit.parity.candidate import training  # it imports the Trainer and pandas

        training.train_on(self, job, folder, measure, truth)

    def score_again(self, batch: Mapping[str, paddle.Tensor], output: Any, measure: Measure) -> None:
        scored_again.evaluate(self, batch, output, measure)

    def merge(self, measure: Measure) -> None:
        """Measure an adapted model's saved weights that the adapter changes or that a plain model lacks."""
        if self.model.adapter is None:
            return
        plain = part(self.model.config.model_type, "weights").parameters(self.config, self.model.head)
        for name, value in self.model.state_to_save()[1].items():
            if name not in plain or self.model.adapter.is_target(name.removesuffix(".weight")):
                measure(f"merged:{name}", value)

    def generate(self) -> None:
        """Compute a few tokens, if generation has separate compiled loops, so that these are tried, too."""

    def own_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the parameter gradients of one step without hooks, with the port's own draws and choices."""
        with precision.cast_to_bfloat16(self.lowered):
            self.model(**self.batch).loss.backward()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                yield f"gradient:{name}", parameter.grad.numpy()

    def held_parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        return (pair for pair in weights.dump(self.model) if pair[0] in self.given_weights)
