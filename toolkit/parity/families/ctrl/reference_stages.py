"""Runs CTRL's reference stage by stage (:mod:`toolkit.parity.exchange.stages`), for models larger than memory.

A stage is the embedding, a layer, or the head, in the forward or the backward. All parts are the reference's own: its
embedding and masks as in ``CTRLModel.forward``, its layers, and its head and loss as in ``CTRLLMHeadModel.forward``.
Only the loop over the layers is here. Each stage first computes R64, and then the runs that measure the noise baseline.
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
from toolkit.parity.exchange import files, stages
from toolkit.parity.exchange.results import OwnLoss, ReferenceFacts, ReferenceResult
from toolkit.parity.exchange.tensor_file import SpilledTensors, TensorFile
from toolkit.parity.families.ctrl.reference import make_config, mask_notes, use_own_mask, vary_masked_scores
from toolkit.parity.families.ctrl.stage_names import PUBLISHED_NAMES
from toolkit.parity.job.job import Job
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import RunningStats, TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName, is_gradient
from toolkit.parity.reference import own_loss
from toolkit.parity.reference.float64_checks import NarrowingWatch, keep_float64
from toolkit.parity.reference.lora import adapt_model
from toolkit.parity.reference.points import keep_nothing, to_numpy
from toolkit.parity.reference.recorder import Draws, Recorder, first_tensor
from toolkit.parity.reference.reordered_sums import ReorderedSums
from toolkit.parity.reference.row_gradients import GradientByRows
from toolkit.parity.reference.step import DTYPES, PIECE, nudge_copy, nudge_piece_, nudge_tensor_, steps_of

#: Name of the embedding's weight.
EMBEDDING_WEIGHT = "transformer.w.weight"


class ReferenceRun(NamedTuple):
    """A run of the reference: R64, or one of the runs that measure the noise baseline.

    Attributes:
        name: `truth` for R64, otherwise the dtype and number of the run, such as `float32-0`.
        dtype: dtype of the run.
        nudge: 0 for unchanged weights. Any other number moves each weight by one unit in the last place, in directions
            that depend on the number.
    """

    name: str
    dtype: str
    nudge: int


def plan_runs(noise_runs: dict[str, int]) -> list[ReferenceRun]:
    """Return the runs of the reference in order, R64 first.

    Args:
        noise_runs: number of noise runs of each dtype, as in :func:`toolkit.parity.reference.noise.measure_noise`.
    """
    runs = [ReferenceRun("truth", "float64", 0)]
    runs += [ReferenceRun(f"float32-{run}", "float32", run) for run in range(noise_runs["float32"])]
    return runs + [ReferenceRun(f"float64-{run}", "float64", run) for run in range(1, noise_runs["float64"] + 1)]


class Ledger:
    """Records R64's tensors of a stage, and the distance of every other run from them.

    Args:
        runs: runs of the reference.
        uses_disk: whether tensors are kept on disk, because the logits over a large vocabulary take half a gigabyte.

    Attributes:
        truth: R64's tensors by name. Published tensors of the first float32 run are named `float32:NAME`.
        records: size of each tensor of R64, and its noise in each dtype, by name.
    """

    def __init__(self, runs: list[ReferenceRun], uses_disk: bool) -> None:
        self.runs = runs
        self.truth: dict[str, np.ndarray] | SpilledTensors = SpilledTensors() if uses_disk else {}
        self.records: dict[str, TensorRecord] = {}

    def keep(self, reference_run: ReferenceRun, name: str, value: np.ndarray) -> None:
        """Record one tensor of one run. The tensor of R64 must be recorded before the other runs.

        Args:
            reference_run: run of the reference.
            name: name of the tensor.
            value: the tensor.
        """
        if reference_run.name == "truth":
            self._store(name, value)
            self.add_truth(name, error_stats.describe(value))
            return
        self.add_noise(reference_run, name, error_stats.measure_error(value, self.truth[name]))
        if reference_run.name == "float32-0" and PUBLISHED_NAMES.fullmatch(name):
            self._store(f"float32:{name}", value)

    def _store(self, name: str, value: np.ndarray) -> None:
        """Store a tensor in :attr:`truth`."""
        is_on_disk = isinstance(self.truth, SpilledTensors)
        self.truth[name] = value if is_on_disk or is_gradient(name) else value.copy()  # a layer's output may change

    def add_noise(self, reference_run: ReferenceRun, name: str, difference_stats: TensorStats) -> None:
        """Record the distance of a tensor of a run from R64.

        Args:
            reference_run: run of the reference.
            name: name of the tensor.
            difference_stats: statistics of the difference.
        """
        self.records[name].add_noise(reference_run.dtype, difference_stats)

    def add_truth(self, name: str, stats: TensorStats) -> None:
        """Record the size of a tensor of R64, which is not stored.

        Args:
            name: name of the tensor.
            stats: statistics of the tensor.
        """
        self.records[name] = TensorRecord.of(stats)


@dataclass
class MeasuredStage:
    """The measurements of a stage.

    Attributes:
        tensors: size of each tensor of R64, and its noise, by name.
        leaks: source locations where float64 would have been cast to fewer digits.
        narrowings: source locations where R64 still computed in less than float64.
        relu_moved: largest change of an input by rounding, in units of float32, by ReLU.
        partial: statistics of the gradient of the head's weight by run. A tied weight omits the rows of the batch's
            tokens.
        own_loss: comparison of R64's loss with its definition in NumPy; None unless the stage is the head.
    """

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    narrowings: list[str] = field(default_factory=list)
    relu_moved: dict[str, float] = field(default_factory=dict)
    partial: dict[str, RunningStats] = field(default_factory=dict)
    own_loss: OwnLoss | None = None


class FirstLayerReachedError(Exception):
    """Raised when a model without layers has computed the input of its first layer."""


class Capture(nn.Module):
    """Replaces the first layer of a model, stores the arguments of its call, and ends the forward.

    Attributes:
        hidden_states: input of the layer, (B, T, n_embd).
        arguments: further positional arguments of the call.
        options: keyword arguments of the call.
    """

    def forward(self, hidden_states, *arguments, **options):
        """Store the arguments, and raise FirstLayerReachedError."""
        self.hidden_states, self.arguments, self.options = hidden_states, arguments, options
        raise FirstLayerReachedError

    @classmethod
    def first_call(cls, body: nn.Module, *inputs: torch.Tensor, **keyword_inputs: torch.Tensor | None) -> Capture:
        """Run a body until its first layer, and return the stored arguments of this layer.

        Args:
            body: ``CTRLModel`` of the reference. Its layers are replaced.
            inputs: positional arguments of the body.
            keyword_inputs: keyword arguments of the body.
        """
        capture = cls()
        body.h = nn.ModuleList([capture])
        with use_own_mask(), contextlib.suppress(FirstLayerReachedError):
            body(*inputs, **keyword_inputs)
        return capture


class ZeroEmbedding(nn.Module):
    """Replaces the embedding by zeros, if only the masks of the model are needed.

    Args:
        width: size of an embedded token, n_embd.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def forward(self, input_ids):
        """Return zeros for token ids (B, T), (B, T, n_embd)."""
        return self.weight.expand(*input_ids.shape, -1).clone()


