"""Check that an exported model gives the port's logits, within a measured bound, never a fixed number.

The noise baseline is the port's own float32 error: the port in float32 against the port in float64, on the same texts
with the same rotations. The exported model may differ from the port by the multiple of it that the parity gate allows
between port and reference in float32 (:mod:`toolkit.parity.judge.bounds`).

LSH attention hashes a vector to the nearest of some directions. Where two are equally near but for rounding, float32
may choose either, and both are right. Such texts are left out while at least half of the texts remain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from models.operations import randomness
from toolkit.commands.export.graph import INPUTS, OUTPUTS
from toolkit.commands.export.rotations import Constant
from toolkit.parity import float32_bounds

#: Rounding decides between two buckets if their gap is at most this many times the rounding error.
NEAR = 4.0


@dataclass(frozen=True)
class PortLogits:
    """The port's own logits.

    Attributes:
        float32, float64: [texts, ...] for each output.
        clear: [texts], False where rounding decides on a bucket.
    """

    float32: list[np.ndarray]
    float64: list[np.ndarray]
    clear: np.ndarray

    def divided_by(self, temperature: float) -> PortLogits:
        """Return the logits divided by a temperature, each in its own precision."""
        narrow = [one / np.float32(temperature) for one in self.float32]
        return PortLogits(narrow, [one / temperature for one in self.float64], self.clear)


@dataclass(frozen=True)
class Difference:
    """Difference between an exported model and the port: of the worst output, over all its logits.

    Attributes:
        texts: number compared.
        left_out: number where rounding decides on an LSH bucket.
        rms, max: of the difference.
        rms_bound, max_bound: their upper bounds.
        logits_rms: of the port's logits, for the scale.
    """

    texts: int
    left_out: int
    rms: float
    rms_bound: float
    max: float
    max_bound: float
    logits_rms: float

    @property
    def within(self) -> bool:
        """Whether it is rounding only; NaN is not."""
        return self.rms <= self.rms_bound and self.max <= self.max_bound


def port_logits(
    narrow: Any, wide: Any, rotations: Sequence[paddle.Tensor], batches: Sequence[dict[str, np.ndarray]]
) -> PortLogits:
    """Compute the port's logits in float32 (``narrow``) and in float64 (``wide``)."""
    collected: dict[str, list[list[np.ndarray]]] = {"float32": [], "float64": []}
    clear = []
    for batch in batches:
        hashed = {}
        for dtype, model in (("float32", narrow), ("float64", wide)):
            outputs, hashed[dtype] = _forward(model, rotations, batch)
            collected[dtype].append(outputs)
        clear.append(_clear(hashed["float32"], hashed["float64"], batch["attention_mask"]))
    joined = {
        dtype: [np.concatenate(parts) for parts in zip(*found, strict=True)] for dtype, found in collected.items()
    }
    return PortLogits(joined["float32"], joined["float64"], np.concatenate(clear))


def _forward(
    model: Any, rotations: Sequence[paddle.Tensor], batch: dict[str, np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the outputs, and per LSH layer the vectors' projections on directions: (B, H, T, R, half the buckets)."""
    near: list[np.ndarray] = []
    with paddle.no_grad(), randomness.use(Constant(rotations)), _hashing(model, near):
        output = model(**{name: paddle.to_tensor(batch[name]) for name in INPUTS})
    return [getattr(output, name).numpy() for name in OUTPUTS[model.head]], near


@contextlib.contextmanager
def _hashing(model: Any, near: list[np.ndarray]) -> Iterator[None]:
    """Record the model's projections inside the ``with`` block."""

    def noting(layer: Any, original: Any) -> Any:
        def hash_vectors(vectors: paddle.Tensor, rotations: paddle.Tensor, batch: int, mask: Any) -> paddle.Tensor:
            heads, size, rounds, half = rotations.shape
            rotated = paddle.matmul(vectors.reshape([batch, heads, -1, size]), rotations.reshape([heads, size, -1]))
            factors = layer.bucket_factors(vectors.shape[0] // (batch * heads))
            rows = rotated.reshape([batch, heads, -1, rounds, half]).numpy()
            stops = np.cumsum([factor // 2 for factor in factors])[:-1]
            near.extend(np.split(rows, stops, axis=-1))
            return original(vectors, rotations, batch, mask)

        return hash_vectors

    layers = [layer for layer in model.sublayers() if hasattr(layer, "hash_vectors")]
    for layer in layers:
        layer.__dict__["hash_vectors"] = noting(layer, layer.hash_vectors)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["hash_vectors"]


def _clear(narrow: list[np.ndarray], wide: list[np.ndarray], mask: np.ndarray) -> np.ndarray:
    """Return [B], False for a text if rounding decides on the nearest direction of a vector."""
    clear = np.ones(len(mask), bool)
    for ours, exact in zip(narrow, wide, strict=True):
        moved = np.abs(ours - exact).max(axis=(1, 2, 3, 4))  # (B,)
        both = np.sort(np.concatenate([exact, -exact], axis=-1), axis=-1)
        gap = np.where(mask[:, None, :, None] > 0, both[..., -1] - both[..., -2], np.inf)  # (B, H, T, R)
        clear &= gap.min(axis=(1, 2, 3)) > NEAR * moved
    return clear


def compare(port: PortLogits, exported: Sequence[Sequence[np.ndarray]]) -> Difference:
    """Measure how far the exported model is from the port. ``exported`` holds its outputs, batch by batch, in the order
    of :data:`toolkit.commands.export.graph.OUTPUTS`."""
    theirs = [np.concatenate(parts) for parts in zip(*exported, strict=True)]
    kept = port.clear if 2 * port.clear.sum() >= len(port.clear) else np.ones_like(port.clear)
    found = [
        _one(ours[kept].astype(np.float64), exact[kept], other[kept].astype(np.float64))
        for ours, exact, other in zip(port.float32, port.float64, theirs, strict=True)
    ]
    worst = max(found, key=lambda one: _ratio(one["max"], one["max_bound"]))
    return Difference(texts=int(kept.sum()), left_out=int((~kept).sum()), **worst)


def _one(ours: np.ndarray, exact: np.ndarray, other: np.ndarray) -> dict[str, float]:
    (rms, largest), scale = _sizes(other - ours), _sizes(exact)
    rms_bound, max_bound = float32_bounds(_sizes(ours - exact), scale)
    return {"rms": rms, "rms_bound": rms_bound, "max": largest, "max_bound": max_bound, "logits_rms": scale[0]}


def _sizes(values: np.ndarray) -> tuple[float, float]:
    """RMS and largest magnitude."""
    return float(np.sqrt(np.mean(values**2))), float(np.abs(values).max())


def _ratio(value: float, bound: float) -> float:
    return float("inf") if np.isnan(value) else value / bound if bound else float(value > 0)
