"""Parts of the reference's step that only Reformer needs: its buckets, its softmax, plain autograd."""

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
from torch.utils.checkpoint import checkpoint
from transformers import ReformerConfig
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.models.reformer import modeling_reformer

from toolkit.parity.families.reformer.evaluated import DECODED_BUCKETS, NARROWED_HEADS, first_of_rounds, padded, unit
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import Note, ReferenceFacts
from toolkit.parity.job.tensor_file import SpilledTensors
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import DECODING, FINAL_LOSS, TRAINING, WHOLE, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import TensorName, append_number
from toolkit.parity.reference.clean import ExactNormalizer
from toolkit.parity.reference.points import Keep, Operation, OperationWatch, to_numpy, values_of
from toolkit.parity.reference.recorder import Recorder, set_attribute
from toolkit.parity.reference.step import Step

#: The path of the layers.
LAYERS = "reformer.encoder.layers"
#: Operations inside an attention.
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
    """The body of transformers under the head of its other models, such as ``BertForTokenClassification``: it has none
    of Reformer. The loss is that head's, but for its cast to float32."""

    def __init__(self, config: ReformerConfig) -> None:
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
        """int64 (B, T) each -> ``logits`` (B, T, labels) and, given labels, ``loss``; -100 is ignored."""
        body = self.reformer(input_ids, attention_mask=attention_mask)
        logits = self.classifier(self.dropout(body.last_hidden_state))
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return TokenClassifierOutput(loss=loss, logits=logits)


class ReformerStep(Step):
    """A step of Reformer."""

    heads: ClassVar = {
        "sequence_classification": modeling_reformer.ReformerForSequenceClassification,
        "question_answering": modeling_reformer.ReformerForQuestionAnswering,
        "causal_lm": modeling_reformer.ReformerModelWithLMHead,
        "masked_lm": modeling_reformer.ReformerForMaskedLM,
        "token_classification": ReformerForTokenClassification,
    }
    embedded = "reformer.embeddings"
    narrowed_heads = NARROWED_HEADS
    aliases: ClassVar = {"lm_head.decoder.bias": "lm_head.bias"}

    def __init__(self, job: Job, *given: Mapping[str, np.ndarray]) -> None:
        super().__init__(job, *given)
        self.bias_was_lost = restore_bias(self.model)

    @property
    def notes(self) -> list[Note]:
        return [Note("reference-bias")] if self.bias_was_lost else []

    def configuration(self, keys: Mapping) -> ReformerConfig:
        return ReformerConfig(**keys, use_cache=False)

    def positions_of(self, model: torch.nn.Module) -> dict[str, np.ndarray]:
        """Return both factors of the axial table for texts of rows * columns tokens: the rows at every row's first
        token, the columns along the first row."""
        embeddings = model.reformer.embeddings.position_embeddings
        rows, columns = self.config["axial_pos_shape"]
        with torch.no_grad():
            table = embeddings(torch.arange(rows * columns)[None])[0].reshape(rows, columns, -1)
        width = embeddings.weights[0].shape[-1]
        name = "reformer.embeddings.position_embeddings.weights"
        return {f"{name}.0": to_numpy(table[:, :1, :width]), f"{name}.1": to_numpy(table[:1, :, width:])}

    def evaluated_unit(self) -> int:
        return unit(self.config)

    def facts(self, records: Mapping[str, TensorRecord]) -> ReferenceFacts:
        def slack_in(dtype: str) -> dict[str, float]:
            return {
                name_in_run(run, module): by
                for run, draws in self.draws.items()
                if run != FINAL_LOSS  # keeps nothing but its loss
                for module, by in bucket_slack(draws.tensors, records, run, dtype).items()
            }

        lowered = slack_in("bfloat16") if self.measures_bfloat16 else {}
        facts, count = super().facts(records), self.model.config.num_buckets
        return replace(facts, num_buckets=count, bucket_slack=slack_in("float32"), bucket_slack_lowered=lowered)

    def operation(self, module: str, function: Callable, arguments: tuple) -> Operation | None:
        if not module.endswith(".self_attention"):
            return None
        if function is torch.Tensor.transpose and arguments[1:] == (2, 1):
            return Operation("transpose", ("heads",))
        if function is torch.cat and arguments[1:] == (3,):
            return Operation("cat", ("adjacent",))
        if function is torch.logsumexp and self.model.config.num_hashes > 1 and "lsh" in self._kind(module):
            return Operation("logsumexp", ("normaliser", None))
        return ATTENTION.get(function)

    def _kind(self, module: str) -> str:
        """Return ``local`` or ``lsh``, the kind of the layer that a module belongs to."""
        return self.model.config.attn_layers[int(module.split(".")[3])]

    @contextlib.contextmanager
    def watch_other_operations(self, watch: OperationWatch) -> Iterator[None]:
        """Watch the undoing of the sort apart: it is a function with a backward of its own."""
        function = modeling_reformer.ReverseSort
        original = function.apply

        def apply(*arguments):
            watch.paused = True
            context, normaliser = original(*arguments)
            watch.paused = False
            context = watch.recorder.pass_operation("unsorted", context)
            several = self.model.config.num_hashes > 1
            return context, watch.recorder.pass_operation("unsorted_normaliser", normaliser) if several else normaliser

        undo = set_attribute(function, "apply", apply)
        try:
            yield
        finally:
            undo()

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        normaliser = ExactNormalizer(lambda: recorder.recording)
        # In float32, all that a backward needs takes no more than the port's in float64.
        again = self.spare_memory and (self.brief or self.dtype == "float64")
        layers = plain_autograd(recorder, normaliser, again) if plain else normaliser
        wanting = contextlib.nullcontext() if plain else wanting_gradients()
        with self._given_buckets(recorder.draws.tensors), wanting, layers:
            yield
        self.saturated = normaliser.saturated

    def decode(self, keep: Keep) -> None:
        """Decode without the reference's cache, which shows a position others (:mod:`models.reformer.continuation`).

        The text so far is computed whole, but with each attention's input at earlier positions as it was when they were
        the last.
        """
        if not isinstance(self.model, modeling_reformer.ReformerModelWithLMHead):
            return
        given, kept = self._inputs()["input_ids"], dict[torch.nn.Module, torch.Tensor]()
        for number, inputs in enumerate(split_for_decoding(self._inputs()), 1):
            length = inputs["attention_mask"].shape[1]
            missing = padded(self.config, length) - length
            ids = torch.nn.functional.pad(given[:, :length], (0, missing), value=self.config["pad_token_id"] or 0)
            mask = torch.nn.functional.pad(torch.ones_like(given[:, :length]), (0, missing))
            with (
                ExactNormalizer(lambda: False),
                kept_inputs(self.model, kept, length),
                self._replaced_hashing(functools.partial(decoding_choice, self.draws[WHOLE].tensors, length)),
            ):
                logits = self.model(ids, attention_mask=mask).logits[:, length - 1 : length]
            keep(append_number(name_in_run(DECODING, "logits"), number), to_numpy(logits))

    @contextlib.contextmanager
    def _given_buckets(self, drawn: dict[str, np.ndarray] | SpilledTensors) -> Iterator[None]:
        """Replace ``_hash_vectors``: record R64's choice with its margins, and give it to all other runs."""
        with self._replaced_hashing(lambda name, module: choice(name, module, drawn)):
            yield

    @contextlib.contextmanager
    def _replaced_hashing(self, made: Callable[[str, Any], Callable[..., torch.Tensor]]) -> Iterator[None]:
        """Replace ``_hash_vectors`` by what is made for each module."""
        undo = [
            set_attribute(module, "_hash_vectors", made(name, module))
            for name, module in self.model.named_modules()
            if isinstance(module, modeling_reformer.LSHSelfAttention)
        ]
        try:
            yield
        finally:
            for restore in undo:
                restore()


