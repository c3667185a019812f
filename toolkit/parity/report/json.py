"""``parity.json``: the outcome of a gate for programs. The page and the JUnit file are created only from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.parity.exchange.records import as_json
from toolkit.parity.exchange.results import ReferenceResult
from toolkit.parity.judge import notes
from toolkit.parity.judge.bounds import Comparison, is_measured, largest_noise
from toolkit.parity.measure.evaluation import name_in_step
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.report.depth import depth_rows
from toolkit.parity.report.report import Report

#: 4: ``training``. 3: a note has a kind, data and text; ``trace`` is null or has all its keys; ``generators`` separates
#: masks and rotations. 2: each tensor has ``kind``, ``rms`` and ``noise``.
REPORT_SCHEMA = 4
#: Numbers of a tensor, null if not finite.
FIGURES = ("error", "error_max", "bound", "bound_max", "relative", "rms", "margin")


def as_content(report: Report) -> dict[str, Any]:
    """Return the content of ``parity.json``, in the schema :data:`REPORT_SCHEMA`.

    ``tensors`` has a record for each tensor and dtype, float64 first, in the order of the reference's computation, and
    gradients in the order of the parameters. A record has the fields of
    :class:`toolkit.parity.judge.bounds.Comparison`, ``passed``, ``margin``, and

    - ``kind``: output, stream, gradient, logits, loss, ...;
    - ``rms``: RMS of R64;
    - ``noise``: err(R32), the largest RMS error of the reference's float32 runs, in records of all dtypes; null if an
      error is not finite;
    - ``noise_bfloat16``: only in bfloat16 records, the largest RMS error of the reference's bfloat16 runs.

    ``culprit`` is the finding nearest to the cause, with the report's ``place`` and ``headline``. If the trace has
    found an operation that is wrong in isolation, they describe this operation.
    """
    verdict, reference, candidate = report.verdict, report.reference, report.candidate
    sides = {"reference": reference.execution, "candidate": candidate.execution}
    return {
        "schema": REPORT_SCHEMA,
        "passed": report.passed,
        "exit_status": report.exit_status,
        "summary": report.summary(),
        "culprit": None if report.culprit is None else {**vars(report.culprit), **_headline_record(report)},
        "model": report.request.model,
        "head": report.request.head,
        "checkpoint": report.request.origin,
        "config": dict(report.request.config),
        "device": report.request.device,
        "dtypes": list(report.request.dtypes),
        "seed": report.request.seed,
        "randomized_parameters": report.randomized,
        "findings": as_json(verdict.findings),
        "accepted": as_json(verdict.accepted),
        "set_aside": as_json(verdict.set_aside),
        "reference_faults": as_json(verdict.reference_faults),
        "notes": [notes.as_content(note) for note in verdict.notes],
        "attribution": as_json(report.attribution),
        "trace": as_json(report.trace),
        "training": as_json(report.training),
        "depth": depth_rows(report.request.model, reference, candidate),
        "tensors": [_tensor_record(comparison, reference) for comparison in verdict.comparisons],
        "recomputed": {dtype: _relative_errors(verdict.recomputed, dtype) for dtype in candidate.dtypes},
        "reference_own_backward": reference.own_backward,
        "generators": as_json(candidate.generators),
        "new_weights": as_json(candidate.new_weights),
        "judged": as_json(candidate.judged),
        "not_compared": reference.buffers,
        "texts_tokenized": len(reference.tokens or []),
        "versions": {side: execution.versions for side, execution in sides.items()},
        "flags": candidate.execution.flags,
        "seconds": {"gate": report.seconds, **{side: execution.seconds for side, execution in sides.items()}},
        "peak_bytes": {side: execution.peak_bytes for side, execution in sides.items()},
        "hashes": dict(report.hashes),
        "cached": report.cached,
    }


def with_infinities(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a ``parity.json`` with infinity instead of null, which means not finite."""
    trace = content["trace"]
    return {
        **content,
        "tensors": [{**tensor, **{key: _as_float(tensor[key]) for key in FIGURES}} for tensor in content["tensors"]],
        **{key: _as_floats(content[key]) for key in ("recomputed", "reference_own_backward")},
        "trace": trace and {**trace, "worst": _as_float(trace["worst"])},
    }


def _as_floats(by_dtype: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    """Return numbers by dtype and name, with infinity for None."""
    return {dtype: {name: _as_float(value) for name, value in numbers.items()} for dtype, numbers in by_dtype.items()}


def _as_float(value: float | None) -> float:
    """Return a number, with infinity for None."""
    return math.inf if value is None else value


def _headline_record(report: Report) -> dict[str, str]:
    """Return the place and the message of the report's headline as keys of ``parity.json``."""
    place, message = report.headline()
    return {"place": place, "headline": message}


def _relative_errors(comparisons: Sequence[Comparison], dtype: str) -> dict[str, float]:
    """Return the relative errors of the tensors of a dtype, by name."""
    return {comparison.name: comparison.relative for comparison in comparisons if comparison.dtype == dtype}


def _tensor_record(comparison: Comparison, reference: ReferenceResult) -> dict[str, Any]:
    """Return the keys of ``parity.json`` about one tensor in one dtype.

    Args:
        comparison: comparison of the tensor with R64.
        reference: results of the reference.
    """
    theirs = reference.tensors[name_in_step(comparison.name)]
    name = TensorName.parse(comparison.name)
    return {
        **vars(comparison),
        "kind": "updated loss" if name.kind == "loss" and name.is_of_training else name.kind,
        "rms": theirs.rms,
        "noise": largest_noise(theirs, "float32") if is_measured(theirs, "float32") else None,
        **({"noise_bfloat16": largest_noise(theirs, "bfloat16")} if comparison.dtype == "bfloat16" else {}),
        "passed": comparison.passed,
        "margin": comparison.margin,
    }
