"""A recorded reference, created on a machine with torch to judge ports on machines without it.

A bundle is a folder. It holds the files of the job folder (:mod:`.files`) after the reference has finished,
and ``bundle.json``, which describes it and lists the size and SHA-256 of every file::

    {"format": "toolkit parity reference", "schema": 11, "recorded": "2026-01-31T12:00:00+00:00", "toolkit": "0.1.0",
     "describes": {model, head, config, batch (shapes), parameters, dtypes, device, seed, randomized_parameters},
     "versions": {python, torch, transformers, numpy}, "flags": {TF32, determinism, threads},
     "weights": {"wte.weight": SHA-256, ...}, if they are left out (:mod:`.external_weights`),
     "files": {"weights.safetensors": {"bytes": 1234, "sha256": "..."}, ...}}

Nothing in a bundle is code, and nothing is used before every file has been checked: names stay inside the folder, no
file is missing, changed or extra, and the configuration is of a family known here.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import toolkit
from models.families import FAMILIES, part
from models.files.plain import UnreadableFileError, read_object
from toolkit.errors import UserError
from toolkit.files.lossless import move_to_free_name
from toolkit.parity.bundle.external_weights import hash_tensors, weights_path_of, write_weights
from toolkit.parity.bundle.recorded_facts import check_recorded
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import read_reference
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.job.job import SCHEMA as JOB_SCHEMA
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import PAIR, Description, Pair
from toolkit.parity.measure.evaluation import RUNS
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request.build import is_streamed, workers_of, write_request
from toolkit.parity.request.request import GateRequest

#: Value of the manifest's key ``format``.
FORMAT = "toolkit parity reference"
#: Schema of a bundle, increased whenever a reference's files change or the port's side needs others.
SCHEMA = 11
#: Names of the file that describes a bundle, and of the file with the weights.
MANIFEST = "bundle.json"
WEIGHTS = "weights.safetensors"
#: Message that rejects a bundle in bfloat16.
NOT_RECORDED = (
    "no reference is recorded in bfloat16: there each operation is judged on an input that a bundle does not hold; "
    "where torch is, take toolkit parity --dtype bfloat16"
)
#: Names of the files that the port's side reads. A bundle may hold more files, if its manifest lists them.
REQUIRED_FILES = (
    "job.json",
    WEIGHTS,
    "batch.safetensors",
    "reference/float64.safetensors",
    "labels.safetensors",
    *(f"reference/draws-{run}.safetensors" for run in RUNS),
    "reference/constants.safetensors",
    "reference/rates.json",
    "reference/order.json",
    "reference/result.json",
)
#: Names of further files that the port's side reads: of a family, and, after the description, of a user's reference.
OF_FAMILY = ("reference/initial.safetensors",)
DESCRIPTION = "reference/describe.json"
OF_PAIR = (
    DESCRIPTION,
    files.INITIAL_BUFFERS,
    "reference/buffers.safetensors",
    "reference/buffers-float32.safetensors",
)
#: Keys of a bundle's job that a replay requests again. The others only apply to the recording machine.
JOB_KEYS = (
    *("model", "head", "config", "dtypes", "seed", "port", "training", "class_weights", "label_smoothing"),
    "judge_reference_reversible",
    *("origin", "pair"),
)
#: Pair in the job of a bundle, without names of files. The user names the port to judge when a bundle is replayed.
NO_CODE = Pair("", "", "reference")
#: Matches a valid file name in the manifest: plain words, separated by single slashes. It has no ``..``, is not hidden,
#: and is not absolute.
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


# -- recording ------------------------------------------------------------------------------------------------------


def record_reference(request: GateRequest, folder: Path, console: Console) -> None:
    """Run only the reference, and write its results as a bundle, which is complete or not written at all.

    Args:
        request: request for one of the toolkit's own ports.
        folder: folder of the bundle.
        console: console for progress.

    Raises:
        UserError: bfloat16 is requested, the model is too large to be held whole, or ``folder`` holds something that is
            not a bundle.
        Inconclusive: the reference could not run.
    """
    if "bfloat16" in request.dtypes:
        raise UserError(NOT_RECORDED)
    if is_streamed(request):
        raise UserError(
            "only a model that is compared as a whole can be recorded; this one is compared stage by stage: "
            "take fewer --layers, or a smaller configuration (KEY=VALUE)"
        )
    with new_bundle(folder, console) as partial:
        weights, num_randomized = randomize_constants(request.weights, request.seed)
        write_request(replace(request, tokenizer=None), weights, partial)  # its files are not recorded
        run_workers([partial], console, {"reference": workers_of(request)["reference"]})
        seal_bundle(partial, num_randomized)


@contextlib.contextmanager
def new_bundle(folder: Path, console: Console, command: str = "replay {0}") -> Iterator[Path]:
    """Yield a job folder that becomes the bundle ``folder`` after a ``with`` block that sealed it without an error.

    Then the bundle's size and the user's next command are printed.

    Args:
        folder: folder of the bundle.
        console: console for the output.
        command: next command after ``toolkit parity``, with ``{0}`` for the folder.

    Raises:
        UserError: ``folder`` holds something that is not a bundle.
    """
    check_free(folder)
    with _replace_folder(folder) as partial:
        yield partial
    entries = read_manifest(folder)["files"]
    size = sum(entry["bytes"] for entry in entries.values())
    console.print(
        f"recorded {folder}: {len(entries)} files, {size / 2**20:.1f} MiB; "
        f"{MANIFEST} has SHA-256 {files.file_sha256(folder / MANIFEST)}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"next: toolkit parity {command.format(folder)}", highlight=False, soft_wrap=True)


def seal_bundle(partial: Path, num_randomized: int, weights: Path | None = None) -> None:
    """Turn the job folder of a finished reference into a bundle.

    This removes files without a meaning on other machines, and writes ``bundle.json``.

    Args:
        partial: folder of the job.
        num_randomized: number of parameters with randomized constants.
        weights: file for the weights if the bundle does not hold them; None to keep them in the bundle.
    """
    (partial / "reference.log").unlink()
    for place in partial.iterdir():  # the port's empty folder, and temporary files of torch
        if place.is_dir() and place.name != "reference":
            shutil.rmtree(place)
    job = files.read_job(partial)
    # Paths of this machine are meaningless elsewhere, and a bundle names no code.
    pair = (
        None
        if job.pair is None
        else replace(
            NO_CODE,
            has_loss=job.pair.has_loss,
            forward_only=job.pair.forward_only,
            any_framework=job.pair.any_framework,
            small=job.pair.small,
        )
    )
    if job.pair is not None:
        result = files.read_json(files.result_path(partial, "reference"))
        result["execution"]["imported"] = []
        files.write_json(files.result_path(partial, "reference"), result)
    files.write_json(
        partial / "job.json", replace(job, reference_python="", checkpoint=None, checkpoint_config=None, pair=pair)
    )
    for name in (files.CHECKPOINT, files.POSITIONS, files.OWN_WEIGHTS):
        (partial / "reference" / name).unlink(missing_ok=True)
    left_out = {}
    if weights is not None:
        left_out = {"weights": hash_tensors(partial / WEIGHTS)}
        os.replace(partial / WEIGHTS, weights)
    files.write_report(
        partial / MANIFEST, {**manifest_of(partial, job, num_randomized), **left_out}
    )  # people read it, too


def manifest_of(folder: Path, job: Job, num_randomized: int) -> dict[str, Any]:
    """Return the content of ``bundle.json`` for the job folder of a finished reference.

    Args:
        folder: folder of the job.
        job: content of the job.
        num_randomized: number of parameters with randomized constants.
    """
    result = read_reference(folder)
    batch = files.read_tensors(folder / "batch.safetensors")
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "recorded": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "toolkit": toolkit.__version__,
        "describes": {
            **{key: getattr(job, key) for key in ("model", "head", "config", "dtypes", "device", "seed")},
            "batch": {name: list(value.shape) for name, value in batch.items()},
            "parameters": result.parameters,
            "randomized_parameters": num_randomized,
        },
        "versions": result.execution.versions,
        "flags": result.execution.flags,
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "sha256": files.file_sha256(folder / name)}
            for name in sorted(_files_in(folder))
        },
    }


def check_free(folder: Path) -> None:
    """Check that a new bundle replaces at most an earlier bundle.

    Args:
        folder: folder of the new bundle.

    Raises:
        UserError: the folder has other content.
    """
    if not os.path.lexists(folder) or (folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())):
        return
    try:
        bundle_files = {MANIFEST, *read_manifest(folder)["files"]}
        extra = sorted(set(_files_in(folder)) - bundle_files)
    except UserError:
        raise UserError(f"{folder}: exists and is not a bundle; name another place") from None
    if extra:
        raise UserError(f"{folder}: holds {extra[0]}, which is not part of the bundle there; name another place")


def check_weights_free(folder: Path) -> None:
    """Check that the weights file of a new small bundle replaces at most the weights of an earlier bundle.

    Args:
        folder: folder of the new bundle.

    Raises:
        UserError: another file is there.
    """
    if not os.path.lexists(place := weights_path_of(folder)):
        return
    try:
        weight_digests = hash_tensors(place)
    except (OSError, UnreadableFileError):
        weight_digests = {}
    if not os.path.lexists(folder) or read_manifest(folder).get("weights") != weight_digests:
        raise UserError(f"{place}: is there, and not of a bundle {folder}; name another place")


@contextlib.contextmanager
def _replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder next to ``folder``, which replaces it after a ``with`` block without an error."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        partial = scratch / "new"
        partial.mkdir()
        yield partial
        if folder.exists():
            move_to_free_name(folder, scratch / "old")
        move_to_free_name(partial, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# -- replaying ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """A bundle whose files have been checked.

    Attributes:
        folder: folder of the bundle.
        manifest: the content of ``bundle.json``.
        identity: the SHA-256 of ``bundle.json``, which vouches for all other files.
        request: the request that the reference was recorded for.
        weights: weights file of a small bundle; None for a bundle that holds its weights, or if no file was given.
    """

    folder: Path
    manifest: Mapping[str, Any]
    identity: str
    request: GateRequest
    weights: Path | None = None

    @property
    def lacks_weights(self) -> bool:
        """Whether the bundle has no weights and no weights file was given."""
        return WEIGHTS not in self.manifest["files"] and self.weights is None

    def lay_out(self, job: Path) -> None:
        """Fill a job folder with the recorded files of the reference, except for ``job.json``.

        Args:
            job: folder of the job.

        Raises:
            UserError: the weights for a small bundle differ from the recorded weights.
        """
        for name in self.manifest["files"]:
            if name != "job.json":
                (job / name).parent.mkdir(parents=True, exist_ok=True)
                (job / name).symlink_to((self.folder / name).absolute())
        if self.weights is not None:
            shapes = self.manifest["describes"]["parameters"]
            write_weights(job / WEIGHTS, self.weights, self.manifest["weights"], shapes)


def open_recording(folder: Path, weights: Path | None = None) -> Recording:
    """Return a bundle after checking every file of it.

    Args:
        folder: folder of the bundle.
        weights: file or folder with the weights of a small bundle; None for a bundle that holds its weights.

    Raises:
        UserError: the folder is not a bundle, has another schema, is incomplete or changed, or describes an unknown
            model; or weights are given for a bundle that holds its weights.
    """
    manifest = read_manifest(folder)
    if weights is not None and "weights" not in manifest:
        raise UserError(f"--weights: {folder} holds its own")
    _check_files(folder, manifest["files"])
    try:
        request = _request_of(folder, manifest["describes"]["model"])
    except Exception as error:  # its files are unchanged, but their content may be anything
        error_name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = " ".join(f"{error_name}{error}".split())
        raise UserError(f"{folder}: describes no model that can be judged here: {reason}") from None
    return Recording(folder, manifest, files.file_sha256(folder / MANIFEST), request, weights)


def check_unchanged(recording: Recording) -> None:
    """Check that no file of a bundle has changed since it was opened. Raises UserError if a file has."""
    if files.file_sha256(recording.folder / MANIFEST) != recording.identity:
        raise UserError(f"{recording.folder}: {MANIFEST} was changed while the port ran; record the reference again")
    _check_files(recording.folder, recording.manifest["files"])


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of ``bundle.json`` after checking its format, schema and file names.

    Args:
        folder: folder of the bundle.

    Raises:
        UserError: the file is missing or invalid, or names a file outside the folder.
    """
    try:
        manifest = read_object(folder / MANIFEST)
    except OSError:
        raise UserError(f"{folder}: is not a bundle of `toolkit parity record`: no readable {MANIFEST}") from None
    except ValueError as error:
        raise UserError(f"{folder}: is not a bundle of `toolkit parity record`: {error}") from None
    if manifest.get("format") != FORMAT:
        raise UserError(f"{folder}: is not a bundle of `toolkit parity record`: {MANIFEST} is of another format")
    if manifest.get("schema") != SCHEMA:
        raise UserError(
            f"{folder}: has schema {manifest.get('schema')!r}, this toolkit reads {SCHEMA}; record it again, "
            "or use the toolkit that recorded it"
        )
    entries = manifest.get("files")
    if not isinstance(entries, dict) or not all(_is_entry(entry) for entry in entries.values()):
        raise UserError(f"{folder}: {MANIFEST} does not list its files with size and SHA-256")
    for name in entries:
        if not NAME.fullmatch(name) or name == MANIFEST:
            raise UserError(f"{folder}: {MANIFEST} names {name!r}, which is no file of a bundle")
    description = manifest.get("describes")
    is_pair = isinstance(description, dict) and description.get("model") == PAIR
    external_files = (WEIGHTS,) if _has_digests(manifest) else ()
    required_files = (*REQUIRED_FILES, *(OF_PAIR if is_pair else OF_FAMILY))
    if missing := [name for name in required_files if name not in entries and name not in external_files]:
        raise UserError(f"{folder}: {MANIFEST} does not list {missing[0]}")
    return manifest


