"""From the name of a checkpoint to a folder on this disk, and the tensors in it."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.files.hub_errors import HubError, Wanted, corrupt, explain, missing_file, no_room, offline, read_only
from models.files.plain import UnreadableFile, open_tensors, read_object

#: The files of a checkpoint that are read, of its topmost folder. Code is neither downloaded nor opened.
PATTERNS = ("*.json", "*.safetensors", "*.model", "merges.txt")
#: Fetched from a revision without safetensors alone. Pickles: nothing in this process opens them.
PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin")
COMMIT = re.compile(r"[0-9a-f]{40}")


# -- from a name to a folder ----------------------------------------------------------------------------------------


def split_revision(text: str) -> tuple[str, str | None]:
    """``ID@REVISION``, as a command line has it, in its parts; a folder's path, whatever is in it, is one part."""
    id, at, revision = text.partition("@")
    return (text, None) if os.path.exists(text) or not at or not id else (id, revision)


def resolve_folder(folder_or_id: str | os.PathLike, revision: str | None = None) -> Path:
    """The folder itself, or that of a hub repository's snapshot, downloaded as far as it is not in the local cache.

    The client shows its progress on the standard error. What was interrupted goes on where it was with the next call.
    Without the hub, what is in the cache is used if nothing is missing.

    Args:
        revision: a branch, a tag, ``refs/pr/N`` or a commit of the hub repository; None for its main branch.

    Raises:
        HubError: a FileNotFoundError: neither a folder nor an available repository; the reason in one line.
    """
    folder = Path(folder_or_id)
    if folder.is_dir():
        if revision is not None:
            raise HubError("revision", f"{folder} is a folder, which has no revision {revision}; remove the revision")
        return folder
    wanted = Wanted(str(folder_or_id), revision)
    try:
        found = _asked(wanted)
    except HubError as problem:
        return _from_cache(wanted, problem)
    names = [file.rfilename for file in found.siblings or []]
    if "config.json" not in names:
        raise missing_file(wanted._replace(file="config.json"))
    there = wanted._replace(revision=found.sha)
    snapshot = _fetched(there._replace(file="config.json")).parent
    _write_ref(wanted, snapshot.name)
    for name in _chosen(names):
        if not (snapshot / name).exists():
            _fetched(there._replace(file=name))
    return snapshot


def _from_cache(wanted: Wanted, problem: HubError) -> Path:
    """The snapshot in the cache, when the hub does not answer or no longer gives what it gave before.

    Raises:
        HubError: ``problem``, unless the snapshot is there with its weights.
    """
    if problem.reason in ("revision", "name") or not (commit := _cached_commit(wanted)):
        raise _lacking(wanted, problem, "config.json") from None
    snapshot = _cache_of(wanted) / "snapshots" / commit
    lacking = "config.json" if not (snapshot / "config.json").exists() else missing_weights(snapshot)
    if lacking:
        raise _lacking(wanted, problem, lacking) from None
    return snapshot


def _lacking(wanted: Wanted, problem: HubError, file: str) -> HubError:
    return offline(wanted._replace(file=file)) if problem.reason == "offline" else problem


def commit_of(snapshot: Path) -> str | None:
    """The commit that a folder of :func:`resolve_folder` is of; None for a folder that is not of the hub."""
    return snapshot.name if COMMIT.fullmatch(snapshot.name) and snapshot.parent.name == "snapshots" else None


def current_commit(id: str, revision: str | None = None, kind: str = "model") -> str:
    """The commit that a branch or tag names now; without the hub, the one that it named when it was last asked.

    Args:
        kind: ``model`` or ``dataset``.

    Raises:
        HubError: the hub says no, or cannot be asked and never was.
    """
    wanted = Wanted(id, revision, kind=kind)
    if revision and COMMIT.fullmatch(revision):
        return revision
    try:
        commit = str(_asked(wanted).sha)
    except HubError as problem:
        if problem.reason in ("revision", "name") or not (known := _cached_commit(wanted)):
            raise
        return known
    _write_ref(wanted, commit)
    return commit


