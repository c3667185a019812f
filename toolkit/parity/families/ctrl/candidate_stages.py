"""Runs CTRL's port stage by stage (:mod:`toolkit.parity.exchange.stages`), for models larger than memory.

A stage is the embedding, a layer, or the head, in the forward or the backward. The parts are the port's own classes and
functions. Only the loop over the layers is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.base.framework import EagerParamBase

from models.ctrl.config import CTRLConfig
from models.ctrl.layers import attention_bias, position_table
from models.ctrl.modeling import CTRLLMHeadModel, CTRLModel, LMHead
from models.ctrl.weights import parameters
from models.operations import losses
from models.operations.randomness import use_rng
from models.port import lora
from models.port.adapter import add_adapter
from models.port.weights import to_paddle
from toolkit.machine.heap import allocate_mapped_zeros, return_large_blocks
from toolkit.parity.candidate.places import head_places, places
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import apply_signs, first_tensor, values_of, watch
from toolkit.parity.exchange import files, stages
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.results import Place
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.families.ctrl.candidate import POSITION_TABLE, find_table_place
from toolkit.parity.job.job import Job
from toolkit.parity.measure.error_stats import PIECE, ROWS
from toolkit.parity.measure.naming import ModuleStack

#: Name of the embedding's weight.
EMBEDDING_WEIGHT = "transformer.w.weight"
#: Arrays by name.
Tensors = dict[str, np.ndarray]


class StreamedCTRL:
    """CTRL's port with only one stage in memory at a time.

    Args:
        job: job of the comparison.
        folder: job folder.
        sender: receiver of the port's tensors.

    Attributes:
        depth: number of layers.
        config: configuration of the port with a single layer.
        table: description of each parameter of the whole model, by name.
        lora: settings of the adapter; None without an adapter.
        batch: tensors of the batch by name.
        side: files of the port in the job folder.
        rows: ids of the tokens in the batch, sorted, without repetition.
        length: number of tokens of each text.
        layers: a layer of each dtype, which gets the weights of one layer after another.
    """

    def __init__(self, job: Job, folder: Path, sender: Sender) -> None:
        self.folder, self.sender = folder, sender
        self.depth = job.config["n_layer"]
        self.dtypes = job.dtypes
        self.config = CTRLConfig(**{**job.config, "n_layer": 1})
        self.table = parameters(CTRLConfig(**job.config), "causal_lm")
        self.lora = None if job.lora is None else lora.LoRA.from_json(job.lora)
        if self.lora is not None:
            self.table = {**self.table, **lora.adapter_parameters(self.table, self.lora)}
        self.batch = {k: paddle.to_tensor(v) for k, v in files.read_tensors(folder / "batch.safetensors").items()}
        self.side = stages.Side(folder, "candidate")
        self.rows = np.unique(self.batch["input_ids"].numpy())
        self.length = self.batch["input_ids"].shape[1]
        #: Configuration for parts of the model that read no tokens: a vocabulary of one token, and no padding id.
        self.one_token_config = CTRLConfig(**{**self.config.to_hf(), "vocab_size": 1, "pad_token_id": None})
        self.layers = {dtype: self._make_layer(dtype) for dtype in self.dtypes}

    # -- parts of the port --------------------------------------------------------------------------------------------

    def _make_layer(self, dtype: str) -> nn.Layer:
        """Return a layer of the port in a dtype, taken from a model with a vocabulary of one token."""
        layer = CTRLModel(self.one_token_config).h[0]
        if self.lora is not None:
            add_adapter(layer, self.lora, "transformer.h.0")
        layer.to(dtype=dtype)
        layer.train()
        return layer

    def _load_layer(self, layer: nn.Layer, prefix: str, weights: TensorFile) -> None:
        """Set a layer's weights, and send the values that it holds afterwards.

        Args:
            layer: layer or norm of the port.
            prefix: path of the layer in the whole model, such as `transformer.h.3`.
            weights: the reference's weights of the stage.
        """
        for name, parameter in layer.named_parameters():
            full_name = f"{prefix}.{name}"
            role = self.table[full_name].role
            dtype = str(parameter.dtype).rsplit(".", 1)[-1]
            value = np.asarray(to_paddle(weights[full_name], role), dtype, order="C")
            parameter.set_value(value)
            self.sender.send_array("held", full_name, to_paddle(values_of(parameter), role))

    def _attention_bias(self, dtype: str) -> paddle.Tensor:
        """Return the port's mask for the attention scores, which combines causality and padding."""
        return attention_bias(0, self.length, self.batch.get("attention_mask"), dtype)

    @contextlib.contextmanager
    def _watch_layer(self, layer: nn.Layer, prefix: str, draws: RecordedDraws, sender: Sender | None) -> Iterator[None]:
        """Name the draws after the running modules, and send their outputs inside the ``with`` block.

        Args:
            layer: layer or norm of the port.
            prefix: path of the layer in the whole model.
            draws: the reference's draws of the stage.
            sender: receiver of the outputs; None to send no outputs.
        """

        def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
            """Send the first output tensor of a module after its call."""
            tensor = first_tensor(output)
            if sender is not None and tensor is not None:
                sender.send_array("tensor", call_name, tensor.numpy())

        with apply_signs(layer, draws), watch(layer, draws.stack, on_leave, prefix):
            yield

    def _read_draws(self, stage: str) -> RecordedDraws:
        """Return the reference's draws of a stage."""
        path = self.side.other / "draws" / f"{stage}.safetensors"
        rates = files.read_json(path.with_suffix(".json"))
        return RecordedDraws(files.read_tensors(path), rates, ModuleStack(), self.sender)

    # -- stages -------------------------------------------------------------------------------------------------------

    def run_stage(self, stage: str, previous_stage: str | None) -> None:
        """Run a stage in each dtype and write its results, unless an earlier run has finished the stage.

        Args:
            stage: name of the stage.
            previous_stage: name of the previous stage, whose results are the inputs; None for the first stage.
        """
        if self.side.is_done(stage):
            return
        self.side.wait_for_truth(stage)
        state = self.side.state(previous_stage) if previous_stage else {}
        results: dict[str, np.ndarray] = {}
        uses_table = stage.removesuffix(stages.BACKWARD) in (stages.EMBEDDING, stages.HEAD)
        for dtype in self.dtypes:
            self.sender.begin(stage, dtype)
            draws = self._read_draws(stage)
            with use_rng(draws), return_large_blocks() if uses_table else contextlib.nullcontext():
                results.update(self._compute(stage, dtype, state, draws))
        self.side.leave(stage, results)
        self.sender.send_json("done", None)

    def _compute(self, stage: str, dtype: str, state: dict[str, np.ndarray], draws: RecordedDraws) -> Tensors:
        """Run a stage in one dtype, send its tensors, and return its results: the inputs of the next stage.

        Args:
            stage: name of the stage.
            dtype: dtype of the run.
            state: results of the previous stage, with an activation or gradient (B, T, n_embd) for each dtype.
            draws: the reference's draws of the stage.
        """
        weights = stages.open_weights(self.folder, stage)
        if stage == stages.EMBEDDING:
            with paddle.no_grad():
                return {dtype: self._embed(dtype, weights, draws, self.sender)[0].numpy()}
        if stage == stages.HEAD:
            return self._head(dtype, weights, state[dtype], draws)
        if stage == stages.EMBEDDING + stages.BACKWARD:
            return self._embedding_backward(dtype, weights, state[dtype], draws)
        index = stages.layer_of(stage)
        prefix, layer = f"transformer.h.{index}", self.layers[dtype]
        self._load_layer(layer, prefix, weights)
        self._send_places(layer, prefix)
        if stage.endswith(stages.BACKWARD):
            inputs = self.side.state(stages.layer(index - 1) if index else stages.EMBEDDING)[dtype]
            return {dtype: self._layer_backward(layer, prefix, dtype, inputs, state[dtype], draws)}
        with paddle.no_grad(), self._watch_layer(layer, prefix, draws, self.sender):
            return {dtype: layer(paddle.to_tensor(state[dtype]), self._attention_bias(dtype))[0].numpy()}

    def _send_places(self, layer: nn.Layer, prefix: str) -> None:
        """Send the source locations of a layer and its modules.

        Args:
            layer: layer of the port.
            prefix: path of the layer in the whole model.
        """
        layer_places = {"": Place(type(layer).__name__, ""), **places(layer)}
        self.sender.send_json(
            "places", {".".join(filter(None, [prefix, name])): place for name, place in layer_places.items()}
        )

    def _layer_backward(
        self, layer: nn.Layer, prefix: str, dtype: str, inputs: np.ndarray, gradient: np.ndarray, draws: RecordedDraws
    ) -> np.ndarray:
        """Return the gradient of a layer's input, (B, T, n_embd), and send the gradients of its parameters.

        Args:
            layer: layer of the port.
            prefix: path of the layer in the whole model.
            dtype: dtype of the run.
            inputs: input of the layer in the forward, (B, T, n_embd).
            gradient: gradient of the layer's output, (B, T, n_embd).
            draws: the reference's draws of the stage.
        """
        hidden_states = paddle.to_tensor(inputs, stop_gradient=False)
        with self._watch_layer(layer, prefix, draws, None):
            output = layer(hidden_states, self._attention_bias(dtype))[0]
        paddle.autograd.backward([output], [paddle.to_tensor(gradient)])
        for name, parameter in layer.named_parameters():
            path = f"{prefix}.{name}"
            if parameter.grad is not None:  # the verdict reports a missing gradient
                self._send_tensor(f"gradient:{path}", to_paddle(values_of(parameter.grad), self.table[path].role))
        layer.clear_gradients()
        return hidden_states.grad.numpy()

    def _embed(
        self, dtype: str, weights: TensorFile, draws: RecordedDraws, sender: Sender | None
    ) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the first layer's input, (B, T, n_embd), and the embedding's parameter.

        Args:
            dtype: dtype of the run.
            weights: the reference's weights of the stage.
            draws: the reference's draws of the stage.
            sender: receiver of the outputs and of the parameter's value. If it is None, the result is for a backward,
                and only the parameter's rows for the batch's tokens have values.
        """
        body = CTRLModel(self.one_token_config)
        body.pos_encoding = files.read_tensors(self.folder / "reference" / "constants.safetensors")[POSITION_TABLE]
        body.h = paddle.nn.LayerList()
        body.w.weight = _read_large_parameter(weights, EMBEDDING_WEIGHT, dtype, None if sender else self.rows)
        body.train()
        if sender is not None:
            sender.send_array("held", EMBEDDING_WEIGHT, values_of(body.w.weight))

        def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
            """Send the output of the embedding and of its dropout."""
            if sender is not None and call_name in ("output:transformer.w", "output:transformer.dropout"):
                sender.send_array("tensor", call_name, output.numpy())

        with watch(body, draws.stack, on_leave, "transformer"):
            return body.embed(self.batch["input_ids"], paddle.arange(self.length).unsqueeze(0)), body.w.weight

    def _head(self, dtype: str, weights: TensorFile, last_hidden_states: np.ndarray, draws: RecordedDraws) -> Tensors:
        """Compute the last norm, the logits, the loss and their backward, and send the tensors.

        The gradient of the head's weight is computed in blocks of rows from the gradient of the logits. The weight and
        its gradient take 2.5 GB each.

        Args:
            dtype: dtype of the run.
            weights: the reference's weights of the stage.
            last_hidden_states: output of the last layer, (B, T, n_embd).
            draws: the reference's draws of the stage.

        Returns:
            Gradient of the last layer's output (`DTYPE`) and of the weight's rows of the batch's tokens (`rows:DTYPE`).
        """
        is_tied = self.config.tie_word_embeddings
        name = EMBEDDING_WEIGHT if is_tied else "lm_head.weight"
        table_file = stages.open_weights(self.folder, stages.EMBEDDING) if is_tied else weights
        norm = CTRLModel(self.one_token_config).layernorm
        norm.to(dtype=dtype)
        self._load_layer(norm, "transformer.layernorm", weights)
        biases = weights["lm_head.bias"]
        bias = _make_parameter(biases, dtype)
        self.sender.send_array("held", "lm_head.bias", values_of(bias))
        table = _read_large_parameter(table_file, name, dtype)
        if not is_tied:
            self.sender.send_array("held", name, values_of(table))
        table.stop_gradient = True
        hidden_states = paddle.to_tensor(last_hidden_states, stop_gradient=False)
        with self._watch_layer(norm, "transformer.layernorm", draws, self.sender):
            normalized_states = norm(hidden_states)
        logits = self._logits(normalized_states, table, bias)
        self._send_tensor("logits", values_of(logits))
        logits_gradients: list[paddle.Tensor] = []
        logits.register_hook(lambda gradient: logits_gradients.append(gradient))
        loss = losses.next_token_loss(logits, self.batch["labels"])
        self._send_tensor("loss", loss.numpy())
        del logits  # for a large vocabulary, the scores take half a gigabyte
        loss.backward()
        for key, parameter in norm.named_parameters():
            self._send_tensor(f"gradient:transformer.layernorm.{key}", parameter.grad.numpy())
        self._send_tensor("gradient:lm_head.bias", bias.grad.numpy())
        normalized_states, shape = normalized_states.detach(), tuple(table.shape)
        del table, loss
        rows = self._send_head_gradient(normalized_states, table_file, name, logits_gradients[0], biases, dtype)
        if not is_tied:
            self.sender.send_json("all rows", list(shape), name)
        return {dtype: hidden_states.grad.numpy(), f"rows:{dtype}": rows}

    def _logits(self, states: paddle.Tensor, table: paddle.Tensor, bias: paddle.Tensor) -> paddle.Tensor:
        """Return the logits of the port's head, (B, T, rows), for some or all rows of its weight.

        Args:
            states: output of the last norm, (B, T, n_embd).
            table: rows of the head's weight, (rows, n_embd).
            bias: the same rows of the bias, (rows,).
        """
        head = LMHead(self.one_token_config)
        head.bias = bias
        if not self.config.tie_word_embeddings:
            head.weight = table
        return head(states, table)

    def _send_head_gradient(
        self,
        normalized_states: paddle.Tensor,
        table_file: TensorFile,
        name: str,
        logits_gradient: paddle.Tensor,
        biases: np.ndarray,
        dtype: str,
    ) -> np.ndarray:
        """Send the gradient of the head's weight to the comparator, and return its rows for the batch's tokens.

        The weight does not fit into memory, so its rows are read in blocks, and the logits of each block are computed
        again. If the embeddings are tied, the returned rows are added to the gradient of the embedding.

        Args:
            normalized_states: output of the last norm, (B, T, n_embd).
            table_file: file with the weight.
            name: name of the weight in the file.
            logits_gradient: gradient of the logits, (B, T, vocab_size).
            biases: bias of the head, (vocab_size,).
            dtype: dtype of the run.
        """
        batch_rows = []
        for start in range(0, len(biases), ROWS):
            end = min(start + ROWS, len(biases))
            block = _make_parameter(table_file.rows(name, start, end), dtype)
            scores = self._logits(normalized_states, block, _make_parameter(biases[start:end], dtype))
            paddle.autograd.backward([scores], [logits_gradient[..., start:end]])
            # A head may return no gradient.
            block_gradient = paddle.zeros_like(block) if block.grad is None else block.grad
            gradient = values_of(block_gradient)
            self.sender.send_array("rows", name, gradient, [start, self.config.tie_word_embeddings])
            batch_rows.append(gradient[self.rows[(self.rows >= start) & (self.rows < end)] - start])
        return np.concatenate(batch_rows)

    def _embedding_backward(
        self, dtype: str, weights: TensorFile, gradient: np.ndarray, draws: RecordedDraws
    ) -> Tensors:
        """Send the gradients of the embedding's output and weight, and return no results.

        Only the weight's rows for the batch's tokens are sent. If the weight is tied, they include the gradient from
        the head.

        Args:
            dtype: dtype of the run.
            weights: the reference's weights of the stage.
            gradient: gradient of the embedding's output, (B, T, n_embd).
            draws: the reference's draws of the stage.
        """
        self._send_tensor("gradient:transformer.dropout", gradient)
        hidden_states, table = self._embed(dtype, weights, draws, None)
        paddle.autograd.backward([hidden_states], [paddle.to_tensor(gradient)])
        row_gradients = paddle.index_select(table.grad, paddle.to_tensor(self.rows)).numpy()
        is_tied = self.config.tie_word_embeddings
        if is_tied:
            row_gradients = row_gradients + self.side.state(stages.HEAD)[f"rows:{dtype}"]
        self.sender.send_array("own rows", EMBEDDING_WEIGHT, row_gradients, [list(table.shape), is_tied])
        return {}

    def _send_tensor(self, name: str, value: np.ndarray) -> None:
        """Send a tensor of the port to the comparator."""
        self.sender.send_array("tensor", name, value)


def _make_parameter(value: np.ndarray, dtype: str) -> paddle.Tensor:
    """Return an array as a parameter of Paddle in a dtype.

    The port's constructors would first fill a large parameter with random numbers.
    """
    return EagerParamBase.from_tensor(paddle.to_tensor(value).astype(dtype))


def _read_large_parameter(weights: TensorFile, name: str, dtype: str, rows: np.ndarray | None = None) -> paddle.Tensor:
    """Return a large parameter, which is read piece by piece.

    Args:
        weights: file with the parameter.
        name: name of the parameter in the file.
        dtype: dtype of the result.
        rows: indices of the needed rows; the other rows may be 0. None for all rows.
    """
    if paddle.get_device() != "cpu":
        return _make_parameter(weights[name], dtype)
    values = allocate_mapped_zeros(weights.shape(name), dtype, huge_pages=rows is None)
    if rows is None:
        flat, start = values.reshape(-1), 0
        for piece in weights.pieces(name, PIECE):
            flat[start : start + len(piece)] = piece
            start += len(piece)
    else:
        for row in rows.tolist():
            values[row] = weights.rows(name, row, row + 1)[0]
    return EagerParamBase.from_tensor(paddle.utils.dlpack.from_dlpack(values))  # the same memory


def run(job: Job, folder: Path, sender: Sender) -> None:
    """Run CTRL's port in all stages, and send its position table and source locations.

    Args:
        job: job of the comparison.
        folder: job folder.
        sender: receiver of the port's tensors.
    """
    files.wait_for_reference(folder, "constants.safetensors")
    model = StreamedCTRL(job, folder, sender)
    stage_names = stages.plan(model.depth)
    for previous_stage, stage in zip([None, *stage_names], stage_names, strict=False):
        model.run_stage(stage, previous_stage)
    sender.begin()
    sender.send_array("constant", POSITION_TABLE, position_table(model.config.n_positions, model.config.n_embd))
    sender.send_json("places", {POSITION_TABLE: find_table_place(), **head_places(CTRLLMHeadModel)})
