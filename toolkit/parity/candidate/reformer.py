"""What Reformer's port needs beside what every model does: its buckets, its two streams, its reversible backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from models.reformer.attention import LSHSelfAttention
from models.reformer.config import ReformerConfig
from models.reformer.modeling import ReformerLayer
from toolkit.parity.candidate.step import Step


class ReformerStep(Step):
    """A step of Reformer.

    Attributes:
        flips: module -> how its buckets differ from R64's in the last run.
    """

    backwards = ("reversible", "autograd")
    embedded = "reformer.embeddings"

    def build(self, kind: type, keys: dict, backward: str):
        self.flips: dict[str, dict] = {}
        return kind(ReformerConfig(backward=backward, **keys))

    def outputs_of(self, name: str, layer, output) -> dict[str, object] | None:
        if not isinstance(layer, ReformerLayer):
            return None
        return {f"stream:{name}#attention": output[0].value, f"stream:{name}#hidden": output[1].value}

    def facts(self) -> dict:
        return {**super().facts(), "num_buckets": self.model.config.num_buckets, "flips": self.flips}

    @contextlib.contextmanager
    def given_choices(self) -> Iterator[None]:
        self.flips = {}
        layers = [(n, x) for n, x in self.model.named_sublayers() if isinstance(x, LSHSelfAttention)]
        for name, layer in layers:
            layer.hash_vectors = self._choice(name, layer.hash_vectors)
        try:
            yield
        finally:
            for _, layer in layers:
                del layer.hash_vectors

    def _choice(self, name: str, original):
        def choose(*args, **kwargs):
            import paddle

            own = original(*args, **kwargs)
            truth = self.draws_by_name.get(f"buckets:{name}")
            if truth is None or list(truth.shape) != own.shape:
                self.flips[name] = {"shape": own.shape}
                return own
            flipped = own.numpy() != truth
            margins = self.draws_by_name[f"margin:{name}"][flipped]
            self.flips[name] = {
                "count": int(flipped.sum()),
                "of": int(flipped.size),
                "largest_margin": float(margins.max(initial=0.0)),
            }
            return paddle.to_tensor(truth.astype("int64"))

        return choose


STEP = ReformerStep