def moved_to(id: str, revision: str | None, kind: str) -> str | None:
    """The commit that a branch or tag names now; None if the hub does not tell. Nothing is written down."""
    try:
        return str(_asked(Wanted(id, revision, kind=kind)).sha)
    except HubError:
        return None


def refusal(wanted: Wanted) -> HubError | None:
    """Why the hub does not give a file, asked anew; None if it would, or it is merely not there."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    try:
        with _explained(wanted):
            url = hf_hub_url(wanted.id, str(wanted.file), repo_type=wanted.kind, revision=wanted.revision)
            get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HubError as problem:
        return None if problem.reason == "file" else problem
    return None


def _asked(wanted: Wanted) -> Any:
    """What the hub tells of a repository at a revision: ``sha``, its commit, and ``siblings``, its files.

    Unlike the download of a file, this is asked once: the client would go on asking a hub that cannot be reached for
    half a minute.
    """
    from huggingface_hub import HfApi, constants

    with _explained(wanted):
        return HfApi().repo_info(
            wanted.id, revision=wanted.revision, repo_type=wanted.kind, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )


def _cache_of(wanted: Wanted) -> Path:
    """The repository's folder in the client's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=wanted.id, repo_type=wanted.kind))


def _ref(wanted: Wanted) -> Path:
    return _cache_of(wanted) / "refs" / (wanted.revision or "main")


def _write_ref(wanted: Wanted, commit: str) -> None:
    """Leave the commit of a branch or tag where the client looks for it when it is offline."""
    if wanted.revision == commit:
        return
    with contextlib.suppress(OSError):  # a cache that may only be read is good enough
        _ref(wanted).parent.mkdir(parents=True, exist_ok=True)
        _ref(wanted).write_text(commit)


def _cached_commit(wanted: Wanted) -> str | None:
    """The commit that a branch or tag named when it was last asked for."""
    if wanted.revision and COMMIT.fullmatch(wanted.revision):
        return wanted.revision
    try:
        return _ref(wanted).read_text().strip()
    except OSError:
        return None


def _chosen(names: Sequence[str]) -> list[str]:
    """The files that are downloaded; pickles only where there is nothing better."""
    top = [name for name in names if "/" not in name]
    chosen = [name for name in top if any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS)]
    if not any(name.endswith(".safetensors") for name in chosen):
        chosen += [name for name in top if any(fnmatch.fnmatchcase(name, pattern) for pattern in PICKLES)]
    return chosen


def missing_weights(snapshot: Path) -> str | None:
    """The first file of weights that a snapshot in the cache lacks; None where it has them all."""
    for kind in ("model.safetensors", "pytorch_model.bin"):
        index = snapshot / f"{kind}.index.json"
        if index.exists():
            named = read_object(index).get("weight_map")
            files = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
            return next((name for name in files if not (snapshot / name).exists()), None)
        if (snapshot / kind).exists():
            return None
    return "model.safetensors"


def _fetched(wanted: Wanted) -> Path:
    """A file of a repository in the cache, downloaded if need be, and then compared with its checksum."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    with _explained(wanted):
        before = try_to_load_from_cache(wanted.id, str(wanted.file), revision=wanted.revision)
        path = Path(hf_hub_download(wanted.id, str(wanted.file), revision=wanted.revision))
    if str(path) != before:
        _check_sum(path)
    return path


def _check_sum(path: Path) -> None:
    """Compare a download with its checksum, which is its blob's name: SHA-256 of a large file, Git's SHA-1 of others.

    Raises:
        HubError: it differs; the file is removed, or the cache would take it for good from now on.
    """
    blob = Path(os.path.realpath(path))
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        return
    found = hashlib.sha256() if len(blob.name) == 64 else hashlib.sha1(b"blob %d\0" % blob.stat().st_size)
    with blob.open("rb") as file:
        while chunk := file.read(2**20):
            found.update(chunk)
    if found.hexdigest() != blob.name:
        blob.unlink()
        path.unlink(missing_ok=True)
        raise corrupt(path)


@contextlib.contextmanager
def _explained(wanted: Wanted) -> Iterator[None]:
    """What the client raises, as one line. A full disk is none of the hub's faults and stays what it is."""
    try:
        yield
    except Exception as problem:
        if no_room(problem):
            raise
        explained = read_only(problem) or explain(problem, wanted)
        if explained is None:
            raise
        if explained.reason == "corrupt" or "416" in str(problem):
            forget_partial(wanted)
        raise explained from None


