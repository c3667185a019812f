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
from models.reformer.modeling import ReformerLayer
from toolkit.parity.candidate.places import place_of_code
from toolkit.parity.candidate.ported import PortedStep
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import PLAIN, Measure
from toolkit.parity.families.reformer.evaluated import NARROWED_HEADS, unit
from toolkit.parity.job.results import CandidateFacts, Place
from toolkit.parity.measure.evaluation import NARROWED
from toolkit.parity.measure.naming import TensorName


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

    def run(self, measure: Measure, watched: bool = True) -> None:
        with remembered_streams() if self.remembers else contextlib.nullcontext():
            super().run(measure, watched)

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        if not isinstance(layer, ReformerLayer):
            return None
        return {f"stream:{name}#attention": output[0].value, f"stream:{name}#hidden": output[1].value}

    def places(self) -> dict[str, Place]:
        return {
            **super().places(),
            NARROWED: place_of_code("ReformerLayer.forward", ReformerLayer.forward),
            "recomputed": place_of_code("the reversible layers' backward", reversible._Run.backward),
            "plain": place_of_code("the layers under plain autograd", reversible.run_traced),
        }

    def evaluated_unit(self) -> int:
        return unit(self.config)

    def facts(self) -> CandidateFacts:
        return replace(super().facts(), num_buckets=self.model.config.num_buckets)

    def recorded_of(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        recorded, rounds = self.recorded[run], self.model.config.num_hashes
        by_token = [name for name in recorded if TensorName.parse(name).kind in ("buckets", "margin")]
        cut = {name: first_tokens(recorded[name][rows], rounds, length) for name in by_token}
        return ChainMap(cut, cast(dict[str, np.ndarray], recorded))  # read only as it is asked for

    @contextlib.contextmanager
    def given_choices(self, draws: RecordedDraws) -> Iterator[None]:
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


STEP = ReformerStep
