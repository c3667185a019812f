"""The tensors that a port in any framework has computed, compared with a recorded reference.

A folder holds ``float64`` and ``float32``, or one of them, as ``.npz`` or ``.safetensors``: name -> tensor. The names,
shapes and order are those of the bundle's ``reference/float64.safetensors`` and ``reference/order.json``. A port may
give some of them, such as the logits alone; what it leaves out is counted in a note.
"""

from __future__ import annotations

import difflib
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from models.files.plain import plain_file
from toolkit.errors import UserError
from toolkit.parity.job import files
from toolkit.parity.job.bundle import Recording
from toolkit.parity.job.results import (
    CandidateDtype,
    CandidateFacts,
    CandidateResult,
    Execution,
    Note,
    ReferenceResult,
    read_reference,
)
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.naming import TensorName

#: Kinds of choices that the reference's own runs are given, and a port in another framework makes itself.
CHOICES = ("relu", "choice", "buckets")
#: The dtypes of files, and how these may end.
DTYPES, ENDINGS = ("float64", "float32"), (".safetensors", ".npz")


def read_outputs(folder: Path, recording: Recording) -> dict[str, Mapping[str, np.ndarray]]:
    """Return dtype -> name -> tensor, checked to be of that dtype and of names that the reference has.

    Raises:
        UserError: there is no such file, one is damaged, or a tensor is of another dtype or has an unknown name.
    """
    given: dict[str, Mapping[str, np.ndarray]] = {}
    known = TensorFile(recording.folder / "reference" / "float64.safetensors").header
    for dtype, path in files_of(folder).items():
        if dtype not in recording.asked.dtypes:
            have = " and ".join(recording.asked.dtypes)
            raise UserError(f"{path}: the bundle {recording.folder} has {have} alone; record it with --dtype both")
        given[dtype] = tensors = _read(path)
        for name, value in tensors.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, 3) or list(known)[:3]
                raise UserError(f"{path}: the reference has no {name}; it has {', '.join(close)}, ... ({len(known)})")
            if value.dtype != dtype:
                raise UserError(f"{path}: {name} is {value.dtype}; compute and save it in {dtype}")
    return given


def files_of(folder: Path) -> dict[str, Path]:
    """Return dtype -> file of a folder.

    Raises:
        UserError: there is none, or two are of one dtype.
    """
    found: dict[str, Path] = {}
    for dtype in DTYPES:
        there = [path for ending in ENDINGS if (path := folder / f"{dtype}{ending}").exists()]
        if len(there) > 1:
            raise UserError(f"{folder}: holds {there[0].name} and {there[1].name}; remove one of them")
        found.update((dtype, path) for path in there)
    if not found:
        names = " or ".join(f"{dtype}{ending}" for dtype in DTYPES for ending in ENDINGS)
        raise UserError(f"{folder}: holds no tensors of a port; save them as {names}")
    return found


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        if path.suffix == ".npz":
            with np.load(plain_file(path), allow_pickle=False) as found:
                tensors = dict(found)
        else:
            tensors = files.read_tensors(plain_file(path))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, SafetensorError) as problem:
        raise UserError(f"{path}: cannot be read: {' '.join(str(problem).split())}") from None
    if not tensors:
        raise UserError(f"{path}: holds no tensor")
    return tensors


def compared(
    recording: Recording, outputs: Mapping[str, Mapping[str, np.ndarray]], versions: Mapping[str, str]
) -> tuple[ReferenceResult, CandidateResult]:
    """Measure what a port gave, and leave of the reference what it gave.

    Args:
        outputs: of :func:`read_outputs`.
        versions: of the port's framework, if it is known.
    """
    reference = read_reference(recording.folder)
    truth = TensorFile(recording.folder / "reference" / "float64.safetensors")
    names = {name for tensors in outputs.values() for name in tensors}
    missing = Counter(_kind(name) for name in reference.tensors if name not in names)
    notes = list(reference.notes)
    if missing:
        left_out = ", ".join(f"{count} of {kind}" for kind, count in missing.items())
        notes.append(Note("outputs-left-out", {"given": len(names), "of": len(reference.tensors), "what": left_out}))
    if "float64" not in outputs:
        notes.append(Note("outputs-rounded"))
    draws = TensorFile(recording.folder / "reference" / f"draws-{TRAINING}.safetensors")
    if any(TensorName.parse(name).kind in CHOICES for name in draws):
        notes.append(Note("outputs-choices"))
    dtypes = {
        dtype: CandidateDtype(
            tensors={name: error_stats.difference(value, truth[name]) for name, value in tensors.items()},
            parameter_errors=dict.fromkeys(reference.parameters, 0.0),  # the port was given them
            facts=CandidateFacts(num_buckets=reference.facts.num_buckets),
        )
        for dtype, tensors in outputs.items()
    }
    kept = {name: record for name, record in reference.tensors.items() if name in names}
    return (
        replace(reference, tensors=kept, notes=notes, tokens=None),
        CandidateResult(dtypes=dtypes, execution=Execution(versions=dict(versions))),
    )


def _kind(name: str) -> str:
    """What a tensor is, in a word for a note: its evaluation, or its kind."""
    parsed = TensorName.parse(name)
    return parsed.evaluation or parsed.kind
