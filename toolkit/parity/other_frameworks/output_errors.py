"""Comparison of the tensors that a port in any framework has computed with a recorded reference.

A folder holds ``float64`` and ``float32``, or one of them, as ``.npz`` or ``.safetensors`` with tensors by name. The
names and shapes are the same as in the bundle's ``reference/float64.safetensors``, and ``reference/order.json`` has
their order. A port may save only some of them, such as the logits. A note counts the tensors that it leaves out.
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
from toolkit.parity.bundle.bundle import Recording
from toolkit.parity.exchange.results import (
    CandidateDtype,
    CandidateFacts,
    CandidateResult,
    Execution,
    Note,
    ReferenceResult,
    read_reference,
)
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.other_frameworks.tensor_reader import TensorReader, open_npz, open_safetensors

#: Kinds of choices that the reference's runs replay, but a port in another framework makes itself.
CHOICES = ("relu", "choice", "buckets")
#: Kinds of tensors that a forward returns, which a message lists.
FORWARD_KINDS = ("logits", "loss", "losses", "output")
#: Maximum number of names that a message lists, and of characters that it quotes from a file.
MAX_NAMES, MAX_CHARACTERS = 12, 200
#: Maximum number of dimensions of a tensor, which messages and reports list.
MAX_DIMENSIONS = 32
#: Stems and suffixes of the names of a port's files.
DTYPES, SUFFIXES = ("float64", "float32"), (".safetensors", ".npz")


def read_outputs(folder: Path, recording: Recording, port_path: Path) -> dict[str, dict[str, TensorStats]]:
    """Return the differences of a port's tensors from R64, by dtype and name.

    Shape and dtype of a tensor are compared before its values are read: a small file can claim to hold terabytes.

    Args:
        folder: folder of the port's tensors.
        recording: recorded reference.
        port_path: the port in messages: the folder, or the file that computed the tensors.

    Raises:
        UserError: the folder has no such file, a file is damaged, or a tensor has a wrong dtype or an unknown name.
    """
    errors: dict[str, dict[str, TensorStats]] = {}
    truth = TensorFile(recording.folder / "reference" / "float64.safetensors")
    for dtype, path in find_tensor_files(folder).items():
        source = str(path if port_path == folder else port_path)
        if dtype not in recording.request.dtypes:
            recorded_dtypes = " and ".join(recording.request.dtypes)
            raise UserError(
                f"{source}: the bundle {recording.folder} has {recorded_dtypes} alone; record it with --dtype both"
            )
        errors[dtype] = {}
        with _open_tensors(path, source) as tensors:
            for name in tensors:
                if name not in truth:
                    known_names = _describe_known_names(name, truth, recording)
                    raise UserError(f"{source}: the reference has no {_shorten_text(name)}{known_names}")
                saved_dtype, shape = tensors.header(name)
                if saved_dtype != dtype:
                    raise UserError(f"{source}: {name} is {_shorten_text(saved_dtype)}; compute and save it in {dtype}")
                if len(shape) > MAX_DIMENSIONS:
                    raise UserError(f"{source}: {name} has {len(shape)} dimensions; {MAX_DIMENSIONS} are the most")
                has_same_shape = list(shape) == list(truth.shape(name))
                errors[dtype][name] = (
                    error_stats.measure_error(tensors.read(name), truth[name])
                    if has_same_shape
                    else TensorStats(list(shape))
                )
        if not errors[dtype]:
            raise UserError(f"{source}: holds no tensor")
    return errors


def _describe_known_names(name: str, truth_file: TensorFile, recording: Recording) -> str:
    """Return the end of a message about a name that the reference lacks: the reason and the known names.

    Args:
        name: name of the port's tensor.
        truth_file: R64's tensors.
        recording: recorded reference.
    """
    pair, reason = recording.request.pair, ""
    if name == "logits" and pair is not None:
        reason = "its loss(model, batch) does not call the model once" if pair.has_loss else "its forward returns none"
        reason = f", since {reason}"
    forward_names = [known_name for known_name in truth_file if TensorName.parse(known_name).kind in FORWARD_KINDS]
    similar_names = difflib.get_close_matches(name, truth_file, 3, 0.7)
    names = list(dict.fromkeys([*similar_names, *forward_names]))
    ellipsis = ", ..." if len(truth_file) > MAX_NAMES else ""
    name_list = f"{', '.join(names[:MAX_NAMES])}{ellipsis} ({len(truth_file)} names in order.json)"
    return f"{reason}; it has {name_list}"


def _shorten_text(text: str) -> str:
    """Return a text from a port's file in one line, cut after :data:`MAX_CHARACTERS` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def find_tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of a port's tensors in each dtype, by the dtype.

    Args:
        folder: folder of the port's tensors.

    Raises:
        UserError: there are no such files, or a dtype has two files.
    """
    paths: dict[str, Path] = {}
    for dtype in DTYPES:
        dtype_paths = [path for suffix in SUFFIXES if (path := folder / f"{dtype}{suffix}").exists()]
        if len(dtype_paths) > 1:
            raise UserError(f"{folder}: holds {dtype_paths[0].name} and {dtype_paths[1].name}; remove one of them")
        paths.update((dtype, path) for path in dtype_paths)
    if not paths:
        names = " or ".join(f"{dtype}{suffix}" for dtype in DTYPES for suffix in SUFFIXES)
        raise UserError(f"{folder}: holds no tensors of a port; save them as {names}")
    return paths


@contextlib.contextmanager
def _open_tensors(path: Path, source: str) -> Iterator[TensorReader]:
    """Inside the ``with`` block, open a file of tensors, and turn any error into a UserError of one line.

    Args:
        path: the file, with the suffix ``.npz`` or ``.safetensors``.
        source: name of the file in messages.
    """
    try:
        plain_file(path)
        with open_npz(path) if path.suffix == ".npz" else open_safetensors(path) as tensors:
            yield tensors
    except UserError:
        raise
    except Exception as error:  # NumPy, zipfile, ast and safetensors raise a dozen kinds of errors
        reason = str(error).removeprefix(f"{path} ") or type(error).__name__
        raise UserError(f"{source}: cannot be read: {_shorten_text(reason)}; save it again") from None


def compare_outputs(
    recording: Recording, errors: Mapping[str, Mapping[str, TensorStats]], versions: Mapping[str, str]
) -> tuple[ReferenceResult, CandidateResult]:
    """Return the results of the reference and of the port, for the tensors that the port has computed.

    Args:
        recording: recorded reference.
        errors: differences of the port's tensors from R64, by dtype and name.
        versions: version of the port's framework by its name; empty if it is not known.
    """
    reference = read_reference(recording.folder)
    names = {name for tensors in errors.values() for name in tensors}
    missing_counts = Counter(_kind_of_tensor(name) for name in reference.tensors if name not in names)
    notes = list(reference.notes)
    if missing_counts:
        left_out = ", ".join(f"{count} of {kind}" for kind, count in missing_counts.items())
        notes.append(Note("outputs-left-out", {"given": len(names), "of": len(reference.tensors), "what": left_out}))
    if "float64" not in errors:
        notes.append(Note("outputs-rounded"))
    draws = TensorFile(recording.folder / "reference" / f"draws-{TRAINING}.safetensors")
    if any(TensorName.parse(name).kind in CHOICES for name in draws):
        notes.append(Note("outputs-choices"))
    dtypes = {
        dtype: CandidateDtype(
            tensors=dict(tensors),
            parameter_errors=dict.fromkeys(reference.parameters, 0.0),  # the port used the reference's parameters
            facts=CandidateFacts(num_buckets=reference.facts.num_buckets),
        )
        for dtype, tensors in errors.items()
    }
    compared_tensors = {name: record for name, record in reference.tensors.items() if name in names}
    return (
        replace(reference, tensors=compared_tensors, notes=notes, tokens=None),
        CandidateResult(dtypes=dtypes, execution=Execution(versions=dict(versions))),
    )


def _kind_of_tensor(name: str) -> str:
    """Return the kind of a tensor for a note: the name of its evaluation such as ``shorter``, or its kind."""
    tensor_name = TensorName.parse(name)
    return tensor_name.evaluation or tensor_name.kind
