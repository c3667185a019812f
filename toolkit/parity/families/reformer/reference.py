"""The step of Reformer's reference: its buckets, its softmax and its plain autograd."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import ReformerConfig
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.models.reformer import modeling_reformer

from toolkit.parity.exchange.results import Note, ReferenceFacts
from toolkit.parity.exchange.tensor_file import SpilledTensors
from toolkit.parity.families.reformer.evaluation_lengths import (
    DECODED_BUCKETS,
    NARROWED_HEADS,
    evaluation_unit,
    first_of_rounds,
    padded_length,
)
from toolkit.parity.job.job import Job
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import DECODING, FINAL_LOSS, TRAINING, WHOLE, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import TensorName, append_number
from toolkit.parity.reference.float64_checks import ExactNormalizer
from toolkit.parity.reference.points import Keep, Operation, OperationWatch, to_numpy, values_of
from toolkit.parity.reference.recorder import Recorder, set_attribute
from toolkit.parity.reference.step import Step

#: Path of the layers in the model.
LAYERS = "reformer.encoder.layers"
#: Operation of each torch function that an attention calls, with the names of its results and their gradients.
ATTENTION = {
    torch.mean: Operation("mean", ("mean_square",)),
    torch.Tensor.div: Operation("divide", ("key", None)),
    torch.Tensor.__truediv__: Operation("divide", ("key", None)),
    torch.gather: Operation("gather", ("sorted",)),
    torch.matmul: Operation("matmul", ("scores", "context")),
    torch.where: Operation("where", ("masked_scores",)),
    torch.exp: Operation("exp", ("probabilities", "round_weights")),
    torch.sum: Operation("sum", ("combined",)),
}


class ReformerForTokenClassification(modeling_reformer.ReformerPreTrainedModel):
    """Reformer with a token classification head, which transformers lacks.

    The head is the same as in other models of transformers, such as ``BertForTokenClassification``. Its loss is not
    cast to float32.
    """

    def __init__(self, config: ReformerConfig) -> None:
        """Build the model with randomly initialized weights."""
        super().__init__(config)
        self.reformer = modeling_reformer.ReformerModel(config)
        rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = torch.nn.Dropout(rate)
        self.classifier = torch.nn.Linear(2 * config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> TokenClassifierOutput:
        """Return the logits (B, T, num_labels) of token ids (B, T), and the loss if there are labels.

        Args:
            input_ids: token ids, (B, T).
            attention_mask: 1 for tokens and 0 for padding, (B, T); None without padding.
            labels: label of each token, (B, T); -100 is ignored.
        """
        body = self.reformer(input_ids, attention_mask=attention_mask)
        logits = self.classifier(self.dropout(body.last_hidden_state))
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return TokenClassifierOutput(loss=loss, logits=logits)


class ReformerStep(Step):
    """A forward and a backward of Reformer's reference, with recorded draws and buckets.

    Attributes:
        was_bias_missing: whether the language-model head of transformers did not add its bias (:func:`restore_bias`).
    """

    heads: ClassVar = {
        "sequence_classification": modeling_reformer.ReformerForSequenceClassification,
        "question_answering": modeling_reformer.ReformerForQuestionAnswering,
        "causal_lm": modeling_reformer.ReformerModelWithLMHead,
        "masked_lm": modeling_reformer.ReformerForMaskedLM,
        "token_classification": ReformerForTokenClassification,
    }
    embedding_module = "reformer.embeddings"
    narrowed_heads = NARROWED_HEADS
    aliases: ClassVar = {"lm_head.decoder.bias": "lm_head.bias"}

    def __init__(self, job: Job, *step_inputs: Mapping[str, np.ndarray]) -> None:
        super().__init__(job, *step_inputs)
        self.was_bias_missing = restore_bias(self.model)

    @property
    def notes(self) -> list[Note]:
        """The note for the report if the bias of the language-model head had to be restored."""
        return [Note("reference-bias")] if self.was_bias_missing else []

    def configuration(self, keys: Mapping[str, Any]) -> ReformerConfig:
        """Return the configuration of transformers for the job's configuration keys."""
        return ReformerConfig(**keys, use_cache=False)

    def positions_of(self, model: nn.Module) -> dict[str, np.ndarray]:
        """Return both factors of the axial position table, for texts of rows * columns tokens.

        The first factor, (rows, 1, width), is read at the first token of each row, and the second, (1, columns,
        width), along the first row.
        """
        embeddings = model.reformer.embeddings.position_embeddings
        rows, columns = self.config["axial_pos_shape"]
        with torch.no_grad():
            table = embeddings(torch.arange(rows * columns)[None])[0].reshape(rows, columns, -1)
        width = embeddings.weights[0].shape[-1]
        name = "reformer.embeddings.position_embeddings.weights"
        return {f"{name}.0": to_numpy(table[:, :1, :width]), f"{name}.1": to_numpy(table[:1, :, width:])}

    def evaluated_unit(self) -> int:
        """Return the divisor of a text's length in evaluation mode (:func:`.evaluation_lengths.evaluation_unit`)."""
        return evaluation_unit(self.config)

    def facts(self, records: Mapping[str, TensorRecord]) -> ReferenceFacts:
        """Return the facts about R64 for the verdict, with the bucket margins that rounding can reverse.

        Args:
            records: statistics of R64's tensors and of their noise, by name.
        """

        def slacks_in(dtype: str) -> dict[str, float]:
            """Return the largest margin that rounding in a dtype can reverse, by run and LSH module."""
            return {
                name_in_run(run, module): slack
                for run, draws in self.draws.items()
                if run != FINAL_LOSS  # it records only its loss
                for module, slack in bucket_slacks(draws.tensors, records, run, dtype).items()
            }

        bfloat16_slack = slacks_in("bfloat16") if self.measures_bfloat16 else {}
        facts, num_buckets = super().facts(records), self.model.config.num_buckets
        return replace(
            facts, num_buckets=num_buckets, bucket_slack=slacks_in("float32"), bucket_slack_lowered=bfloat16_slack
        )

    def operation(self, module: str, function: Callable, arguments: tuple) -> Operation | None:
        """Return the operation of a call of a torch function that a trace compares; None for other calls.

        Args:
            module: dotted path of the running module. Only the operations inside an attention are named.
            function: torch function.
            arguments: arguments of the call.
        """
        if not module.endswith(".self_attention"):
            return None
        if function is torch.Tensor.transpose and arguments[1:] == (2, 1):
            return Operation("transpose", ("heads",))
        if function is torch.cat and arguments[1:] == (3,):
            return Operation("cat", ("adjacent",))
        if function is torch.logsumexp and self.model.config.num_hashes > 1 and "lsh" in self._kind(module):
            return Operation("logsumexp", ("normalizer", None))
        return ATTENTION.get(function)

    def _kind(self, module: str) -> str:
        """Return the kind of the layer that contains a module: ``local`` or ``lsh``."""
        return self.model.config.attn_layers[int(module.split(".")[3])]

    @contextlib.contextmanager
    def watch_other_operations(self, watch: OperationWatch) -> Iterator[None]:
        """Record the results of ``ReverseSort`` inside the ``with`` block.

        The watch does not see the operations inside this autograd function.

        Args:
            watch: watch of the trace.
        """
        function = modeling_reformer.ReverseSort
        original = function.apply

        def apply(*arguments):
            watch.paused = True
            context, normalizer = original(*arguments)
            watch.paused = False
            context = watch.recorder.pass_operation("unsorted", context)
            has_rounds = self.model.config.num_hashes > 1
            return context, watch.recorder.pass_operation(
                "unsorted_normalizer", normalizer
            ) if has_rounds else normalizer

        restore = set_attribute(function, "apply", apply)
        try:
            yield
        finally:
            restore()

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        """Replay R64's buckets and use an exact softmax inside the ``with`` block.

        Args:
            recorder: recorder of the run.
            plain: whether gradients are computed by plain autograd instead of the reference's reversible backward.
        """
        normalizer = ExactNormalizer(lambda: recorder.recording)
        # In float32, a backward needs no more memory than the port in float64.
        spares_memory = self.spare_memory and (self.brief or self.dtype == "float64")
        layers = run_plain_autograd(recorder, normalizer, spares_memory) if plain else normalizer
        gradients = contextlib.nullcontext() if plain else require_gradients()
        with self._replay_buckets(recorder.draws.tensors), gradients, layers:
            yield
        self.saturated = normalizer.saturated

    def decode(self, keep: Keep) -> None:
        """Keep the logits of a text that is decoded token by token, without the reference's cache.

        :mod:`models.reformer.continuation` gives the reason. Each step computes the whole text so far. At earlier
        positions, the input of each attention is replaced by its input when these positions were the last.

        Args:
            keep: function that receives the name and value of each tensor.
        """
        if not isinstance(self.model, modeling_reformer.ReformerModelWithLMHead):
            return
        input_ids, earlier_inputs = self._inputs()["input_ids"], dict[nn.Module, torch.Tensor]()
        for number, inputs in enumerate(split_for_decoding(self._inputs()), 1):
            length = inputs["attention_mask"].shape[1]
            num_padding = padded_length(self.config, length) - length
            padded_ids = torch.nn.functional.pad(
                input_ids[:, :length], (0, num_padding), value=self.config["pad_token_id"] or 0
            )
            padded_mask = torch.nn.functional.pad(torch.ones_like(input_ids[:, :length]), (0, num_padding))
            with (
                ExactNormalizer(lambda: False),
                keep_inputs(self.model, earlier_inputs, length),
                self._replace_hashing(functools.partial(replay_decoding_buckets, self.draws[WHOLE].tensors, length)),
            ):
                logits = self.model(padded_ids, attention_mask=padded_mask).logits[:, length - 1 : length]
            keep(append_number(name_in_run(DECODING, "logits"), number), to_numpy(logits))

    @contextlib.contextmanager
    def _replay_buckets(self, draws: dict[str, np.ndarray] | SpilledTensors) -> Iterator[None]:
        """Record R64's buckets with their margins inside the ``with`` block, and replay them in all other runs.

        Args:
            draws: recorded draws by name. The first run adds `buckets:MODULE` and `margin:MODULE`.
        """
        with self._replace_hashing(lambda name, module: replay_buckets(name, module, draws)):
            yield

    @contextlib.contextmanager
    def _replace_hashing(self, make_hashing: Callable[[str, Any], Callable[..., torch.Tensor]]) -> Iterator[None]:
        """Replace ``_hash_vectors`` of each LSH attention inside the ``with`` block.

        Args:
            make_hashing: function of a module's path and the module that returns the replacement.
        """
        restore_functions = [
            set_attribute(module, "_hash_vectors", make_hashing(name, module))
            for name, module in self.model.named_modules()
            if isinstance(module, modeling_reformer.LSHSelfAttention)
        ]
        try:
            yield
        finally:
            for restore in restore_functions:
                restore()


