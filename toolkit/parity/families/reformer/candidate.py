"""Parts of the port's step that only Reformer needs: its buckets, its two streams, its reversible backward."""

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
from toolkit.parity.families.reformer.evaluated import DECODED_BUCKETS, NARROWED_HEADS, first_of_rounds, unit
from toolkit.parity.job.results import CandidateFacts, Place
from toolkit.parity.measure.evaluation import DECODING, NARROW, WHOLE, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import TensorName, append_number


class ReformerStep(PortedStep):
    """A step of Reformer."""

    again = "reversible"
    embedded = "reformer.embeddings"
    narrowed_heads = NARROWED_HEADS

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        return settings.get("backward") == "autograd"

    def build(self, kind: type, keys: Mapping[str, Any], backward: str) -> nn.Layer:
        self.remembers = self.brief and backward == PLAIN
        made = self.again if self.remembers else backward
        return kind(ReformerConfig(**{**keys, "residual": self.port.get("residual", "wide"), "backward": made}))

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        with remembered_streams() if self.remembers else contextlib.nullcontext():
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
            "recomputed": place_of_code("the reversible layers' backward", reversible._Run.backward),
            "plain": place_of_code("the layers under plain autograd", reversible.run_traced),
        }

    def evaluated_unit(self) -> int:
        return unit(self.config)

    def facts(self) -> CandidateFacts:
        return replace(super().facts(), num_buckets=self.model.config.num_buckets)

    def recorded_of(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        recorded, rounds = self.recorded_draws[run], self.model.config.num_hashes
        by_token = [name for name in recorded if TensorName.parse(name).kind in ("buckets", "margin")]
        cut = {name: first_tokens(recorded[name][rows], rounds, length) for name in by_token}
        return ChainMap(cut, cast(dict[str, np.ndarray], recorded))  # read only as it is asked for

    def decode(self, measure: Measure) -> None:
        if not isinstance(self.model, ReformerModelWithLMHead):
            return
        first, *others = (inputs["input_ids"] for inputs in split_for_decoding(self.batch))
        with self.decoding_choices():
            logits, go_on = self.model.begin(first)
            for number, ids in enumerate([None, *others], 1):
                logits = logits if ids is None else go_on(ids)
                measure(append_number(name_in_run(DECODING, "logits"), number), logits.unsqueeze(1).numpy())

    def generate(self) -> None:
        if isinstance(self.model, ReformerModelWithLMHead):
            first, second, *_ = (inputs["input_ids"] for inputs in split_for_decoding(self.batch))
            _, go_on = self.model.begin(first)
            go_on(second)

    @contextlib.contextmanager
    def decoding_choices(self) -> Iterator[None]:
        """Inside the ``with`` block, LSH has the rotations of the whole batch; below float64, R64's buckets, too."""
        recorded = self.recorded_draws[WHOLE]
        layers = [(n, x) for n, x in self.model.named_sublayers() if isinstance(x, LSHSelfAttention)]
        for name, layer in layers:
            layer.__dict__["draw_rotations"] = rotations_of(layer, recorded, name)
            if self.dtype != "float64":
                layer.__dict__["hash_vectors"] = decoding_choice(layer, recorded, name)
        try:
            yield
        finally:
            for _, layer in layers:
                del layer.__dict__["draw_rotations"]
                layer.__dict__.pop("hash_vectors", None)

    @contextlib.contextmanager
    def apply_choices(self, draws: RecordedDraws) -> Iterator[None]:
        layers = [(n, x) for n, x in self.model.named_sublayers() if isinstance(x, LSHSelfAttention)]
        for name, layer in layers:
            layer.__dict__["hash_vectors"] = choice(name, layer.hash_vectors, draws)
        try:
            yield
        finally:
            for _, layer in layers:
                del layer.__dict__["hash_vectors"]


@dataclass
class RememberedStream:
    """A stream that goes back to its remembered value, not to the result of a subtraction."""

    inner: reversible.Stream
    before: RememberedStream | None = None

    @property
    def value(self) -> paddle.Tensor:
        return self.inner.value

    def plus(self, update: paddle.Tensor) -> RememberedStream:
        return RememberedStream(self.inner.plus(update), self)

    def minus(self, update: paddle.Tensor) -> RememberedStream:
        assert self.before is not None
        return self.before


@contextlib.contextmanager
def remembered_streams() -> Iterator[None]:
    """Give the backward that recomputes layers each layer's own input inside the ``with`` block. As under plain
    autograd, nothing is lost on the way back. Of all activations only the streams are kept."""
    module: Any = reversible
    original = module.open_stream
    module.open_stream = lambda x, residual: RememberedStream(original(x, residual))
    try:
        yield
    finally:
        module.open_stream = original


def first_tokens(of_rounds: np.ndarray, rounds: int, length: int) -> np.ndarray:
    """(B, H, R*T) -> (B, H, R*length)."""
    batch, heads = of_rounds.shape[:2]
    return of_rounds.reshape([batch, heads, rounds, -1])[..., :length].reshape([batch, heads, -1])


def choice(name: str, original: Callable[..., paddle.Tensor], draws: RecordedDraws) -> Callable[..., paddle.Tensor]:
    """Return a module's ``hash_vectors`` that gives R64's buckets."""

    def choose(*args: Any, **kwargs: Any) -> paddle.Tensor:
        return draws.buckets(name, original(*args, **kwargs))

    return choose


def rotations_of(
    layer: LSHSelfAttention, recorded: Mapping[str, np.ndarray], name: str
) -> Callable[[int, paddle.dtype], paddle.Tensor]:
    """Return a ``draw_rotations`` that gives recorded ones."""

    def draw(length: int, dtype: paddle.dtype) -> paddle.Tensor:
        layer.bucket_factors(length)
        return paddle.to_tensor(recorded[f"normal:{name}"]).astype(dtype)

    return draw


def decoding_choice(
    layer: LSHSelfAttention, recorded: Mapping[str, np.ndarray], name: str
) -> Callable[..., paddle.Tensor]:
    """Return a ``hash_vectors`` that gives R64's buckets: of the beginnings, which are padded to whole texts and have a
    mask, and of the positions that are hashed after that, in order."""
    original, count = layer.hash_vectors, 0

    def choose(vectors: paddle.Tensor, rotations: paddle.Tensor, batch: int, mask: Any) -> paddle.Tensor:
        nonlocal count
        own = original(vectors, rotations, batch, mask).numpy()
        rounds = own.reshape([*own.shape[:2], layer.num_hashes, -1])
        start, length = (count, rounds.shape[3]) if mask is None else (0, int(mask[0].sum()))
        count += length if mask is None else 0
        truth = recorded[f"{DECODED_BUCKETS}:{name}"][..., start : start + length]
        is_padded = length < rounds.shape[3]
        rounds[..., :length] = truth + first_of_rounds(layer.num_hashes, layer.config.num_buckets, is_padded)
        return paddle.to_tensor(own)

    return choose


STEP = ReformerStep
