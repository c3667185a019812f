"""Check that an exported model gives the port's logits, within a bound that is measured.

The noise baseline is the float32 error of the port: the port in float32 compared with the port in float64, on the same
texts with the same rotations. The bound is this baseline times the factor that the parity gate allows between port and
reference in float32 (:mod:`toolkit.parity.judge.bounds`).

LSH attention hashes a vector to the nearest of several directions. If the distances of two directions differ by no more
than rounding, float32 may choose either, and both are correct. Such texts are left out while at least half of the texts
remain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from models.operations import randomness
from toolkit.commands.export.graph import INPUTS, OUTPUTS
from toolkit.commands.export.rotations import ConstantGenerator
from toolkit.parity import float32_bounds

#: Rounding may decide between two buckets if the ratio of their gap to the rounding error is at most this.
MAX_GAP_RATIO = 4.0


@dataclass(frozen=True)
class PortLogits:
    """The logits of the port for N texts.

    Attributes:
        float32: logits of each output in float32, (N, ...).
        float64: logits of each output in float64, (N, ...).
        clear: whether rounding cannot decide on a bucket of the text, (N,).
    """

    float32: list[np.ndarray]
    float64: list[np.ndarray]
    clear: np.ndarray

    def divided_by(self, temperature: float) -> PortLogits:
        """Return the logits divided by a temperature; each array keeps its dtype."""
        float32 = [logits / np.float32(temperature) for logits in self.float32]
        return PortLogits(float32, [logits / temperature for logits in self.float64], self.clear)


@dataclass(frozen=True)
class Difference:
    """The difference between the logits of an exported model and of the port, for the output with the largest one.

    Attributes:
        texts: number of texts that were compared.
        left_out: number of texts that were left out, because rounding may decide on an LSH bucket.
        rms: root mean square of the difference.
        rms_bound: upper bound of ``rms``.
        max: largest absolute difference.
        max_bound: upper bound of ``max``.
        logits_rms: root mean square of the port's logits, as the scale.
    """

    texts: int
    left_out: int
    rms: float
    rms_bound: float
    max: float
    max_bound: float
    logits_rms: float

    @property
    def is_within_bounds(self) -> bool:
        """Whether the difference is within its bounds, so that rounding explains it; False for NaN."""
        return self.rms <= self.rms_bound and self.max <= self.max_bound


def compute_port_logits(
    float32_model: Any, float64_model: Any, rotations: Sequence[paddle.Tensor], batches: Sequence[dict[str, np.ndarray]]
) -> PortLogits:
    """Compute the logits of the port in float32 and in float64.

    Args:
        float32_model: port in float32.
        float64_model: port in float64.
        rotations: LSH rotations of all layers.
        batches: int64 arrays (B, T) by input name, for each batch.
    """
    batch_outputs: dict[str, list[list[np.ndarray]]] = {"float32": [], "float64": []}
    clear_texts = []
    for batch in batches:
        projections = {}
        for dtype, model in (("float32", float32_model), ("float64", float64_model)):
            outputs, projections[dtype] = _forward(model, rotations, batch)
            batch_outputs[dtype].append(outputs)
        clear_texts.append(_clear_texts(projections["float32"], projections["float64"], batch["attention_mask"]))
    outputs_by_dtype = {
        dtype: [np.concatenate(arrays) for arrays in zip(*outputs_of_dtype, strict=True)]
        for dtype, outputs_of_dtype in batch_outputs.items()
    }
    return PortLogits(outputs_by_dtype["float32"], outputs_by_dtype["float64"], np.concatenate(clear_texts))


def _forward(
    model: Any, rotations: Sequence[paddle.Tensor], batch: Mapping[str, np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the outputs of a model, and the projections of the vectors on the directions in each LSH layer.

    A projection has the shape (B, H, T, R, half the number of buckets) with R hash rounds.

    Args:
        model: model to run.
        rotations: random directions of each LSH layer.
        batch: tensors of the batch, by name.
    """
    projections: list[np.ndarray] = []
    with paddle.no_grad(), randomness.use_rng(ConstantGenerator(rotations)), _recording_projections(model, projections):
        output = model(**{name: paddle.to_tensor(batch[name]) for name in INPUTS})
    return [getattr(output, name).numpy() for name in OUTPUTS[model.head]], projections


