"""The step of Reformer's port: its buckets, its two residual streams and its reversible backward."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import paddle
from paddle import nn

from models.reformer import reversible
from models.reformer.attention import LSHSelfAttention
from models.reformer.config import ReformerConfig
from models.reformer.continuation import Continuation
from models.reformer.modeling import ReformerLayer, ReformerModelWithLMHead
from toolkit.parity.candidate.places import decoding_places, place_of_code
from toolkit.parity.candidate.ported import PortedStep
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import PLAIN, Measure
from toolkit.parity.families.reformer.evaluated import DECODED_BUCKETS, NARROWED_HEADS, evaluation_unit, first_of_rounds
from toolkit.parity.job.results import CandidateFacts, Place
from toolkit.parity.measure.evaluation import DECODING, NARROW, WHOLE, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import TensorName, append_number


class ReformerStep(PortedStep):
    """A step of Reformer's port."""

    again = "reversible"
    embedded = "reformer.embeddings"
    narrowed_heads = NARROWED_HEADS

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        return settings.get("backward") == "autograd"

    def build(self, model_class: type, config: Mapping[str, Any], backward: str) -> nn.Layer:
        self.remembers = self.brief and backward == PLAIN
        backward_kind = self.again if self.remembers else backward
        return model_class(
            ReformerConfig(**{**config, "residual": self.port.get("residual", "wide"), "backward": backward_kind})
        )

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        with remember_streams() if self.remembers else contextlib.nullcontext():
            super().run(measure, with_hooks)

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        if not isinstance(layer, ReformerLayer):
            return None
        return {f"stream:{name}#attention": output[0].value, f"stream:{name}#hidden": output[1].value}

    def places(self) -> dict[str, Place]:
        return {
            **super().places(),
            NARROW: place_of_code("ReformerLayer.forward", ReformerLayer.forward),
            **decoding_places(Continuation),
            "recomputed": place_of_code("the reversible layers' backward", reversible._ReversibleRun.backward),
            "plain": place_of_code("the layers under plain autograd", reversible.run_traced),
        }

    def evaluated_unit(self) -> int:
        return evaluation_unit(self.config)

    def facts(self) -> CandidateFacts:
        return replace(super().facts(), num_buckets=self.model.config.num_buckets)

    def recorded_of(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        draws, num_rounds = self.recorded_draws[run], self.model.config.num_hashes
        token_names = [name for name in draws if TensorName.parse(name).kind in ("buckets", "margin")]
        first_draws = {name: first_tokens(draws[name][rows], num_rounds, length) for name in token_names}
        return ChainMap(first_draws, cast(dict[str, np.ndarray], draws))  # other draws are read on first use

    def decode(self, measure: Measure) -> None:
        if not isinstance(self.model, ReformerModelWithLMHead):
            return
        first_ids, *next_ids = (inputs["input_ids"] for inputs in split_for_decoding(self.batch))
        with self.decoding_choices():
            logits, continue_with = self.model.begin(first_ids)
            for number, ids in enumerate([None, *next_ids], 1):
                logits = logits if ids is None else continue_with(ids)
                measure(append_number(name_in_run(DECODING, "logits"), number), logits.unsqueeze(1).numpy())

    def generate(self) -> None:
        if isinstance(self.model, ReformerModelWithLMHead):
            first_ids, second_ids, *_ = (inputs["input_ids"] for inputs in split_for_decoding(self.batch))
            _, continue_with = self.model.begin(first_ids)
            continue_with(second_ids)

    @contextlib.contextmanager
    def decoding_choices(self) -> Iterator[None]:
        """Replay the rotations of the whole batch in LSH inside the ``with`` block, and R64's buckets below float64."""
        draws = self.recorded_draws[WHOLE]
        layers = [(name, layer) for name, layer in self.model.named_sublayers() if isinstance(layer, LSHSelfAttention)]
        for name, layer in layers:
            layer.__dict__["draw_rotations"] = replay_rotations(layer, draws, name)
            if self.dtype != "float64":
                layer.__dict__["hash_vectors"] = replay_decoding_buckets(layer, draws, name)
        try:
            yield
        finally:
            for _, layer in layers:
                del layer.__dict__["draw_rotations"]
                layer.__dict__.pop("hash_vectors", None)

    @contextlib.contextmanager
    def apply_choices(self, draws: RecordedDraws) -> Iterator[None]:
        layers = [(name, layer) for name, layer in self.model.named_sublayers() if isinstance(layer, LSHSelfAttention)]
        for name, layer in layers:
            layer.__dict__["hash_vectors"] = replay_buckets(name, layer.hash_vectors, draws)
        try:
            yield
        finally:
            for _, layer in layers:
                del layer.__dict__["hash_vectors"]


@dataclass
class RememberedStream:
    """A residual stream whose backward restores the remembered value instead of subtracting the update.

    Attributes:
        inner: stream of the port.
        previous: the stream before the last update.
    """

    inner: reversible.Stream
    previous: RememberedStream | None = None

    @property
    def value(self) -> paddle.Tensor:
        return self.inner.value

    def plus(self, update: paddle.Tensor) -> RememberedStream:
        return RememberedStream(self.inner.plus(update), self)

    def minus(self, update: paddle.Tensor) -> RememberedStream:
        assert self.previous is not None
        return self.previous


@contextlib.contextmanager
def remember_streams() -> Iterator[None]:
    """Let the reversible backward recompute each layer from its exact input inside the ``with`` block.

    As under plain autograd, the backward then loses no digits. Only the streams are kept in memory, and no other
    activations.
    """
    module: Any = reversible
    open_stream = module.open_stream
    module.open_stream = lambda value, residual: RememberedStream(open_stream(value, residual))
    try:
        yield
    finally:
        module.open_stream = open_stream


def first_tokens(values: np.ndarray, num_rounds: int, length: int) -> np.ndarray:
    """Return the values of the first tokens of each hash round, (B, H, R*T) -> (B, H, R*length)."""
    batch, heads = values.shape[:2]
    return values.reshape([batch, heads, num_rounds, -1])[..., :length].reshape([batch, heads, -1])


def replay_buckets(
    module: str, own_hash_vectors: Callable[..., paddle.Tensor], draws: RecordedDraws
) -> Callable[..., paddle.Tensor]:
    """Return a module's ``hash_vectors`` that returns R64's buckets."""

    def hash_vectors(*args: Any, **kwargs: Any) -> paddle.Tensor:
        return draws.buckets(module, own_hash_vectors(*args, **kwargs))

    return hash_vectors


def replay_rotations(
    layer: LSHSelfAttention, recorded_draws: Mapping[str, np.ndarray], name: str
) -> Callable[[int, paddle.dtype], paddle.Tensor]:
    """Return a layer's ``draw_rotations`` that returns the recorded rotations of the module ``name``."""

    def draw_rotations(length: int, dtype: paddle.dtype) -> paddle.Tensor:
        layer.bucket_factors(length)
        return paddle.to_tensor(recorded_draws[f"normal:{name}"]).astype(dtype)

    return draw_rotations


def replay_decoding_buckets(
    layer: LSHSelfAttention, recorded_draws: Mapping[str, np.ndarray], name: str
) -> Callable[..., paddle.Tensor]:
    """Return a layer's ``hash_vectors`` that returns R64's buckets of a text that is decoded token by token.

    A call with a mask hashes the first positions of a text that is padded. Calls without a mask hash the positions from
    the beginning, in order.
    """
    own_hash_vectors, num_hashed = layer.hash_vectors, 0

    def hash_vectors(vectors: paddle.Tensor, rotations: paddle.Tensor, batch: int, mask: Any) -> paddle.Tensor:
        nonlocal num_hashed
        buckets = own_hash_vectors(vectors, rotations, batch, mask).numpy()
        by_round = buckets.reshape([*buckets.shape[:2], layer.num_hashes, -1])
        start, length = (num_hashed, by_round.shape[3]) if mask is None else (0, int(mask[0].sum()))
        num_hashed += length if mask is None else 0
        true_buckets = recorded_draws[f"{DECODED_BUCKETS}:{name}"][..., start : start + length]
        is_padded = length < by_round.shape[3]
        by_round[..., :length] = true_buckets + first_of_rounds(layer.num_hashes, layer.config.num_buckets, is_padded)
        return paddle.to_tensor(buckets)

    return hash_vectors


STEP = ReformerStep