def _has_digests(manifest: Mapping[str, Any]) -> bool:
    """Return whether a bundle has no weights, but its manifest has the SHA-256 of each described parameter."""
    description, digests = manifest.get("describes"), manifest.get("weights")
    parameters = description.get("parameters") if isinstance(description, dict) else None
    return isinstance(digests, dict) and isinstance(parameters, dict) and digests.keys() == parameters.keys()


def _is_entry(entry: Any) -> bool:
    """Return whether a value of the manifest describes a file by its size and its SHA-256."""
    return isinstance(entry, dict) and isinstance(entry.get("bytes"), int) and isinstance(entry.get("sha256"), str)


def _check_files(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that a bundle's folder has exactly the recorded files, without changes. Raises UserError if not.

    Args:
        folder: folder of the bundle.
        entries: size and SHA-256 of each file, by name.
    """
    names = set(_files_in(folder)) - {MANIFEST}
    if missing := sorted(set(entries) - names):
        raise UserError(f"{folder}: {missing[0]} is missing")
    if extra := sorted(names - set(entries)):
        raise UserError(f"{folder}: {extra[0]} is not of the bundle")
    for name, entry in entries.items():
        size = (folder / name).stat().st_size
        if size != entry["bytes"]:
            raise UserError(f"{folder}: {name} was changed: {size} bytes, recorded were {entry['bytes']}")
        if files.file_sha256(folder / name) != entry["sha256"]:
            raise UserError(f"{folder}: {name} was changed: its SHA-256 is not the recorded one")


def _files_in(folder: Path) -> Iterator[str]:
    """Yield the relative path of every file below a folder, with slashes.

    Raises:
        UserError: there is a link, as its target is not part of the bundle, or a special file.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place) / name
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(f"{folder}: {path.relative_to(folder)} is a link or no plain file")
        yield from ((Path(place) / name).relative_to(folder).as_posix() for name in names)


