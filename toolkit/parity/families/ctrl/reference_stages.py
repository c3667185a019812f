"""The reference's CTRL stage by stage (:mod:`toolkit.parity.job.stages`), for models larger than memory.

All parts are the reference's own: its embedding and masks as ``CTRLModel.forward`` makes them, its layers, its head and
loss as ``CTRLLMHeadModel.forward`` computes them. Only the loop over the layers is here. Within a stage R64 comes
first, then the runs that measure its noise.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.ctrl import modeling_ctrl

from toolkit.machine.heap import allocate_mapped_zeros, keep_freed_memory, return_large_blocks
from toolkit.parity.families.ctrl.reference import config_of, mask_notes, masked_scores_rounded_otherwise, own_mask
from toolkit.parity.families.ctrl.stage_names import SHOWN
from toolkit.parity.job import files, stages
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import OwnLoss, ReferenceFacts, ReferenceResult
from toolkit.parity.job.tensor_file import SpilledTensors, TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import RunningStats, TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName, is_gradient
from toolkit.parity.reference import own_loss
from toolkit.parity.reference.by_rows import GradientByRows
from toolkit.parity.reference.clean import NarrowingWatch, keep_float64
from toolkit.parity.reference.lora import adapt_model
from toolkit.parity.reference.points import keep_nothing, to_numpy
from toolkit.parity.reference.recorder import Draws, Recorder, first_tensor
from toolkit.parity.reference.reordered import ReorderedSums
from toolkit.parity.reference.step import DTYPES, PIECE, nudge_copy, nudge_piece_, nudge_tensor_, steps_of

TABLE = "transformer.w.weight"


class Variant(NamedTuple):
    """A run of the reference: R64 is ``truth``, the others measure its noise."""

    name: str
    dtype: str
    nudge: int


def variants(noise_runs: dict[str, int]) -> list[Variant]:
    """Return R64 and the runs of :func:`toolkit.parity.reference.noise.measure_noise`."""
    runs = [Variant("truth", "float64", 0)]
    runs += [Variant(f"float32-{run}", "float32", run) for run in range(noise_runs["float32"])]
    return runs + [Variant(f"float64-{run}", "float64", run) for run in range(1, noise_runs["float64"] + 1)]


class Ledger:
    """Records what a stage measures: R64's tensors, and the distance of every other run from them.

    Args:
        spilled: whether tensors are kept on disk: the scores over a large vocabulary take half a gigabyte.

    Attributes:
        truth: R64's tensors; as ``float32:NAME`` the shown ones of the first float32 run.
    """

    def __init__(self, runs: list[Variant], spilled: bool) -> None:
        self.runs = runs
        self.truth: dict[str, np.ndarray] | SpilledTensors = SpilledTensors() if spilled else {}
        self.records: dict[str, TensorRecord] = {}

    def keep(self, run: Variant, name: str, value: np.ndarray) -> None:
        """Record one tensor of one run."""
        if run.name == "truth":
            self._hold(name, value)
            self.add_truth(name, error_stats.describe(value))
            return
        self.add_noise(run, name, error_stats.measure_error(value, self.truth[name]))
        if run.name == "float32-0" and SHOWN.fullmatch(name):
            self._hold(f"float32:{name}", value)

    def _hold(self, name: str, value: np.ndarray) -> None:
        on_disk = isinstance(self.truth, SpilledTensors)
        self.truth[name] = value if on_disk or is_gradient(name) else value.copy()  # a layer's output may change

    def add_noise(self, run: Variant, name: str, error: TensorStats) -> None:
        """Record the distance of one run's tensor from R64's."""
        self.records[name].add_noise(run.dtype, error)

    def add_truth(self, name: str, stats: TensorStats) -> None:
        """Record the size of a tensor of R64, which need not be kept."""
        self.records[name] = TensorRecord.of(stats)


@dataclass
class MeasuredStage:
    """Results of a stage.

    Attributes:
        partial: by run, the output layer's gradient over the rows of tokens that are not in the batch.
        own_loss: of the head.
    """

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    narrowings: list[str] = field(default_factory=list)
    relu_moved: dict[str, float] = field(default_factory=dict)
    partial: dict[str, RunningStats] = field(default_factory=dict)
    own_loss: OwnLoss | None = None


class ReachedError(Exception):
    """Raised when the body reaches its first layer."""


class Capture(nn.Module):
    """Replaces the first layer: remembers its arguments, and goes no further."""

    def forward(self, hidden_states, *arguments, **options):
        self.hidden_states, self.arguments, self.options = hidden_states, arguments, options
        raise ReachedError

    @classmethod
    def first_call(cls, body: nn.Module, *inputs: torch.Tensor, **options: torch.Tensor | None) -> Capture:
        """Return the arguments that ``body`` calls its first layer with."""
        capture = cls()
        body.h = nn.ModuleList([capture])
        with own_mask(), contextlib.suppress(ReachedError):
            body(*inputs, **options)
        return capture


class Blank(nn.Module):
    """Replaces the embedding where only what is made of the masks matters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def forward(self, input_ids):
        return self.weight.expand(*input_ids.shape, -1).clone()


