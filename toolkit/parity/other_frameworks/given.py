"""The tensors that a port in any framework has computed, compared with a recorded reference.

A folder holds ``float64`` and ``float32``, or one of them, as ``.npz`` or ``.safetensors``: name -> tensor. The names,
shapes and order are those of the bundle's ``reference/float64.safetensors`` and ``reference/order.json``. A port may
give some of them, such as the logits alone; what it leaves out is counted in a note.
"""

from __future__ import annotations

import contextlib
import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from models.files.plain import plain_file
from toolkit.errors import UserError
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
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.other_frameworks.tensor_reader import TensorReader, open_npz, open_safetensors

#: Kinds of choices that the reference's own runs are given, and a port in another framework makes itself.
CHOICES = ("relu", "choice", "buckets")
#: Kinds of tensors that a message lists: the results of a forward.
OWN = ("logits", "loss", "losses", "output")
#: Maximum number of names that a message lists, and of characters that it quotes from a file.
MAX_NAMES, MAX_CHARACTERS = 12, 200
#: The dtypes of files, and how these may end.
DTYPES, ENDINGS = ("float64", "float32"), (".safetensors", ".npz")


def read_outputs(folder: Path, recording: Recording, port: Path) -> dict[str, dict[str, TensorStats]]:
    """Return dtype -> name -> the difference of a port's tensor from R64.

    Shape and dtype of a tensor are compared before its values are read: a small file can claim to hold terabytes.

    Args:
        folder: with the port's tensors.
        port: what messages name: the folder, or the file that was run for it.

    Raises:
        UserError: the folder has no such file, a file is damaged, or a tensor has a wrong dtype or an unknown name.
    """
    errors: dict[str, dict[str, TensorStats]] = {}
    truth = TensorFile(recording.folder / "reference" / "float64.safetensors")
    for dtype, path in files_of(folder).items():
        place = str(path if port == folder else port)
        if dtype not in recording.request.dtypes:
            have = " and ".join(recording.request.dtypes)
            raise UserError(f"{place}: the bundle {recording.folder} has {have} alone; record it with --dtype both")
        errors[dtype] = {}
        with _open_tensors(path, place) as tensors:
            for name in tensors:
                if name not in truth:
                    raise UserError(
                        f"{place}: the reference has no {_cut(name)}{_describe_known_names(name, truth, recording)}"
                    )
                saved_dtype, shape = tensors.header(name)
                if saved_dtype != dtype:
                    raise UserError(f"{place}: {name} is {_cut(saved_dtype)}; compute and save it in {dtype}")
                same = list(shape) == list(truth.shape(name))
                errors[dtype][name] = (
                    error_stats.measure_error(tensors.read(name), truth[name]) if same else TensorStats(list(shape))
                )
        if not errors[dtype]:
            raise UserError(f"{place}: holds no tensor")
    return errors


def _describe_known_names(name: str, truth: TensorFile, recording: Recording) -> str:
    """Return the end of a message about a name that the reference lacks: the reason and the known names."""
    pair, reason = recording.request.pair, ""
    if name == "logits" and pair is not None:
        reason = "its loss(model, batch) does not call the model once" if pair.has_loss else "its forward returns none"
        reason = f", since {reason}"
    own = [known_name for known_name in truth if TensorName.parse(known_name).kind in OWN]
    close = difflib.get_close_matches(name, truth, 3, 0.7)
    names = list(dict.fromkeys([*close, *own]))
    name_list = (
        f"{', '.join(names[:MAX_NAMES])}{', ...' if len(truth) > MAX_NAMES else ''} ({len(truth)} names in order.json)"
    )
    return f"{reason}; it has {name_list}"


def _cut(text: str) -> str:
    """Return a text of a file, in one line, no longer than a message needs."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def files_of(folder: Path) -> dict[str, Path]:
    """Return dtype -> file of a folder.

    Raises:
        UserError: there is none, or two are of one dtype.
    """
    paths: dict[str, Path] = {}
    for dtype in DTYPES:
        there = [path for ending in ENDINGS if (path := folder / f"{dtype}{ending}").exists()]
        if len(there) > 1:
            raise UserError(f"{folder}: holds {there[0].name} and {there[1].name}; remove one of them")
        paths.update((dtype, path) for path in there)
    if not paths:
        names = " or ".join(f"{dtype}{ending}" for dtype in DTYPES for ending in ENDINGS)
        raise UserError(f"{folder}: holds no tensors of a port; save them as {names}")
    return paths


@contextlib.contextmanager
def _open_tensors(path: Path, place: str) -> Iterator[TensorReader]:
    """Open a file of tensors for the ``with`` block. Any error in the block becomes a UserError of one line."""
    try:
        plain_file(path)
        with open_npz(path) if path.suffix == ".npz" else open_safetensors(path) as tensors:
            yield tensors
    except UserError:
        raise
    except Exception as error:  # NumPy, zipfile, ast and safetensors raise a dozen kinds of errors
        reason = str(error).removeprefix(f"{path} ") or type(error).__name__
        raise UserError(f"{place}: cannot be read: {_cut(reason)}; save it again") from None


def compared(
    recording: Recording, errors: Mapping[str, Mapping[str, TensorStats]], versions: Mapping[str, str]
) -> tuple[ReferenceResult, CandidateResult]:
    """Return the measurements of a port, and the reference's results for the tensors that the port gave.

    Args:
        errors: of :func:`read_outputs`.
        versions: of the port's framework, if it is known.
    """
    reference = read_reference(recording.folder)
    names = {name for tensors in errors.values() for name in tensors}
    missing = Counter(_kind(name) for name in reference.tensors if name not in names)
    notes = list(reference.notes)
    if missing:
        left_out = ", ".join(f"{count} of {kind}" for kind, count in missing.items())
        notes.append(Note("outputs-left-out", {"given": len(names), "of": len(reference.tensors), "what": left_out}))
    if "float64" not in errors:
        notes.append(Note("outputs-rounded"))
    draws = TensorFile(recording.folder / "reference" / f"draws-{TRAINING}.safetensors")
    if any(TensorName.parse(name).kind in CHOICES for name in draws):
        notes.append(Note("outputs-choices"))
    dtypes = {
        dtype: CandidateDtype(
            tensors=dict(tensors),
            parameter_errors=dict.fromkeys(reference.parameters, 0.0),  # the port was given them
            facts=CandidateFacts(num_buckets=reference.facts.num_buckets),
        )
        for dtype, tensors in errors.items()
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