@contextlib.contextmanager
def _recording_projections(model: Any, projections: list[np.ndarray]) -> Iterator[None]:
    """Append the projections of the model's LSH layers to ``projections`` in the ``with`` block."""

    def wrap(layer: Any, original: Any) -> Any:
        def hash_vectors(vectors: paddle.Tensor, rotations: paddle.Tensor, num_texts: int, mask: Any) -> paddle.Tensor:
            heads, size, rounds, half = rotations.shape
            products = paddle.matmul(
                vectors.reshape([num_texts, heads, -1, size]), rotations.reshape([heads, size, -1])
            )
            factors = layer.bucket_factors(vectors.shape[0] // (num_texts * heads))
            rows = products.reshape([num_texts, heads, -1, rounds, half]).numpy()
            stops = np.cumsum([factor // 2 for factor in factors])[:-1]
            projections.extend(np.split(rows, stops, axis=-1))
            return original(vectors, rotations, num_texts, mask)

        return hash_vectors

    layers = [layer for layer in model.sublayers() if hasattr(layer, "hash_vectors")]
    for layer in layers:
        layer.__dict__["hash_vectors"] = wrap(layer, layer.hash_vectors)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["hash_vectors"]


def _clear_texts(
    float32_projections: list[np.ndarray], float64_projections: list[np.ndarray], mask: np.ndarray
) -> np.ndarray:
    """Return whether rounding cannot decide on the nearest direction of any vector of a text, (B,).

    Args:
        float32_projections: projections of each LSH layer in float32.
        float64_projections: projections of each LSH layer in float64.
        mask: attention mask, (B, T).
    """
    is_clear = np.ones(len(mask), bool)
    for float32, float64 in zip(float32_projections, float64_projections, strict=True):
        error = np.abs(float32 - float64).max(axis=(1, 2, 3, 4))  # (B,)
        similarities = np.sort(np.concatenate([float64, -float64], axis=-1), axis=-1)
        gap = np.where(
            mask[:, None, :, None] > 0, similarities[..., -1] - similarities[..., -2], np.inf
        )  # (B, H, T, R)
        is_clear &= gap.min(axis=(1, 2, 3)) > MAX_GAP_RATIO * error
    return is_clear


def compare_logits(port_logits: PortLogits, exported_outputs: Sequence[Sequence[np.ndarray]]) -> Difference:
    """Measure the difference between the exported model and the port.

    Args:
        port_logits: logits of the port.
        exported_outputs: outputs of the exported model for each batch, in the order of
            :data:`toolkit.commands.export.graph.OUTPUTS`.
    """
    exported_logits = [np.concatenate(arrays) for arrays in zip(*exported_outputs, strict=True)]
    keep_mask = (
        port_logits.clear if 2 * port_logits.clear.sum() >= len(port_logits.clear) else np.ones_like(port_logits.clear)
    )
    differences = [
        _compare_output(float32[keep_mask].astype(np.float64), float64[keep_mask], output[keep_mask].astype(np.float64))
        for float32, float64, output in zip(port_logits.float32, port_logits.float64, exported_logits, strict=True)
    ]
    largest = max(differences, key=lambda difference: _bound_ratio(difference["max"], difference["max_bound"]))
    return Difference(texts=int(keep_mask.sum()), left_out=int((~keep_mask).sum()), **largest)


def _compare_output(float32: np.ndarray, float64: np.ndarray, exported_logits: np.ndarray) -> dict[str, float]:
    """Return the RMS and maximum difference between exported and own float32 logits, with the bound of each.

    Args:
        float32: logits of the port in float32.
        float64: logits of the port in float64, whose difference from float32 determines the bounds.
        exported_logits: logits of the exported model.
    """
    (rms, max_difference), scale = _rms_and_max(exported_logits - float32), _rms_and_max(float64)
    rms_bound, max_bound = float32_bounds(_rms_and_max(float32 - float64), scale)
    return {"rms": rms, "rms_bound": rms_bound, "max": max_difference, "max_bound": max_bound, "logits_rms": scale[0]}


def _rms_and_max(values: np.ndarray) -> tuple[float, float]:
    """Return the root mean square and the largest magnitude."""
    return float(np.sqrt(np.mean(values**2))), float(np.abs(values).max())


def _bound_ratio(value: float, bound: float) -> float:
    """Return an error divided by its bound.

    The result is infinity for an error of NaN. For a bound of 0 it is 1 if there is an error, otherwise 0.
    """
    return float("inf") if np.isnan(value) else value / bound if bound else float(value > 0)
