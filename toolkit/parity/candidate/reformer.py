"""What Reformer's port needs beside what every model does: its buckets, its two streams, its reversible backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import paddle
from paddle import nn

from models.reformer import reversible
from models.reformer.attention import LSHSelfAttention
from models.reformer.config import ReformerConfig
from models.reformer.modeling import ReformerLayer
from toolkit.parity.candidate.places import place_of_code
from toolkit.parity.candidate.step import PLAIN, Step
from toolkit.parity.job.results import CandidateFacts, Flips, Place


class ReformerStep(Step):
    """A step of Reformer.

    Attributes:
        flips: module -> how its buckets differ from R64's in the last run.
    """

    backwards = ("reversible", PLAIN)
    embedded = "reformer.embeddings"

    def build(self, kind: type, keys: Mapping[str, Any], backward: str) -> nn.Layer:
        self.flips: dict[str, Flips] = {}
        return kind(ReformerConfig(backward=backward, **keys))

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        if not isinstance(layer, ReformerLayer):
            return None
        return {f"stream:{name}#attention": output[0].value, f"stream:{name}#hidden": output[1].value}

    def places(self) -> dict[str, Place]:
        return {
            **super().places(),
            "recomputed": place_of_code("the reversible layers' backward", reversible._Run.backward),
            "plain": place_of_code("the layers under plain autograd", reversible.run_traced),
        }

    def facts(self) -> CandidateFacts:
        num_buckets = self.model.config.num_buckets
        return replace(super().facts(), num_buckets=num_buckets, bucket_flips=self.flips)

    @contextlib.contextmanager
    def given_choices(self) -> Iterator[None]:
        self.flips = {}
        layers = [(n, x) for n, x in self.model.named_sublayers() if isinstance(x, LSHSelfAttention)]
        for name, layer in layers:
            layer.__dict__["hash_vectors"] = self._choice(name, layer.hash_vectors)
        try:
            yield
        finally:
            for _, layer in layers:
                del layer.__dict__["hash_vectors"]

    def _choice(self, name: str, original: Callable[..., paddle.Tensor]) -> Callable[..., paddle.Tensor]:
        def choose(*args: Any, **kwargs: Any) -> paddle.Tensor:
            own = original(*args, **kwargs)
            truth = self.draws_by_name.get(f"buckets:{name}")
            if truth is None or list(truth.shape) != own.shape:
                self.flips[name] = Flips(shape=own.shape)
                return own
            flipped = own.numpy() != truth
            margins = self.draws_by_name[f"margin:{name}"][flipped]
            largest = float(margins.max(initial=0.0))
            self.flips[name] = Flips(int(flipped.sum()), int(flipped.size), largest)
            return paddle.to_tensor(truth.astype("int64"))

        return choose


STEP = ReformerStep