def _request_of(folder: Path, model: str) -> GateRequest:
    """Return the request that a bundle's reference was recorded for, after checking every key of ``job.json``.

    Args:
        folder: folder of the bundle.
        model: model that the manifest names.

    Raises:
        ValueError: a key is invalid.
    """
    job = files.read_job(folder)
    if job.schema != JOB_SCHEMA or job.streamed:
        raise ValueError(f"schema {job.schema!r} of job.json")
    if job.model != model:
        raise ValueError(f"model {job.model!r} in job.json, {model!r} in {MANIFEST}")
    if not job.dtypes or not set(job.dtypes) <= {"float64", "float32"}:
        raise ValueError(f"dtypes {job.dtypes}")
    (_check_pair if job.model == PAIR else _check_family)(folder, job)
    check_recorded(folder, job)
    return GateRequest(
        **{name: getattr(job, name) for name in JOB_KEYS},
        weights=files.read_tensors(folder / WEIGHTS) if (folder / WEIGHTS).exists() else {},
        batch=files.read_tensors(folder / "batch.safetensors"),
        labels=files.read_tensors(folder / "labels.safetensors"),
        streamed=False,
    )


def _check_family(folder: Path, job: Job) -> None:
    """Check the model, head and class weights of a bundle's job for a family. Raises ValueError if one is invalid."""
    if job.model not in FAMILIES or job.head not in part(job.model, "weights").HEADS:
        raise ValueError(f"model {job.model!r} with head {job.head!r}")
    if job.pair is not None:
        raise ValueError(f"a pair beside model {job.model!r}")
    outputs = part(job.model, "schema").resolve(job.config)["num_labels"]
    if job.class_weights is not None and len(job.class_weights) != outputs:
        raise ValueError(f"{len(job.class_weights)} class weights for {outputs} labels")


def _without_facts(pair: Pair) -> Pair:
    """Return a pair without the facts that a bundle records about its reference."""
    return replace(pair, has_loss=False, forward_only=False, any_framework=False, small=False)


def _check_pair(folder: Path, job: Job) -> None:
    """Check that a bundle of a user's reference names no code, and describes the reference.

    Args:
        folder: folder of the bundle.
        job: job of the bundle.

    Raises:
        ValueError: the job names files, or the description is invalid.
    """
    if job.pair is None or _without_facts(job.pair) != NO_CODE:
        raise ValueError("job.json names files of a pair; a bundle names no code")
    files.read(folder / DESCRIPTION, Description)