class LastNormBody(nn.Module):
    """Replaces the body of a language model by its last norm, applied to the known output of the layers.

    Args:
        layernorm: last norm of the model.

    Attributes:
        hidden_states: output of the layers, (B, T, n_embd), to be set before a call.
    """

    def __init__(self, layernorm: nn.Module) -> None:
        super().__init__()
        self.layernorm = layernorm
        self.hidden_states: torch.Tensor | None = None

    def forward(self, *_, **__):
        """Return the normalized :attr:`hidden_states` as the body's output."""
        return BaseModelOutputWithPast(last_hidden_state=self.layernorm(self.hidden_states))


class GradientReceiver:
    """Receives the gradient of the head's weight in blocks of rows (:class:`.GradientByRows`).

    Args:
        rows: sorted ids of the batch's tokens. These rows of the gradient are kept.
        omitted_rows: sorted indices of the rows that the statistics omit.
        stats: statistics of R64's gradient, or of the distance of another run from it. Each block is added.
        read_truth: function that returns R64's rows from a start to an end index; None for R64 itself.
        write_block: function that receives each block to write it to a file; None to write nothing.

    Attributes:
        batch_rows: rows of the batch's tokens in the blocks so far.
    """

    def __init__(
        self,
        rows: np.ndarray,
        omitted_rows: np.ndarray,
        stats: RunningStats,
        read_truth: Callable[[int, int], np.ndarray] | None = None,
        write_block: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        self.rows, self.omitted_rows, self.stats = rows, omitted_rows, stats
        self.read_truth, self.write_block = read_truth, write_block
        self.batch_rows: list[np.ndarray] = []

    def add_block(self, start: int, rows: torch.Tensor) -> None:
        """Add a block of rows of the gradient.

        Args:
            start: index of the block's first row.
            rows: the block, (rows, n_embd).
        """
        value, end = rows.numpy(force=True), start + len(rows)
        if self.write_block is not None:
            self.write_block(value)
        true_rows = None if self.read_truth is None else self.read_truth(start, end)
        self.stats.add_rows(value, start, self.omitted_rows, true_rows)
        self.batch_rows.append(value[self.rows[(self.rows >= start) & (self.rows < end)] - start])

    def rows_of_batch(self) -> np.ndarray:
        """Return the gradient's rows of the batch's tokens, (number of different tokens, n_embd)."""
        return np.concatenate(self.batch_rows)


class StreamedCTRL:
    """CTRL's reference with only one stage in memory at a time.

    Args:
        job: job of the comparison.
        folder: job folder.

    Attributes:
        depth: number of layers.
        config: configuration of the reference with a single layer.
        batch: tensors of the batch by name.
        runs: runs of the reference, R64 first.
        draws: dropout masks and ReLU signs of the current stage.
        side: files of the reference in the job folder.
        rows: ids of the tokens in the batch, sorted, without repetition.
        tied: whether the head's weight is the embedding's weight.
        arguments: arguments of every layer's call in addition to its input, by dtype.
        layers: a layer of each dtype, which gets the weights of one layer after another.
        leaks: source locations where float64 would have been cast to fewer digits.
        sums: current reordering of float64 sums; None in runs without reordering.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.folder = folder
        self.depth = job.config["n_layer"]
        self.config = make_config({**job.config, "n_layer": 1})
        self.batch = {k: torch.from_numpy(v) for k, v in files.read_tensors(folder / "batch.safetensors").items()}
        self.device = torch.device("cuda" if job.device == "gpu" else "cpu")
        self.batch = {name: value.to(self.device) for name, value in self.batch.items()}
        self.runs = plan_runs(job.noise_runs)
        self.lora = job.lora
        self.draws = Draws(job.seed)
        self.side = stages.Side(folder, "reference")
        self.rows = torch.unique(self.batch["input_ids"])  # sorted
        self.tied = self.config.tie_word_embeddings
        self.arguments = {name: self._layer_arguments(dtype) for name, dtype in DTYPES.items()}
        self.layers = {name: self._make_layer(dtype) for name, dtype in DTYPES.items()}
        self.leaks: list[str] = []
        self.sums: ReorderedSums | None = None

    def _each_run(self) -> Iterator[ReferenceRun]:
        """Yield one run after another, with the reordering of sums in force.

        The runs that measure the noise of float64 compute every sum in another order.
        """
        for run in self.runs:
            is_float64s_noise = run.dtype == "float64" and run.name != "truth"
            self.sums = ReorderedSums(run.nudge) if is_float64s_noise else None
            with self.sums or contextlib.nullcontext():
                yield run

    # -- parts of the reference ---------------------------------------------------------------------------------------

    def _make_skeleton(self, kind: type) -> nn.Module:
        """Return a model with a single layer in train mode, without memory for its parameters.

        Args:
            kind: class of the model, ``CTRLModel`` or ``CTRLLMHeadModel``.
        """
        with torch.device("meta"):
            model = kind(self.config)
        body = model if kind is modeling_ctrl.CTRLModel else model.transformer
        body.pos_encoding = self.position_table().to(self.device)
        return model.train()

    def position_table(self) -> torch.Tensor:
        """Return the position table as the reference's constructor computes it, float32 (n_positions, n_embd)."""
        return modeling_ctrl.positional_encoding(self.config.n_positions, self.config.n_embd, torch.float)

    def _make_layer(self, dtype: torch.dtype) -> nn.Module:
        """Return a layer of the reference in a dtype, with its adapter if the job has one. Its weights are not set."""
        layer = self._make_skeleton(modeling_ctrl.CTRLModel).h[0]
        adapt_model(layer, self.lora, "transformer.h.0")
        return layer.to(dtype).to_empty(device=self.device).train()

    def _layer_arguments(self, dtype: torch.dtype) -> Capture:
        """Return the arguments of the reference's calls of its layers in a dtype, such as the mask."""
        body = self._make_skeleton(modeling_ctrl.CTRLModel)
        body.w, body.h, body.layernorm = ZeroEmbedding(self.config.n_embd), nn.ModuleList(), nn.Identity()
        body.to(device=self.device, dtype=dtype)
        with torch.no_grad():
            return Capture.first_call(body, self.batch["input_ids"], attention_mask=self.batch.get("attention_mask"))

    def _read_table(
        self, reference_run: ReferenceRun, weights: TensorFile, name: str, memory: np.ndarray
    ) -> torch.Tensor:
        """Return a large parameter in the dtype and with the nudge of a run, which is read piece by piece.

        Args:
            reference_run: run of the reference.
            weights: file with the parameter.
            name: name of the parameter in the file.
            memory: memory for the parameter, which is reused by each run, (number of elements,).
        """
        dtype, shape = DTYPES[reference_run.dtype], weights.shape(name)
        flat_parameter = torch.from_numpy(memory).view(dtype)[: math.prod(shape)]
        steps = steps_of(reference_run.nudge, len(flat_parameter), dtype) if reference_run.nudge else None
        for piece, values in zip(flat_parameter.split(PIECE), weights.pieces(name, PIECE), strict=True):
            piece.copy_(torch.from_numpy(values))
            if steps is not None:
                nudge_piece_(piece, steps)
        return flat_parameter.view(shape).to(self.device)

    def _make_row_parameter(self, reference_run: ReferenceRun, rows_in_float32: np.ndarray) -> nn.Parameter:
        """Return the embedding's rows of the batch's tokens, in the dtype and with the nudge of a run.

        These are some hundreds of 246,534 rows. Their values are the same as in :meth:`_read_table`.

        Args:
            reference_run: run of the reference.
            rows_in_float32: the rows, float32 (number of different tokens, n_embd).
        """
        rows, width = self.rows.cpu(), self.config.n_embd
        row_values = torch.from_numpy(rows_in_float32).to(DTYPES[reference_run.dtype], copy=True)
        if reference_run.nudge:
            steps = steps_of(reference_run.nudge, self.config.vocab_size * width, row_values.dtype)
            element_indices = (rows[:, None] * width + torch.arange(width)) % PIECE
            is_zero = row_values == 0
            row_values.view(steps.dtype).add_(steps[element_indices])
            row_values[is_zero] = torch.finfo(row_values.dtype).tiny
        return nn.Parameter(row_values.to(self.device))

    # -- stages -------------------------------------------------------------------------------------------------------

    def run_stage(self, stage: str, previous_stage: str | None) -> None:
        """Run a stage in all runs and write its results, unless an earlier process has finished the stage.

        Args:
            stage: name of the stage.
            previous_stage: name of the previous stage, whose results are the inputs; None for the first stage.
        """
        if self.side.is_done(stage):
            return
        with NarrowingWatch() as narrowing:
            self._run_stage(stage, previous_stage, narrowing)

    def _run_stage(self, stage: str, previous_stage: str | None, narrowing: NarrowingWatch) -> None:
        """Run a stage in all runs, and write its results.

        Args:
            stage: name of the stage.
            previous_stage: name of the previous stage; None for the first stage.
            narrowing: watch for source locations that compute in less than float64.
        """
        ledger = Ledger(self.runs, stage == stages.HEAD)
        state = self.side.state(previous_stage) if previous_stage else {}
        measurements = MeasuredStage(ledger.records)
        if stage == stages.EMBEDDING:
            results = self._embedding(ledger)
        elif stage == stages.HEAD:
            with return_large_blocks():
                results = self._head(ledger, state, measurements)
        elif stage == stages.EMBEDDING + stages.BACKWARD:
            results = self._embedding_backward(ledger, state)
        elif stage.endswith(stages.BACKWARD):
            results = self._layer_backward(stage, ledger, state)
        else:
            results = self._layer_forward(stage, ledger, state)
        measurements.relu_moved, measurements.narrowings = self.draws.moved, narrowing.places
        measurements.leaks = self.leaks
        self._write_draws(stage)
        self.side.write_truth(stage, dict(ledger.truth))
        self.side.leave(stage, results)
        self.side.finish(stage, measurements)

    def _write_draws(self, stage: str) -> None:
        """Write the draws of a stage, and start with new draws."""
        files.write_tensors(self.side.path("draws", stage), dict(self.draws.tensors))
        files.write_json(self.side.path("draws", stage).with_suffix(".json"), self.draws.rates)
        self.draws = Draws(self.draws.seed)  # the backward draws the same masks by name

    def _embedding(self, ledger: Ledger) -> dict[str, np.ndarray]:
        """Return the first layer's input, (B, T, n_embd), by run.

        Args:
            ledger: record of the stage's tensors.
        """
        rows = self._read_rows()
        return {run.name: to_numpy(self._embed(run, rows, ledger)[0]) for run in self.runs}

    def _read_rows(self) -> np.ndarray:
        """Return the embedding's rows of the batch's tokens, float32 (number of different tokens, n_embd)."""
        weights = stages.open_weights(self.folder, stages.EMBEDDING)
        return np.concatenate([weights.rows(EMBEDDING_WEIGHT, row, row + 1) for row in self.rows.tolist()])

    def _embed(
        self, reference_run: ReferenceRun, rows: np.ndarray, ledger: Ledger | None
    ) -> tuple[torch.Tensor, nn.Parameter]:
        """Return the first layer's input, (B, T, n_embd), and the embedding's rows of the batch's tokens.

        Args:
            reference_run: run of the reference.
            rows: the rows in float32, (number of different tokens, n_embd).
            ledger: record of the stage's tensors. If it is None, gradients are enabled for a backward.
        """
        body = self._make_skeleton(modeling_ctrl.CTRLModel)
        body.w.weight = self._make_row_parameter(reference_run, rows)
        tokens = torch.searchsorted(self.rows, self.batch["input_ids"])  # index of each token among the rows
        body.h, body.layernorm = nn.ModuleList(), nn.Identity()

        def keep(name: str, value: np.ndarray) -> None:
            """Record the output of the embedding and of its dropout."""
            if ledger is not None and name in ("output:transformer.w", "output:transformer.dropout"):
                ledger.keep(reference_run, name, value)

        recorder = Recorder(body, self.draws, keep, prefix="transformer")
        recorder.recording = ledger is not None
        with recorder.watch(), torch.set_grad_enabled(ledger is None):
            call = Capture.first_call(body, tokens, attention_mask=self.batch.get("attention_mask"))
        return call.hidden_states, body.w.weight

    def _load_layer(
        self, reference_run: ReferenceRun, stage: str, weights: dict[str, np.ndarray]
    ) -> tuple[nn.Module, str]:
        """Return the layer of a run with the weights of a stage, and the layer's path in the whole model.

        Args:
            reference_run: run of the reference.
            stage: name of the stage.
            weights: weights of the stage by name.
        """
        prefix = f"transformer.h.{stages.layer_of(stage)}"
        layer = self.layers[reference_run.dtype]
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                fill_parameter(parameter, torch.from_numpy(weights[f"{prefix}.{name}"]), reference_run.nudge)
        return layer, prefix

    def _layer_forward(self, stage: str, ledger: Ledger, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return a layer's output, (B, T, n_embd), by run.

        Args:
            stage: name of the stage.
            ledger: record of the stage's tensors.
            state: input of the layer by run.
        """
        weights = stages.read_weights(self.folder, stage)
        outputs = {}
        for run in self._each_run():
            layer, prefix = self._load_layer(run, stage, weights)
            recorder = Recorder(layer, self.draws, functools.partial(ledger.keep, run), prefix)
            call = self.arguments[run.dtype]
            varied_rounding = vary_masked_scores(recorder.stack, run.nudge)
            with torch.no_grad(), recorder.watch(), varied_rounding:
                hidden_states = torch.from_numpy(state[run.name]).to(self.device)
                outputs[run.name] = to_numpy(first_tensor(layer(hidden_states, *call.arguments, **call.options)))
        return outputs

    def _layer_backward(self, stage: str, ledger: Ledger, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the gradient of a layer's input, (B, T, n_embd), by run.

        Args:
            stage: name of the stage.
            ledger: record of the stage's tensors.
            state: gradient of the layer's output by run.
        """
        weights = stages.read_weights(self.folder, stage)
        index = stages.layer_of(stage)
        inputs = self.side.state(stages.layer(index - 1) if index else stages.EMBEDDING)
        input_gradients = {}
        for run in self._each_run():
            layer, prefix = self._load_layer(run, stage, weights)
            recorder = Recorder(layer, self.draws, keep_nothing, prefix)
            recorder.recording = False
            call = self.arguments[run.dtype]
            hidden_states = torch.from_numpy(inputs[run.name]).to(self.device).requires_grad_()
            with recorder.watch(), vary_masked_scores(recorder.stack, run.nudge):
                output = first_tensor(layer(hidden_states, *call.arguments, **call.options))
            assert output is not None
            output.backward(torch.from_numpy(state[run.name]).to(self.device))
            for name, parameter in layer.named_parameters():
                if parameter.grad is not None:  # not frozen
                    ledger.keep(run, f"gradient:{prefix}.{name}", parameter.grad.numpy(force=True))
            layer.zero_grad(set_to_none=True)  # the ledger now owns the gradients
            input_gradients[run.name] = to_numpy(hidden_states.grad)
        return input_gradients

    def _head(self, ledger: Ledger, state: dict[str, np.ndarray], measurements: MeasuredStage) -> dict[str, np.ndarray]:
        """Compute the last norm, the logits, the loss and their backward in all runs.

        R64's gradient of the head's weight is written to a separate file.

        Args:
            ledger: record of the stage's tensors.
            state: output of the last layer, (B, T, n_embd), by run.
            measurements: measurements of the stage.

        Returns:
            Gradient of the last layer's output by run, and the gradient of the weight's rows for the batch's tokens,
                named `rows:RUN`.
        """
        table = EMBEDDING_WEIGHT if self.tied else "lm_head.weight"
        weights = stages.open_weights(self.folder, stages.HEAD)
        table_file = stages.open_weights(self.folder, stages.EMBEDDING) if self.tied else weights
        memory = allocate_mapped_zeros((math.prod(table_file.shape(table)),), "float64")  # reused by each run
        results: dict[str, np.ndarray] = {}
        for run in self._each_run():
            with self._receive_gradient(run, table, measurements.partial) as gradient:
                by_rows = GradientByRows(
                    self._read_table(run, table_file, table, memory), gradient.add_block, self.sums
                )
                model = self._head_model(run, weights, by_rows.used)
                hidden_states = torch.from_numpy(state[run.name]).to(self.device).requires_grad_()
                model.transformer.hidden_states = hidden_states

                def keep(name: str, value: np.ndarray, reference_run: ReferenceRun = run) -> None:
                    """Record the output of the last norm."""
                    if name == "output:transformer.layernorm":
                        ledger.keep(reference_run, name, value)

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
            results[run.name] = to_numpy(hidden_states.grad)
            results[f"rows:{run.name}"] = gradient.rows_of_batch()
            del model, loss, by_rows
        del memory
        batch = {name: to_numpy(value) for name, value in self.batch.items()}
        skeleton = self._make_skeleton(modeling_ctrl.CTRLLMHeadModel)
        measurements.own_loss = own_loss.check_loss(ledger.truth, batch, "causal_lm", skeleton)
        if not self.tied:
            self._record_gradient(ledger, table, measurements.partial)
        return results

    def _head_model(self, reference_run: ReferenceRun, weights: TensorFile, table: torch.Tensor) -> nn.Module:
        """Return the language model with its last norm and head, whose body is replaced by :class:`LastNormBody`.

        Args:
            reference_run: run of the reference.
            weights: weights of the stage.
            table: weight of the head.
        """
        model = self._make_skeleton(modeling_ctrl.CTRLLMHeadModel)
        norm = model.transformer.layernorm.to(DTYPES[reference_run.dtype]).to_empty(device=self.device)
        with torch.no_grad():
            for name, parameter in norm.named_parameters():
                fill_parameter(
                    parameter, torch.from_numpy(weights[f"transformer.layernorm.{name}"]), reference_run.nudge
                )
        model.transformer = LastNormBody(norm)
        bias = nudge_copy(torch.from_numpy(weights["lm_head.bias"]), DTYPES[reference_run.dtype], reference_run.nudge)
        model.lm_head.bias = nn.Parameter(bias.to(self.device))
        del model.lm_head.weight  # only a parameter may replace a parameter
        model.lm_head.weight = table
        return model

    @contextlib.contextmanager
    def _receive_gradient(
        self, reference_run: ReferenceRun, weight_name: str, run_stats: dict[str, RunningStats]
    ) -> Iterator[GradientReceiver]:
        """Yield the receiver of the gradient of the head's weight. R64's gradient is written to a separate file.

        If the weight is tied to the embedding, the statistics omit the rows of the batch's tokens. These rows are
        complete when the embedding's gradient has been added.

        Args:
            reference_run: run of the reference.
            weight_name: name of the weight.
            run_stats: statistics by run; an entry for the run is added.
        """
        rows, shape = self.rows.cpu().numpy(), (self.config.vocab_size, self.config.n_embd)
        omitted_rows = rows if self.tied else np.array([], int)
        run_stats[reference_run.name] = RunningStats()
        if reference_run.name != "truth":
            truth = TensorFile(self.side.path("truth", "head-table"))
            yield GradientReceiver(
                rows, omitted_rows, run_stats[reference_run.name], functools.partial(truth.rows, weight_name)
            )
            return
        with self.side.writing_truth("head-table", 8 * math.prod(shape)) as writer:
            writer.begin(weight_name, "float64", shape)
            yield GradientReceiver(rows, omitted_rows, run_stats[reference_run.name], write_block=writer.extend)

    def _record_gradient(self, ledger: Ledger, weight_name: str, run_stats: dict[str, RunningStats]) -> None:
        """Record the size of R64's gradient of a large weight, and the distances of the other runs.

        Args:
            ledger: record of the stage's tensors.
            weight_name: name of the weight.
            run_stats: statistics of R64's gradient, and of the distance of each other run, by run.
        """
        shape = (self.config.vocab_size, self.config.n_embd)
        for run in self.runs:
            stats = run_stats[run.name].stats(shape)
            if run.name == "truth":
                ledger.add_truth(f"gradient:{weight_name}", stats)
            else:
                ledger.add_noise(run, f"gradient:{weight_name}", stats)

    def _embedding_backward(self, ledger: Ledger, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the gradient of the embedding's weight, and record it in the ledger.

        The reference runs once in float64 (the truth) and several times for its rounding noise.

        Args:
            ledger: record of the stage's tensors.
            state: gradient of the embedding's output, (B, T, n_embd), by the name of the run.

        Returns:
            An empty dictionary, since no stage follows.
        """
        embedding_rows = self._read_rows()
        head_results, partial = self.side.state(stages.HEAD), self.side.measurements(stages.HEAD, MeasuredStage).partial
        rows = self.rows.cpu()
        unused = (self.config.vocab_size - len(rows)) * self.config.n_embd
        run_stats = {}
        for run in self._each_run():
            ledger.keep(run, "gradient:transformer.dropout", state[run.name])
            hidden_states, table = self._embed(run, embedding_rows, None)
            hidden_states.backward(torch.from_numpy(state[run.name]).to(self.device))
            gradient = to_numpy(table.grad)
            stats = RunningStats(unused)
            if self.tied:
                gradient += head_results[f"rows:{run.name}"]
                stats = partial[run.name]
            if run.name == "truth":
                ledger.truth[f"rows:{EMBEDDING_WEIGHT}"] = gradient
            stats.add(
                RunningStats.of(gradient, None if run.name == "truth" else ledger.truth[f"rows:{EMBEDDING_WEIGHT}"])
            )
            run_stats[run.name] = stats
            del hidden_states, table
        self._record_gradient(ledger, EMBEDDING_WEIGHT, run_stats)
        ledger.truth["rows"] = rows.numpy()
        return {}


def fill_parameter(torch_parameter: nn.Parameter, value: torch.Tensor, nudge: int) -> None:
    """Set a parameter to nudged values (:func:`.step.nudge_copy`).

    In the host's memory the values are nudged in place, because copies of a large layer would take as much memory
    again.

    Args:
        torch_parameter: parameter of a layer or norm.
        value: new values in float32.
        nudge: number of the nudge; 0 for unchanged values.
    """
    if torch_parameter.device.type != "cpu":
        value = nudge_copy(value, torch_parameter.dtype, nudge)
    torch_parameter.copy_(value)
    if torch_parameter.device.type == "cpu":
        nudge_tensor_(torch_parameter.detach(), nudge)


def run(job: Job, folder: Path) -> ReferenceResult:
    """Run CTRL's reference in all stages, and return its results.

    Args:
        job: job of the comparison.
        folder: job folder.
    """
    keep_freed_memory()
    model = StreamedCTRL(job, folder)
    constants = {"transformer.pos_encoding": model.position_table().numpy()}
    files.write_tensors(folder / "reference" / "constants.safetensors", constants)
    stage_names = stages.plan(model.depth)
    for previous_stage, stage in zip([None, *stage_names], stage_names, strict=False):
        model.run_stage(stage, previous_stage)
    measurements = {stage: model.side.measurements(stage, MeasuredStage) for stage in stage_names}
    # Outputs in the order of execution, then gradients in the order of the parameters, as for a model in one piece.
    tensors: dict[str, TensorRecord] = {}
    for order, has_gradients in ((stage_names, False), (reversed(stage_names), True)):
        for stage in order:
            records = measurements[stage].tensors.items()
            tensors.update({name: record for name, record in records if is_gradient(name) == has_gradients})
    gradients = {TensorName.parse(name).module: record for name, record in tensors.items() if is_gradient(name)}
    return ReferenceResult(
        tensors=tensors,
        parameters={name: record.shape for name, record in gradients.items() if "dropout" not in name},
        facts=ReferenceFacts(
            relu_moved={k: by for entry in measurements.values() for k, by in entry.relu_moved.items()}
        ),
        leaks=sorted({leak for entry in measurements.values() for leak in entry.leaks}),
        narrowings=list(dict.fromkeys(place for entry in measurements.values() for place in entry.narrowings)),
        own_loss=measurements[stages.HEAD].own_loss,
        notes=mask_notes(),
        streamed=True,
    )
