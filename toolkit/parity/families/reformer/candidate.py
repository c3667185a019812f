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
from toolkit.parity.candidate.family_step import PortedStep
from toolkit.parity.candidate.places import decoding_places, place_of_code
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import PLAIN, Measure
from toolkit.parity.exchange.results import CandidateFacts, Place
from toolkit.parity.families.reformer.evaluation_lengths import (
    DECODED_BUCKETS,
    NARROWED_HEADS,
    evaluation_unit,
    first_of_rounds,
)
from toolkit.parity.measure.evaluation import DECODING, NARROW, WHOLE, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import TensorName, append_number


class ReformerStep(PortedStep):
    """A forward and a backward of Reformer's port, with the reference's weights, batch and draws.

    Attributes:
        remembers: whether the reversible backward uses remembered streams (:func:`remember_streams`) instead of plain
            autograd, to save memory.
    """

    recomputing_backward = "reversible"
    embedding_module = "reformer.embeddings"
    narrowed_heads = NARROWED_HEADS

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these settings of the port keeps all activations, without a reversible backward."""
        return settings.get("backward") == "autograd"

    def build(self, model_class: type, config: Mapping[str, Any], backward: str) -> nn.Layer:
        """Return Reformer's port.

        Args:
            model_class: class of the port.
            config: keys and values of the configuration.
            backward: `reversible`, or `autograd` to keep all activations. For a large model, `autograd` is replaced by
                a reversible backward with remembered streams.
        """
        self.remembers = self.brief and backward == PLAIN
        backward_kind = self.recomputing_backward if self.remembers else backward
        return model_class(
            ReformerConfig(**{**config, "residual": self.port.get("residual", "wide"), "backward": backward_kind})
        )

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        """Run forward and backward, and measure the outputs and gradients.

        Args:
            measure: function that receives the name and value of each tensor.
            with_hooks: whether outputs are measured, too. Otherwise only the loss and the gradients are measured.
        """
        with remember_streams() if self.remembers else contextlib.nullcontext():
            super().run(measure, with_hooks)

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        """Return both residual streams after a Reformer layer, by name; None for other modules.

        Example of the names: `stream:reformer.encoder.layers.0#attention` and
        `stream:reformer.encoder.layers.0#hidden`.

        Args:
            name: path of the module.
            layer: the module.
            output: output of the module.
        """
        if not isinstance(layer, ReformerLayer):
            return None
        return {f"stream:{name}#attention": output[0].value, f"stream:{name}#hidden": output[1].value}

    def places(self) -> dict[str, Place]:
        """Return the source locations of the port's modules, its decoding, and its two backwards."""
        return {
            **super().places(),
            NARROW: place_of_code("ReformerLayer.forward", ReformerLayer.forward),
            **decoding_places(Continuation),
            "recomputed": place_of_code("the reversible layers' backward", reversible._ReversibleRun.backward),
            "plain": place_of_code("the layers under plain autograd", reversible.run_traced),
        }

    def evaluated_unit(self) -> int:
        """Return the divisor of a text's length in evaluation mode (:func:`.evaluation_lengths.evaluation_unit`)."""
        return evaluation_unit(self.config)

    def facts(self) -> CandidateFacts:
        """Return the facts about the port for the verdict, including its number of buckets."""
        return replace(super().facts(), num_buckets=self.model.config.num_buckets)

    def draws_of_rows(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        """Return R64's draws in a run, with buckets and margins of some rows and of their first tokens only.

        Args:
            run: name of the run.
            rows: indices of the texts in the batch.
            length: number of tokens of each text.
        """
        draws, num_rounds = self.recorded_draws[run], self.model.config.num_hashes
        token_names = [name for name in draws if TensorName.parse(name).kind in ("buckets", "margin")]
        first_draws = {name: first_tokens(draws[name][rows], num_rounds, length) for name in token_names}
        return ChainMap(first_draws, cast(dict[str, np.ndarray], draws))  # other draws are read on first use

    def decode(self, measure: Measure) -> None:
        """Measure the logits of a text that is decoded token by token.

        Only a language model decodes. The first call computes the beginning of the text, and each further call one
        token.

        Args:
            measure: function that receives the name and value of each tensor.
        """
        if not isinstance(self.model, ReformerModelWithLMHead):
            return
        first_ids, *next_ids = (inputs["input_ids"] for inputs in split_for_decoding(self.batch))
        with self.decoding_choices():
            logits, continue_with = self.model.begin(first_ids)
            for number, ids in enumerate([None, *next_ids], 1):
                logits = logits if ids is None else continue_with(ids)
                measure(append_number(name_in_run(DECODING, "logits"), number), logits.unsqueeze(1).numpy())

    @contextlib.contextmanager
    def decoding_choices(self) -> Iterator[None]:
        """Replay R64's rotations and buckets in LSH attention inside the ``with`` block, while a text is decoded.

        The rotations are drawn for the whole batch. The buckets are replayed only below float64, because float64 does
        not change a bucket by rounding.
        """
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
        """Send the port's LSH buckets, and use R64's buckets, inside the ``with`` block."""
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
    """A residual stream that remembers its values, so that the backward does not have to subtract updates.

    Attributes:
        inner: stream of the port.
        previous: the stream before the last update; None for the input of the first layer.
    """

    inner: reversible.Stream
    previous: RememberedStream | None = None

    @property
    def value(self) -> paddle.Tensor:
        """The current value of the stream, (B, T, hidden)."""
        return self.inner.value

    def plus(self, update: paddle.Tensor) -> RememberedStream:
        """Return a new stream, the sum of this stream and an update, that remembers this stream as its predecessor."""
        return RememberedStream(self.inner.plus(update), self)

    def minus(self, update: paddle.Tensor) -> RememberedStream:
        """Return the stream before its last update, which is remembered and not computed from ``update``."""
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
    """Return the values of the first tokens of each hash round, (B, H, R*T) -> (B, H, R*length).

    Args:
        values: values of all tokens, such as buckets; R is the number of hash rounds.
        num_rounds: number of hash rounds R.
        length: number of tokens to keep.
    """
    batch, heads = values.shape[:2]
    return values.reshape([batch, heads, num_rounds, -1])[..., :length].reshape([batch, heads, -1])


def replay_buckets(
    module: str, own_hash_vectors: Callable[..., paddle.Tensor], draws: RecordedDraws
) -> Callable[..., paddle.Tensor]:
    """Return a replacement of a layer's ``hash_vectors`` that sends the port's buckets and returns R64's.

    Args:
        module: path of the layer.
        own_hash_vectors: the layer's own method.
        draws: draws of the run, with R64's buckets.
    """

    def hash_vectors(*args: Any, **kwargs: Any) -> paddle.Tensor:
        return draws.buckets(module, own_hash_vectors(*args, **kwargs))

    return hash_vectors


def replay_rotations(
    layer: LSHSelfAttention, recorded_draws: Mapping[str, np.ndarray], name: str
) -> Callable[[int, paddle.dtype], paddle.Tensor]:
    """Return a replacement of a layer's ``draw_rotations`` that returns the recorded rotations.

    Args:
        layer: LSH attention of the port.
        recorded_draws: R64's draws by name.
        name: path of the layer.
    """

    def draw_rotations(length: int, dtype: paddle.dtype) -> paddle.Tensor:
        layer.bucket_factors(length)
        return paddle.to_tensor(recorded_draws[f"normal:{name}"]).astype(dtype)

    return draw_rotations


def replay_decoding_buckets(
    layer: LSHSelfAttention, recorded_draws: Mapping[str, np.ndarray], name: str
) -> Callable[..., paddle.Tensor]:
    """Return a replacement of a layer's ``hash_vectors`` that returns R64's buckets while a text is decoded.

    A call with a mask hashes the beginning of a padded text. Calls without a mask hash the positions from the
    beginning, in order.

    Args:
        layer: LSH attention of the port.
        recorded_draws: R64's draws by name.
        name: path of the layer.
    """
    own_hash_vectors, num_hashed = layer.hash_vectors, 0

    def hash_vectors(vectors: paddle.Tensor, rotations: paddle.Tensor, num_texts: int, mask: Any) -> paddle.Tensor:
        nonlocal num_hashed
        buckets = own_hash_vectors(vectors, rotations, num_texts, mask).numpy()
        by_round = buckets.reshape([*buckets.shape[:2], layer.num_hashes, -1])
        start, length = (num_hashed, by_round.shape[3]) if mask is None else (0, int(mask[0].sum()))
        num_hashed += length if mask is None else 0
        true_buckets = recorded_draws[f"{DECODED_BUCKETS}:{name}"][..., start : start + length]
        is_padded = length < by_round.shape[3]
        by_round[..., :length] = true_buckets + first_of_rounds(layer.num_hashes, layer.config.num_buckets, is_padded)
        return paddle.to_tensor(buckets)

    return hash_vectors


#: Class of the step of Reformer's port.
STEP = ReformerStep