def replay_buckets(
    name: str, module: Any, draws: dict[str, np.ndarray] | SpilledTensors
) -> Callable[..., torch.Tensor]:
    """Return a replacement of ``_hash_vectors`` that records a module's first buckets and then replays them.

    Args:
        name: path of the module.
        module: LSH attention of the reference.
        draws: recorded draws by name. The first call adds `buckets:NAME` and `margin:NAME`.
    """
    own_hash_vectors = module._hash_vectors

    def hash_vectors(
        vectors: torch.Tensor, num_hashes: int, attention_mask: torch.Tensor | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        buckets = own_hash_vectors(vectors, num_hashes, attention_mask, *args, **kwargs)
        key = f"buckets:{name}"
        if key not in draws:
            draws[key] = buckets.numpy(force=True).astype(np.int32)
            draws[f"margin:{name}"] = bucket_margins(vectors.detach(), draws[f"normal:{name}"], module.num_buckets)
        return torch.from_numpy(draws[key]).to(buckets)

    return hash_vectors


def replay_decoding_buckets(
    draws: dict[str, np.ndarray] | SpilledTensors, length: int, name: str, module: Any
) -> Callable[..., torch.Tensor]:
    """Return a replacement of ``_hash_vectors`` for a text that grows by one token in each call.

    It uses the recorded rotations of the whole batch. It records the buckets of the longest text so far in ``draws``,
    and replays them for shorter texts.

    Args:
        draws: recorded draws, by name.
        length: number of tokens of the text, without padding.
        name: path of the module.
        module: LSH attention of the reference.
    """
    own_hash_vectors, key = module._hash_vectors, f"{DECODED_BUCKETS}:{name}"

    def hash_vectors(
        vectors: torch.Tensor, num_hashes: int, attention_mask: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        rotations = torch.from_numpy(draws[f"normal:{name}"]).to(vectors)
        restore = set_attribute(torch, "randn", lambda *_, **__: rotations)
        try:
            buckets = own_hash_vectors(vectors, num_hashes, attention_mask, *args, **kwargs)
        finally:
            restore()
        by_round = buckets.view(*buckets.shape[:2], num_hashes, -1)
        first_buckets = torch.from_numpy(
            first_of_rounds(num_hashes, module.num_buckets, length < by_round.shape[3])
        ).to(buckets)
        if key not in draws or draws[key].shape[3] < length:
            draws[key] = (by_round[..., :length] - first_buckets).numpy(force=True).astype(np.int32)
        by_round[..., :length] = torch.from_numpy(draws[key][..., :length]).to(buckets) + first_buckets
        return buckets

    return hash_vectors


@contextlib.contextmanager
def keep_inputs(model: nn.Module, earlier_inputs: dict[nn.Module, torch.Tensor], length: int) -> Iterator[None]:
    """Replace each attention's input at earlier positions inside the ``with`` block, and keep the input for later.

    Args:
        model: reference model.
        earlier_inputs: input of each attention at earlier positions, (B, T, hidden). It is updated to the input at the
            first ``length`` positions.
        length: number of tokens of the text, without padding.
    """

    def replace_input(attention: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Return an attention's arguments with the stored input at earlier positions, and store the new input."""
        hidden_states = kwargs["hidden_states"]
        earlier = earlier_inputs.get(attention, hidden_states[:, :0])
        full_hidden_states = torch.cat([earlier, hidden_states[:, earlier.shape[1] :]], 1)
        earlier_inputs[attention] = full_hidden_states[:, :length]
        return args, {**kwargs, "hidden_states": full_hidden_states}

    layers = model.get_submodule(LAYERS).children()
    hooks = [
        layer.attention.self_attention.register_forward_pre_hook(replace_input, with_kwargs=True) for layer in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def restore_bias(model: nn.Module) -> bool:
    """Let the language-model head of a model add its bias, and return whether the head did not add it before."""
    head: Any = getattr(model, "lm_head", None)
    lacks_bias = head is not None and head.decoder.bias is None and isinstance(head.bias, torch.nn.Parameter)
    if lacks_bias:
        head.decoder.bias = head.bias
    return lacks_bias


def bucket_margins(vectors: torch.Tensor, rotations: np.ndarray, num_buckets: int | Sequence[int]) -> np.ndarray:
    """Return the margin of each position's best bucket over the second best, float64 (B, H, R*T).

    If the number of buckets is a list of factors, the margin is the smallest margin of a factor.

    Args:
        vectors: hashed vectors, (B, H, T, D).
        rotations: random rotations, (H, D, R, half).
        num_buckets: number of buckets of a round, or its factors.
    """
    projections = torch.einsum("bhtd,hdrk->bhrtk", vectors, torch.from_numpy(rotations).to(vectors))
    smallest_margin: Any = None
    start = 0
    for factor in [num_buckets] if isinstance(num_buckets, int) else num_buckets:
        part = projections[..., start : start + factor // 2]
        start += factor // 2
        best = torch.cat([part, -part], -1).topk(2, dim=-1).values
        margin = best[..., 0] - best[..., 1]
        smallest_margin = margin if smallest_margin is None else torch.minimum(smallest_margin, margin)
    return smallest_margin.flatten(2).double().numpy(force=True)


def bucket_slacks(
    draw_values: Mapping[str, np.ndarray],
    records: Mapping[str, TensorRecord],
    run: str = TRAINING,
    dtype: str = "float32",
) -> dict[str, float]:
    """Return the largest margin that rounding can reverse, for each LSH attention.

    A rotated vector's component is a sum over the head's dimensions. Its error is the error of the vectors, as measured
    between R32 and R64, times the norm of a rotation's column, plus the rounding of the sum. A margin is the difference
    of two components. The result is infinite if the vectors are not finite.

    Args:
        draw_values: recorded draws of the run, by name.
        records: tensors of R64 with the noise of each dtype, by name.
        run: name of the run that hashes the vectors, such as `training`.
        dtype: dtype of the vectors. They are always hashed in float32.
    """
    slacks = {}
    names = map(TensorName.parse, draw_values)
    for name in (tensor_name.module for tensor_name in names if tensor_name.kind == "buckets"):
        rotations = draw_values[f"normal:{name}"].astype(np.float64)  # (H, D, R, half)
        column_norm = float(np.sqrt((rotations**2).sum(1)).max())
        vectors = records[name_in_run(run, f"output:{name}.query_key")]
        noise = [error for error in vectors.noise[dtype] if error is not None]
        if vectors.max is None or len(noise) < len(vectors.noise[dtype]):
            slacks[name] = math.inf
            continue
        inherited_error = max(noise) * column_norm
        rounding_error = 2.0**-24 * np.sqrt(rotations.shape[1]) * vectors.max * column_norm
        slacks[name] = 2 * 8 * (inherited_error + float(rounding_error))
    return slacks


@contextlib.contextmanager
def run_plain_autograd(recorder: Recorder, normalizer: ExactNormalizer, spare_memory: bool) -> Iterator[None]:
    """Run the layers under plain autograd inside the ``with`` block, and record both residual streams of each layer.

    Plain autograd replaces the reference's reversible function.

    Args:
        recorder: recorder of the step's tensors.
        normalizer: exact softmax that the attentions use, also when a backward recomputes them.
        spare_memory: whether to keep only the streams in memory. The backward then recomputes the other activations
            from the same numbers with the same draws.
    """
    function = modeling_reformer._ReversibleFunction
    names = list(inspect.signature(function.forward).parameters)[1:]
    run_checkpointed = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    run = run_checkpointed if spare_memory else lambda block, x: block(x)

    def apply(*values):
        arguments = dict(zip(names, values, strict=True))
        attention_stream, hidden_stream = torch.chunk(arguments["hidden_states"], 2, dim=-1)
        attention_arguments = {key: arguments[key] for key in ("attention_mask", "num_hashes")}
        for index, layer in enumerate(arguments["layers"]):
            attend = functools.partial(_attend_cleanly, layer, attention_arguments, normalizer)
            attention_stream = attention_stream + run(attend, hidden_stream)
            if recorder.points is not None:
                attention_stream = recorder.points.pass_through(f"stream:{LAYERS}.{index}", attention_stream)
            hidden_stream = hidden_stream + run(layer.feed_forward, attention_stream)
            if recorder.points is not None:
                hidden_stream = recorder.points.pass_through(f"stream:{LAYERS}.{index}@1", hidden_stream)
            if recorder.recording:
                recorder.keep(f"stream:{LAYERS}.{index}#attention", values_of(attention_stream))
                recorder.keep(f"stream:{LAYERS}.{index}#hidden", values_of(hidden_stream))
        return torch.cat([attention_stream, hidden_stream], dim=-1)

    restore = set_attribute(function, "apply", apply)
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def require_gradients() -> Iterator[None]:
    """Let the reversible backward run inside the ``with`` block, even if the embeddings are frozen.

    The input of the reference's reversible function then requires no gradient, although the layers' parameters do.
    """
    function = modeling_reformer._ReversibleFunction
    original = function.apply

    def apply(hidden_states, *values):
        return original(hidden_states if hidden_states.requires_grad else hidden_states.requires_grad_(), *values)

    restore = set_attribute(function, "apply", apply)
    try:
        yield
    finally:
        restore()


def _attend_cleanly(
    layer: nn.Module, attention_arguments: Mapping, normalizer: ExactNormalizer, hidden_states: torch.Tensor
) -> torch.Tensor:
    """Return the output of a layer's attention with an exact softmax, (B, T, hidden).

    Args:
        layer: layer of the reference.
        attention_arguments: further keyword arguments of the attention.
        normalizer: exact softmax.
        hidden_states: input of the attention, (B, T, hidden).
    """
    with normalizer:
        return layer.attention(hidden_states=hidden_states, **attention_arguments).hidden_states


#: Class of the step of Reformer's reference.
STEP = ReformerStep