def forget_partial(wanted: Wanted) -> None:
    """Remove the part of a file that was downloaded: it is not of the file that the hub has."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    with contextlib.suppress(Exception):  # else it is in the way the next time, and said again
        url = hf_hub_url(wanted.id, str(wanted.file), repo_type=wanted.kind, revision=wanted.revision)
        etag = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT).etag
        (_cache_of(wanted) / "blobs" / f"{etag}.incomplete").unlink(missing_ok=True)


# -- from a folder to tensors ---------------------------------------------------------------------------------------


class StoredTensor:
    """A tensor in a file: its shape at once, its values each time ``np.asarray`` asks for them."""

    def __init__(self, file: Path, name: str) -> None:
        self.file = file
        self.name = name
        with open_tensors(file) as tensors:
            self.shape = tuple(tensors.get_slice(name).get_shape())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with open_tensors(self.file) as tensors:
            value = tensors.get_tensor(self.name)
        return value if dtype is None else value.astype(dtype)


def stored_tensors(folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    """As :func:`read_tensors`, with the values left on disk: for checkpoints larger than memory."""
    for file, name in _names(folder):
        yield name, StoredTensor(file, name)


def read_tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every tensor of the checkpoint in ``folder``, one at a time, single file or shards.

    Raises:
        FileNotFoundError: no safetensors file. A pickle beside it is named, and left unopened: unpickling runs code.
        UnreadableFile: one of them is damaged, or the index is.
    """
    for file, name in _names(folder):
        with open_tensors(file) as tensors:
            value = tensors.get_tensor(name)
        yield name, value


def _names(folder: Path) -> Iterator[tuple[Path, str]]:
    """File and name of every tensor of a checkpoint; raises as :func:`read_tensors`."""
    for file in tensor_files(folder):
        with open_tensors(file) as tensors:
            names = list(tensors.keys())
        yield from ((file, name) for name in names)


def tensor_files(folder: Path) -> list[Path]:
    """The files with a checkpoint's tensors: those that its index names, or the only one.

    Raises:
        FileNotFoundError: as :func:`read_tensors`.
        UnreadableFile: the index is none, or names a file elsewhere: what comes with a checkpoint is not to say which
            other files of this disk are read.
    """
    index = folder / "model.safetensors.index.json"
    if os.path.lexists(index):
        return _indexed(index, ".safetensors")
    if os.path.lexists(folder / "model.safetensors"):
        return [folder / "model.safetensors"]
    pickles = pickle_files(folder) or sorted(folder.glob("*.bin"))
    hint = "is a pickle, which can run code and is not opened here: save it with safetensors"
    raise FileNotFoundError(f"{folder}: no model.safetensors{f'; {pickles[0].name} {hint}' if pickles else ''}")


def pickle_files(folder: Path) -> list[Path]:
    """The pickles that hold a checkpoint's tensors, as torch writes them; none where there are safetensors.

    Raises:
        UnreadableFile: as :func:`tensor_files`.
    """
    if any(os.path.lexists(folder / f"model.safetensors{more}") for more in ("", ".index.json")):
        return []
    index = folder / "pytorch_model.bin.index.json"
    if os.path.lexists(index):
        return _indexed(index, ".bin")
    return [path for path in [folder / "pytorch_model.bin"] if os.path.lexists(path)]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's tensors: :func:`pickle_files`, or else :func:`tensor_files`, which raises."""
    return pickle_files(folder) or tensor_files(folder)


def _indexed(index: Path, suffix: str) -> list[Path]:
    """The files that an index names, all of them beside it."""
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise UnreadableFile(index, "has no weight_map of tensors and their files")
    for tensor, name in named.items():
        if not isinstance(name, str) or not name.endswith(suffix) or set(name) & set("/\\\0"):
            raise UnreadableFile(
                index, f"says that {tensor} is in {name!r}; it should be a {suffix} file of the same folder"
            )
    return [index.parent / name for name in sorted(set(named.values()))]