class Given(nn.Module):
    """Replaces the body: applies the last norm to the output of the layers."""

    def __init__(self, layernorm: nn.Module) -> None:
        super().__init__()
        self.layernorm = layernorm
        self.hidden_states: torch.Tensor | None = None

    def forward(self, *_, **__):
        return BaseModelOutputWithPast(last_hidden_state=self.layernorm(self.hidden_states))


class GradientOfTable:
    """Takes the gradient of the output layer, block by block of rows (:class:`.GradientByRows`).

    Args:
        rows: the batch's rows, sorted; they are kept.
        size: size of R64's gradient, or of another run's distance from it; grows.
        truth: gives R64's rows from one number to another; None for R64 itself.
    """

    def __init__(
        self,
        rows: np.ndarray,
        left_out: np.ndarray,
        size: RunningStats,
        truth: Callable[[int, int], np.ndarray] | None = None,
        write: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        self.rows, self.left_out, self.size, self.truth, self.write = rows, left_out, size, truth, write
        self.kept: list[np.ndarray] = []

    def take(self, start: int, rows: torch.Tensor) -> None:
        """As :data:`.by_rows.Take`."""
        value, end = rows.numpy(force=True), start + len(rows)
        if self.write is not None:
            self.write(value)
        true = None if self.truth is None else self.truth(start, end)
        self.size.add_rows(value, start, self.left_out, true)
        self.kept.append(value[self.rows[(self.rows >= start) & (self.rows < end)] - start])

    def rows_of_batch(self) -> np.ndarray:
        """Return the rows of the batch's tokens."""
        return np.concatenate(self.kept)


class StreamedCTRL:
    """The worker's state between stages."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.folder = folder
        self.depth = job.config["n_layer"]
        self.config = config_of({**job.config, "n_layer": 1})
        self.batch = {k: torch.from_numpy(v) for k, v in files.read_tensors(folder / "batch.safetensors").items()}
        self.device = torch.device("cuda" if job.device == "gpu" else "cpu")
        self.batch = {name: value.to(self.device) for name, value in self.batch.items()}
        self.runs = variants(job.noise_runs)
        self.lora = job.lora
        self.draws = Draws(job.seed)
        self.side = stages.Side(folder, "reference")
        self.rows = torch.unique(self.batch["input_ids"])  # sorted
        self.tied = self.config.tie_word_embeddings
        self.arguments = {name: self._layer_arguments(dtype) for name, dtype in DTYPES.items()}
        self.layers = {name: self._layer(dtype) for name, dtype in DTYPES.items()}
        self.leaks: list[str] = []
        self.sums: ReorderedSums | None = None

    def _each_run(self) -> Iterator[Variant]:
        """Yield one run after another; those that measure float64's noise compute every sum in another order."""
        for run in self.runs:
            is_float64s_noise = run.dtype == "float64" and run.name != "truth"
            self.sums = ReorderedSums(run.nudge) if is_float64s_noise else None
            with self.sums or contextlib.nullcontext():
                yield run

    # -- parts of the reference ---------------------------------------------------------------------------------------

    def _skeleton(self, kind: type) -> nn.Module:
        """Make a model of one layer with no memory behind its parameters."""
        with torch.device("meta"):
            model = kind(self.config)
        body = model if kind is modeling_ctrl.CTRLModel else model.transformer
        body.pos_encoding = self.position_table().to(self.device)
        return model.train()

    def position_table(self) -> torch.Tensor:
        """Return the table as the reference's constructor makes it."""
        return modeling_ctrl.positional_encoding(self.config.n_positions, self.config.n_embd, torch.float)

    def _layer(self, dtype: torch.dtype) -> nn.Module:
        layer = self._skeleton(modeling_ctrl.CTRLModel).h[0]
        adapt_model(layer, self.lora, "transformer.h.0")
        return layer.to(dtype).to_empty(device=self.device).train()

    def _layer_arguments(self, dtype: torch.dtype) -> Capture:
        """Return the arguments that the reference's body calls its layers with."""
        body = self._skeleton(modeling_ctrl.CTRLModel)
        body.w, body.h, body.layernorm = Blank(self.config.n_embd), nn.ModuleList(), nn.Identity()
        body.to(device=self.device, dtype=dtype)
        with torch.no_grad():
            return Capture.first_call(body, self.batch["input_ids"], attention_mask=self.batch.get("attention_mask"))

    def _table(self, run: Variant, weights: TensorFile, name: str, room: np.ndarray) -> torch.Tensor:
        """Read a large parameter piece by piece into ``room``, as :func:`.step.nudge_copy` gives it."""
        dtype, shape = DTYPES[run.dtype], weights.shape(name)
        flat = torch.from_numpy(room).view(dtype)[: math.prod(shape)]
        steps = steps_of(run.nudge, len(flat), dtype) if run.nudge else None
        for piece, values in zip(flat.split(PIECE), weights.pieces(name, PIECE), strict=True):
            piece.copy_(torch.from_numpy(values))
            if steps is not None:
                nudge_piece_(piece, steps)
        return flat.view(shape).to(self.device)

    def _rows_of_table(self, run: Variant, value: np.ndarray) -> nn.Parameter:
        """The batch's rows of the embedding, some hundreds of 246,534, valued as :meth:`_table` gives them."""
        rows, width = self.rows.cpu(), self.config.n_embd
        taken = torch.from_numpy(value).to(DTYPES[run.dtype], copy=True)
        if run.nudge:
            steps = steps_of(run.nudge, self.config.vocab_size * width, taken.dtype)
            places = (rows[:, None] * width + torch.arange(width)) % PIECE
            zero = taken == 0
            taken.view(steps.dtype).add_(steps[places])
            taken[zero] = torch.finfo(taken.dtype).tiny
        return nn.Parameter(taken.to(self.device))

    # -- stages -------------------------------------------------------------------------------------------------------

    def run_stage(self, stage: str, before: str | None) -> None:
        """Run a stage on what the stage ``before`` left, unless it is done."""
        if self.side.is_done(stage):
            return
        with NarrowingWatch() as narrowing:
            self._run_stage(stage, before, narrowing)

    def _run_stage(self, stage: str, before: str | None, narrowing: NarrowingWatch) -> None:
        ledger = Ledger(self.runs, stage == stages.HEAD)
        state = self.side.state(before) if before else {}
        measured = MeasuredStage(ledger.records)
        if stage == stages.EMBEDDING:
            after = self._embedding(ledger)
        elif stage == stages.HEAD:
            with return_large_blocks():
                after = self._head(ledger, state, measured)
        elif stage == stages.EMBEDDING + stages.BACKWARD:
            after = self._embedding_backward(ledger, state)
        elif stage.endswith(stages.BACKWARD):
            after = self._layer_backward(stage, ledger, state)
        else:
            after = self._layer_forward(stage, ledger, state)
        measured.relu_moved, measured.narrowings, measured.leaks = self.draws.moved, narrowing.places, self.leaks
        self._write_draws(stage)
        self.side.write_truth(stage, dict(ledger.truth))
        self.side.leave(stage, after)
        self.side.finish(stage, measured)

    def _write_draws(self, stage: str) -> None:
        files.write_tensors(self.side.path("draws", stage), dict(self.draws.tensors))
        files.write_json(self.side.path("draws", stage).with_suffix(".json"), self.draws.rates)
        self.draws = Draws(self.draws.seed)  # drawn again by name in the backward

    def _embedding(self, ledger: Ledger) -> dict[str, np.ndarray]:
        rows = self._read_rows()
        return {run.name: to_numpy(self._embed(run, rows, ledger)[0]) for run in self.runs}

    def _read_rows(self) -> np.ndarray:
        """Read the batch's rows of the embedding."""
        weights = stages.open_weights(self.folder, stages.EMBEDDING)
        return np.concatenate([weights.rows(TABLE, row, row + 1) for row in self.rows.tolist()])

    def _embed(self, run: Variant, rows: np.ndarray, ledger: Ledger | None) -> tuple[torch.Tensor, nn.Parameter]:
        """The first layer's input and the batch's rows of the embedding; without a ledger, ready for a backward."""
        body = self._skeleton(modeling_ctrl.CTRLModel)
        body.w.weight = self._rows_of_table(run, rows)
        tokens = torch.searchsorted(self.rows, self.batch["input_ids"])  # each token's place among them
        body.h, body.layernorm = nn.ModuleList(), nn.Identity()

        def keep(name: str, value: np.ndarray) -> None:
            if ledger is not None and name in ("output:transformer.w", "output:transformer.dropout"):
                ledger.keep(run, name, value)

        recorder = Recorder(body, self.draws, keep, prefix="transformer")
        recorder.recording = ledger is not None
        with recorder.watch(), torch.set_grad_enabled(ledger is None):
            call = Capture.first_call(body, tokens, attention_mask=self.batch.get("attention_mask"))
        return call.hidden_states, body.w.weight

    def _load_layer(self, run: Variant, stage: str, weights: dict[str, np.ndarray]) -> tuple[nn.Module, str]:
        prefix = f"transformer.h.{stages.layer_of(stage)}"
        layer = self.layers[run.dtype]
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                fill(parameter, torch.from_numpy(weights[f"{prefix}.{name}"]), run.nudge)
        return layer, prefix

    def _layer_forward(self, stage: str, ledger: Ledger, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        weights = stages.read_weights(self.folder, stage)
        after = {}
        for run in self._each_run():
            layer, prefix = self._load_layer(run, stage, weights)
            recorder = Recorder(layer, self.draws, functools.partial(ledger.keep, run), prefix)
            call = self.arguments[run.dtype]
            moved = masked_scores_rounded_otherwise(recorder.stack, run.nudge)
            with torch.no_grad(), recorder.watch(), moved:
                hidden_states = torch.from_numpy(state[run.name]).to(self.device)
                after[run.name] = to_numpy(first_tensor(layer(hidden_states, *call.arguments, **call.options)))
        return after

    def _layer_backward(self, stage: str, ledger: Ledger, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        weights = stages.read_weights(self.folder, stage)
        index = stages.layer_of(stage)
        inputs = self.side.state(stages.layer(index - 1) if index else stages.EMBEDDING)
        after = {}
        for run in self._each_run():
            layer, prefix = self._load_layer(run, stage, weights)
            recorder = Recorder(layer, self.draws, keep_nothing, prefix)
            recorder.recording = False
            call = self.arguments[run.dtype]
            hidden_states = torch.from_numpy(inputs[run.name]).to(self.device).requires_grad_()
            with recorder.watch(), masked_scores_rounded_otherwise(recorder.stack, run.nudge):
                output = first_tensor(layer(hidden_states, *call.arguments, **call.options))
            assert output is not None
            output.backward(torch.from_numpy(state[run.name]).to(self.device))
            for name, parameter in layer.named_parameters():
                if parameter.grad is not None:  # not frozen
                    ledger.keep(run, f"gradient:{prefix}.{name}", parameter.grad.numpy(force=True))
            layer.zero_grad(set_to_none=True)  # the ledger now owns what it keeps
            after[run.name] = to_numpy(hidden_states.grad)
        return after

    def _head(self, ledger: Ledger, state: dict[str, np.ndarray], measured: MeasuredStage) -> dict[str, np.ndarray]:
        """Compute last norm, logits, loss and their backward. The output layer's gradient has a file of its own."""
        table = TABLE if self.tied else "lm_head.weight"
        weights = stages.open_weights(self.folder, stages.HEAD)
        tables = stages.open_weights(self.folder, stages.EMBEDDING) if self.tied else weights
        room = allocate_mapped_zeros((math.prod(tables.shape(table)),), "float64")  # reused by each run
        after: dict[str, np.ndarray] = {}
        for run in self._each_run():
            with self._gradient_of_table(run, table, measured.partial) as gradient:
                by_rows = GradientByRows(self._table(run, tables, table, room), gradient.take, self.sums)
                model = self._head_model(run, weights, by_rows.used)
                hidden_states = torch.from_numpy(state[run.name]).to(self.device).requires_grad_()
                model.transformer.hidden_states = hidden_states

                def keep(name: str, value: np.ndarray, run: Variant = run) -> None:
                    if name == "output:transformer.layernorm":
                        ledger.keep(run, name, value)

                recorder = Recorder(model, self.draws, keep)
                with keep_float64() as leaks, recorder.watch():
                    output = model(**self.batch)
                self.leaks = sorted({*self.leaks, *leaks})
                loss = output.loss
                ledger.keep(run, "logits", output.logits.numpy(force=True))
                ledger.keep(run, "loss", to_numpy(loss))
                del output  # for a large vocabulary, the scores take half a gigabyte
                with by_rows:
                    loss.backward()
            for name, parameter in model.named_parameters():
                ledger.keep(run, f"gradient:{name}", to_numpy(parameter.grad))
            after[run.name] = to_numpy(hidden_states.grad)
            after[f"rows:{run.name}"] = gradient.rows_of_batch()
            del model, loss, by_rows
        del room
        batch = {name: to_numpy(value) for name, value in self.batch.items()}
        skeleton = self._skeleton(modeling_ctrl.CTRLLMHeadModel)
        measured.own_loss = own_loss.check_loss(ledger.truth, batch, "causal_lm", skeleton)
        if not self.tied:
            self._record_table(ledger, table, measured.partial)
        return after

    def _head_model(self, run: Variant, weights: TensorFile, table: torch.Tensor) -> nn.Module:
        model = self._skeleton(modeling_ctrl.CTRLLMHeadModel)
        norm = model.transformer.layernorm.to(DTYPES[run.dtype]).to_empty(device=self.device)
        with torch.no_grad():
            for name, parameter in norm.named_parameters():
                fill(parameter, torch.from_numpy(weights[f"transformer.layernorm.{name}"]), run.nudge)
        model.transformer = Given(norm)
        bias = nudge_copy(torch.from_numpy(weights["lm_head.bias"]), DTYPES[run.dtype], run.nudge)
        model.lm_head.bias = nn.Parameter(bias.to(self.device))
        del model.lm_head.weight  # only a parameter may replace a parameter
        model.lm_head.weight = table
        return model

    @contextlib.contextmanager
    def _gradient_of_table(self, run: Variant, table: str, sizes: dict[str, RunningStats]) -> Iterator[GradientOfTable]:
        """Yield what takes the output layer's gradient. After the ``with`` block, R64's is in a file of its own.

        If the layer is tied to the embedding, the sizes cover only rows of tokens that are not in the batch: the
        others are complete when the embedding's share has been added.
        """
        rows, shape = self.rows.cpu().numpy(), (self.config.vocab_size, self.config.n_embd)
        left_out = rows if self.tied else np.array([], int)
        sizes[run.name] = RunningStats()
        if run.name != "truth":
            truth = TensorFile(self.side.path("truth", "head-table"))
            yield GradientOfTable(rows, left_out, sizes[run.name], functools.partial(truth.rows, table))
            return
        with self.side.writing_truth("head-table", 8 * math.prod(shape)) as writer:
            writer.begin(table, "float64", shape)
            yield GradientOfTable(rows, left_out, sizes[run.name], write=writer.extend)

    def _record_table(self, ledger: Ledger, table: str, sizes: dict[str, RunningStats]) -> None:
        shape = (self.config.vocab_size, self.config.n_embd)
        for run in self.runs:
            stats = sizes[run.name].stats(shape)
            if run.name == "truth":
                ledger.add_truth(f"gradient:{table}", stats)
            else:
                ledger.add_noise(run, f"gradient:{table}", stats)

    def _embedding_backward(self, ledger: Ledger, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        embedded = self._read_rows()
        head, partial = self.side.state(stages.HEAD), self.side.measurements(stages.HEAD, MeasuredStage).partial
        rows = self.rows.cpu()
        unused = (self.config.vocab_size - len(rows)) * self.config.n_embd
        sizes = {}
        for run in self._each_run():
            ledger.keep(run, "gradient:transformer.dropout", state[run.name])
            hidden_states, table = self._embed(run, embedded, None)
            hidden_states.backward(torch.from_numpy(state[run.name]).to(self.device))
            gradient = to_numpy(table.grad)
            rest = RunningStats(unused)
            if self.tied:
                gradient += head[f"rows:{run.name}"]
                rest = partial[run.name]
            if run.name == "truth":
                ledger.truth[f"rows:{TABLE}"] = gradient
            rest.add(RunningStats.of(gradient, None if run.name == "truth" else ledger.truth[f"rows:{TABLE}"]))
            sizes[run.name] = rest
            del hidden_states, table
        self._record_table(ledger, TABLE, sizes)
        ledger.truth["rows"] = rows.numpy()
        return {}


def fill(parameter: nn.Parameter, value: torch.Tensor, nudge: int) -> None:
    """Give a parameter its values, nudged as by :func:`.step.nudge_copy`. In the host's memory this is done
    in place: a copy of a large layer would fill it again and again."""
    if parameter.device.type != "cpu":
        value = nudge_copy(value, parameter.dtype, nudge)
    parameter.copy_(value)
    if parameter.device.type == "cpu":
        nudge_tensor_(parameter.detach(), nudge)


def run(job: Job, folder: Path) -> ReferenceResult:
    """Go through all stages."""
    keep_freed_memory()
    model = StreamedCTRL(job, folder)
    constants = {"transformer.pos_encoding": model.position_table().numpy()}
    files.write_tensors(folder / "reference" / "constants.safetensors", constants)
    todo = stages.plan(model.depth)
    for before, stage in zip([None, *todo], todo, strict=False):
        model.run_stage(stage, before)
    measured = {stage: model.side.measurements(stage, MeasuredStage) for stage in todo}
    # Outputs in the order of execution, then gradients in the order of the parameters, as of a whole model.
    tensors: dict[str, TensorRecord] = {}
    for order, wanted in ((todo, False), (reversed(todo), True)):
        for stage in order:
            found = measured[stage].tensors.items()
            tensors.update({name: record for name, record in found if is_gradient(name) == wanted})
    gradients = {TensorName.parse(name).module: record for name, record in tensors.items() if is_gradient(name)}
    return ReferenceResult(
        tensors=tensors,
        parameters={name: record.shape for name, record in gradients.items() if "dropout" not in name},
        facts=ReferenceFacts(relu_moved={k: by for one in measured.values() for k, by in one.relu_moved.items()}),
        leaks=sorted({leak for one in measured.values() for leak in one.leaks}),
        narrowings=list(dict.fromkeys(place for one in measured.values() for place in one.narrowings)),
        own_loss=measured[stages.HEAD].own_loss,
        notes=mask_notes(),
        streamed=True,
    )