def choice(name: str, module: Any, drawn: dict[str, np.ndarray] | SpilledTensors) -> Callable[..., torch.Tensor]:
    """Return a ``_hash_vectors`` whose first choice goes into ``drawn`` and is repeated from there."""
    original = module._hash_vectors

    def choose(
        vectors: torch.Tensor, num_hashes: int, attention_mask: torch.Tensor | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        own = original(vectors, num_hashes, attention_mask, *args, **kwargs)
        key = f"buckets:{name}"
        if key not in drawn:
            drawn[key] = own.numpy(force=True).astype(np.int32)
            drawn[f"margin:{name}"] = margins(vectors.detach(), drawn[f"normal:{name}"], module.num_buckets)
        return torch.from_numpy(drawn[key]).to(own)

    return choose


def decoding_choice(
    drawn: dict[str, np.ndarray] | SpilledTensors, length: int, name: str, module: Any
) -> Callable[..., torch.Tensor]:
    """As :func:`choice`, of texts of ``length`` tokens that grow, by the rotations of the whole batch: R64's choice is
    recorded for each, and the last, which has all tokens, repeated."""
    original, key = module._hash_vectors, f"{DECODED_BUCKETS}:{name}"

    def choose(
        vectors: torch.Tensor, num_hashes: int, attention_mask: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        rotations = torch.from_numpy(drawn[f"normal:{name}"]).to(vectors)
        undo = set_attribute(torch, "randn", lambda *_, **__: rotations)
        try:
            own = original(vectors, num_hashes, attention_mask, *args, **kwargs)
        finally:
            undo()
        rounds = own.view(*own.shape[:2], num_hashes, -1)
        first = torch.from_numpy(first_of_rounds(num_hashes, module.num_buckets, length < rounds.shape[3])).to(own)
        if key not in drawn or drawn[key].shape[3] < length:
            drawn[key] = (rounds[..., :length] - first).numpy(force=True).astype(np.int32)
        rounds[..., :length] = torch.from_numpy(drawn[key][..., :length]).to(own) + first
        return own

    return choose


@contextlib.contextmanager
def kept_inputs(model: torch.nn.Module, kept: dict[torch.nn.Module, torch.Tensor], length: int) -> Iterator[None]:
    """Inside the ``with`` block, each attention's input at the positions in ``kept`` (B, T, hidden) is that; ``kept``
    then has the input's first ``length`` positions."""

    def replace_input(attention: torch.nn.Module, args: tuple, given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        own = given["hidden_states"]
        before = kept.get(attention, own[:, :0])
        whole = torch.cat([before, own[:, before.shape[1] :]], 1)
        kept[attention] = whole[:, :length]
        return args, {**given, "hidden_states": whole}

    layers = model.get_submodule(LAYERS).children()
    hooks = [
        layer.attention.self_attention.register_forward_pre_hook(replace_input, with_kwargs=True) for layer in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def restore_bias(model: torch.nn.Module) -> bool:
    """Let the language-model head add its bias if it has one that it does not add, and return whether that was so."""
    head: Any = getattr(model, "lm_head", None)
    lost = head is not None and head.decoder.bias is None and isinstance(head.bias, torch.nn.Parameter)
    if lost:
        head.decoder.bias = head.bias
    return lost


def margins(vectors: torch.Tensor, rotations: np.ndarray, num_buckets: int | Sequence[int]) -> np.ndarray:
    """Return the margin of each position's best bucket over the second best: float64 (B, H, R*T).

    If the bucket count is factorised, this is the smallest of the factors' margins.
    """
    rotated = torch.einsum("bhtd,hdrk->bhrtk", vectors, torch.from_numpy(rotations).to(vectors))
    smallest: Any = None
    below = 0
    for factor in [num_buckets] if isinstance(num_buckets, int) else num_buckets:
        part = rotated[..., below : below + factor // 2]
        below += factor // 2
        best = torch.cat([part, -part], -1).topk(2, dim=-1).values
        margin = best[..., 0] - best[..., 1]
        smallest = margin if smallest is None else torch.minimum(smallest, margin)
    return smallest.flatten(2).double().numpy(force=True)


def bucket_slack(
    draws: Mapping[str, np.ndarray],
    records: Mapping[str, TensorRecord],
    run: str = TRAINING,
    dtype: str = "float32",
) -> dict[str, float]:
    """Return, for each LSH attention, the margin that rounding can turn around, with vectors in float32 or in bfloat16:
    they are hashed in float32 all the same.

    A rotated vector's component is a sum over the head's dimensions. Its error is the vectors' own (as measured
    between R32 and R64) times the length of a rotation's column, plus the rounding of the sum. A margin is the
    difference of two components. The result is infinite where the vectors are not finite.
    """
    slack = {}
    parsed = map(TensorName.parse, draws)
    for name in (drawn.module for drawn in parsed if drawn.kind == "buckets"):
        rotations = draws[f"normal:{name}"].astype(np.float64)  # (H, D, R, half)
        column = float(np.sqrt((rotations**2).sum(1)).max())
        vectors = records[name_in_run(run, f"output:{name}.query_key")]
        noise = [error for error in vectors.noise[dtype] if error is not None]
        if vectors.max is None or len(noise) < len(vectors.noise[dtype]):
            slack[name] = math.inf
            continue
        inherited = max(noise) * column
        rounding = 2.0**-24 * np.sqrt(rotations.shape[1]) * vectors.max * column
        slack[name] = 2 * 8 * (inherited + float(rounding))
    return slack


@contextlib.contextmanager
def plain_autograd(recorder: Recorder, normaliser: ExactNormalizer, spare_memory: bool) -> Iterator[None]:
    """Run the layers one after another under autograd, instead of the reference's reversible function, and record the
    two residual streams after each layer.

    Args:
        normaliser: in force in the attentions, also where a backward recomputes them.
        spare_memory: keep only the streams; the backward recomputes what lies between them from the same numbers with
            the same draws.
    """
    function = modeling_reformer._ReversibleFunction
    names = list(inspect.signature(function.forward).parameters)[1:]
    again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    run = again if spare_memory else lambda block, x: block(x)

    def apply(*values):
        arguments = dict(zip(names, values, strict=True))
        attention_stream, hidden_stream = torch.chunk(arguments["hidden_states"], 2, dim=-1)
        given = {key: arguments[key] for key in ("attention_mask", "num_hashes")}
        for index, layer in enumerate(arguments["layers"]):
            attend = functools.partial(_attended, layer, given, normaliser)
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

    undo = set_attribute(function, "apply", apply)
    try:
        yield
    finally:
        undo()


@contextlib.contextmanager
def wanting_gradients() -> Iterator[None]:
    """Let the reference's reversible function run its backward inside the ``with`` block even if its input wants no
    gradient because the embeddings are frozen: the layers' parameters still want theirs."""
    function = modeling_reformer._ReversibleFunction
    original = function.apply

    def apply(hidden_states, *values):
        return original(hidden_states if hidden_states.requires_grad else hidden_states.requires_grad_(), *values)

    undo = set_attribute(function, "apply", apply)
    try:
        yield
    finally:
        undo()


def _attended(
    layer: torch.nn.Module, given: Mapping, normaliser: ExactNormalizer, hidden_states: torch.Tensor
) -> torch.Tensor:
    with normaliser:
        return layer.attention(hidden_states=hidden_states, **given).hidden_states


STEP = ReformerStep
