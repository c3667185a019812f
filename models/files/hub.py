"""Find or download a checkpoint by its name, and read its tensors."""

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

from models.files.hub_errors import (
    HubError,
    HubRequest,
    checksum_error,
    explain_error,
    is_disk_full,
    missing_file_error,
    offline_error,
    read_only_error,
)
from models.files.plain import UnreadableFileError, open_tensors, read_object

#: Patterns of the files that are read from a checkpoint's top folder. Code is neither downloaded nor opened.
PATTERNS = ("*.json", "*.safetensors", "*.model", "merges.txt")
#: Patterns of pickles, downloaded only from a revision without safetensors. Nothing in this process opens them.
PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin")
COMMIT = re.compile(r"[0-9a-f]{40}")


# -- from a name to a folder ----------------------------------------------------------------------------------------


def split_revision(text: str) -> tuple[str, str | None]:
    """Split ``ID@REVISION`` of a command line into its parts. An existing path, even with an @, has no revision."""
    id, at, revision = text.partition("@")
    return (text, None) if os.path.exists(text) or not at or not id else (id, revision)


def resolve_folder(folder_or_id: str | os.PathLike, revision: str | None = None) -> Path:
    """Return a folder itself, or the cached snapshot of a hub repository, whose missing files are downloaded.

    The client shows its progress on standard error. The next call resumes an interrupted download. If the hub cannot be
    reached, a complete snapshot in the cache is used.

    Args:
        folder_or_id: folder, or name of a hub repository.
        revision: branch, tag, ``refs/pr/N`` or commit of the hub repository; None for its main branch.

    Raises:
        HubError: neither a folder nor an available repository has this name.
    """
    folder = Path(folder_or_id)
    if folder.is_dir():
        if revision is not None:
            raise HubError("revision", f"{folder} is a folder, which has no revision {revision}; remove the revision")
        return folder
    request = HubRequest(str(folder_or_id), revision)
    try:
        info = _request_info(request)
    except HubError as error:
        return _find_cached_snapshot(request, error)
    names = [file.rfilename for file in info.siblings or []]
    if "config.json" not in names:
        raise missing_file_error(request._replace(file="config.json"))
    commit_request = request._replace(revision=info.sha)
    snapshot = _download_file(commit_request._replace(file="config.json")).parent
    _write_ref(request, snapshot.name)
    for name in _select_files(names):
        if not (snapshot / name).exists():
            _download_file(commit_request._replace(file=name))
    return snapshot


def _find_cached_snapshot(request: HubRequest, request_error: HubError) -> Path:
    """Return the cached snapshot of a repository that the hub does not provide now.

    Args:
        request: request that failed.
        request_error: error of the request, raised if no complete snapshot is cached.
    """
    if request_error.reason in ("revision", "name") or not (commit := _cached_commit(request)):
        raise _missing_cache_error(request, request_error, "config.json") from None
    snapshot = _cache_folder(request) / "snapshots" / commit
    missing_file = "config.json" if not (snapshot / "config.json").exists() else missing_weights(snapshot)
    if missing_file:
        raise _missing_cache_error(request, request_error, missing_file) from None
    return snapshot


def _missing_cache_error(request: HubRequest, request_error: HubError, file: str) -> HubError:
    """Return the error to raise if a file is not cached: offline, an error with its name; otherwise ``request_error``.

    Args:
        request: requested checkpoint.
        request_error: error of the attempted download.
        file: name of the file that is not cached.
    """
    return offline_error(request._replace(file=file)) if request_error.reason == "offline" else request_error


def commit_of(snapshot: Path) -> str | None:
    """Return the commit of a folder from :func:`resolve_folder`; None if it is not from the hub."""
    return snapshot.name if COMMIT.fullmatch(snapshot.name) and snapshot.parent.name == "snapshots" else None


def current_commit(id: str, revision: str | None = None, kind: str = "model") -> str:
    """Return the current commit of a branch or tag, or the last known commit if the hub cannot be reached.

    Args:
        id: name of the repository.
        revision: branch, tag, ``refs/pr/N`` or commit; None for the main branch.
        kind: ``model`` or ``dataset``.

    Raises:
        HubError: the hub refuses the request, or cannot be reached and no commit is known.
    """
    request = HubRequest(id, revision, kind=kind)
    if revision and COMMIT.fullmatch(revision):
        return revision
    try:
        commit = str(_request_info(request).sha)
    except HubError as error:
        if error.reason in ("revision", "name") or not (last_commit := _cached_commit(request)):
            raise
        return last_commit
    _write_ref(request, commit)
    return commit


def request_commit(id: str, revision: str | None, kind: str) -> str | None:
    """Return the current commit of a branch or tag from the hub; None if the request fails. Nothing is cached.

    Args:
        id: name of the repository.
        revision: branch, tag or ``refs/pr/N``; None for the main branch.
        kind: ``model`` or ``dataset``.
    """
    try:
        return str(_request_info(HubRequest(id, revision, kind=kind)).sha)
    except HubError:
        return None


def request_refusal(request: HubRequest) -> HubError | None:
    """Ask the hub again why it refuses a file; None if it does not refuse it, or the file does not exist."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    try:
        with _explain_errors(request):
            url = hf_hub_url(request.id, str(request.file), repo_type=request.kind, revision=request.revision)
            get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HubError as error:
        return None if error.reason == "file" else error
    return None


def _request_info(request: HubRequest) -> Any:
    """Return the hub's description of a repository at a revision: its commit ``sha``, and its files ``siblings``.

    Unlike a download, the request is not retried: the client would retry an unreachable hub for half a minute.
    """
    from huggingface_hub import HfApi, constants

    with _explain_errors(request):
        return HfApi().repo_info(
            request.id, revision=request.revision, repo_type=request.kind, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )


def _cache_folder(request: HubRequest) -> Path:
    """Return the folder of the repository in the client's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=request.id, repo_type=request.kind))


def _ref_path(request: HubRequest) -> Path:
    """Return the path of the cache's file with the commit of the request's branch or tag."""
    return _cache_folder(request) / "refs" / (request.revision or "main")


def _write_ref(request: HubRequest, commit: str) -> None:
    """Store the commit of the request's branch or tag where the client looks for it offline."""
    if request.revision == commit:
        return
    with contextlib.suppress(OSError):  # the cache may be read-only
        _ref_path(request).parent.mkdir(parents=True, exist_ok=True)
        _ref_path(request).write_text(commit)


def _cached_commit(request: HubRequest) -> str | None:
    """Return the last known commit of the request's branch or tag; None if it is unknown."""
    if request.revision and COMMIT.fullmatch(request.revision):
        return request.revision
    try:
        return _ref_path(request).read_text().strip()
    except OSError:
        return None


def _select_files(names: Sequence[str]) -> list[str]:
    """Return the names of the files to download, with pickles only if the repository lacks safetensors."""
    top_names = [name for name in names if "/" not in name]
    file_names = [name for name in top_names if any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS)]
    if not any(name.endswith(".safetensors") for name in file_names):
        file_names += [name for name in top_names if any(fnmatch.fnmatchcase(name, pattern) for pattern in PICKLES)]
    return file_names


def missing_weights(snapshot: Path) -> str | None:
    """Return the name of the first weights file that a cached snapshot lacks; None if it is complete."""
    for kind in ("model.safetensors", "pytorch_model.bin"):
        index = snapshot / f"{kind}.index.json"
        if index.exists():
            weight_map = read_object(index).get("weight_map")
            names = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
            return next((name for name in names if not (snapshot / name).exists()), None)
        if (snapshot / kind).exists():
            return None
    return "model.safetensors"


def _download_file(request: HubRequest) -> Path:
    """Return the cached path of the request's file, downloaded and compared with its checksum if it is not cached."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    with _explain_errors(request):
        cached_path = try_to_load_from_cache(request.id, str(request.file), revision=request.revision)
        path = Path(hf_hub_download(request.id, str(request.file), revision=request.revision))
    if str(path) != cached_path:
        _check_sum(path)
    return path


def _check_sum(path: Path) -> None:
    """Compare a download with its checksum: the name of its blob is the SHA-256 of a large file, or Git's SHA-1.

    Raises:
        HubError: the checksum differs. The file is removed, because the cache would otherwise provide it from now on.
    """
    blob = Path(os.path.realpath(path))
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        return
    digest = hashlib.sha256() if len(blob.name) == 64 else hashlib.sha1(b"blob %d\0" % blob.stat().st_size)
    with blob.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    if digest.hexdigest() != blob.name:
        blob.unlink()
        path.unlink(missing_ok=True)
        raise checksum_error(path)


@contextlib.contextmanager
def _explain_errors(request: HubRequest) -> Iterator[None]:
    """Replace an exception of the client by an error of one line. The exception for a full disk is not replaced."""
    try:
        yield
    except Exception as error:
        if is_disk_full(error):
            raise
        hub_error = read_only_error(error) or explain_error(error, request)
        if hub_error is None:
            raise
        if hub_error.reason == "corrupt" or "416" in str(error):
            remove_partial_download(request)
        raise hub_error from None


def remove_partial_download(request: HubRequest) -> None:
    """Remove the partial download of the request's file, because it is not a part of the file on the hub."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    with contextlib.suppress(Exception):  # if it stays, the next download fails and reports it
        url = hf_hub_url(request.id, str(request.file), repo_type=request.kind, revision=request.revision)
        etag = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT).etag
        (_cache_folder(request) / "blobs" / f"{etag}.incomplete").unlink(missing_ok=True)


# -- from a folder to tensors ---------------------------------------------------------------------------------------


class StoredTensor:
    """A tensor in a safetensors file, whose values are read by ``np.asarray``, each time again.

    Args:
        file: path of the file.
        name: name of the tensor.
    """

    def __init__(self, file: Path, name: str) -> None:
        self.file = file
        self.name = name
        with open_tensors(file) as tensors:
            self.shape = tuple(tensors.get_slice(name).get_shape())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001 (NumPy's signature)
        with open_tensors(self.file) as tensors:
            value = tensors.get_tensor(self.name)
        return value if dtype is None else value.astype(dtype)


def stored_tensors(folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the name and value of every tensor of a checkpoint, and leave the values on the disk.

    A checkpoint may therefore be larger than the memory. Errors: see :func:`read_tensors`.
    """
    for file, name in names_by_file(folder):
        yield name, StoredTensor(file, name)


def read_tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and value of every tensor of the checkpoint in a folder, in one file or in shards.

    Raises:
        FileNotFoundError: the folder has no safetensors. Pickles are not opened, because they can run code.
        UnreadableFileError: a file or the index is damaged.
    """
    for file in tensor_files(folder):
        yield from read_file_tensors(file)


def read_file_tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and value of every tensor of a safetensors file.

    The file is opened again for each tensor, because tensors that were read stay mapped as long as it is open.

    Raises:
        UnreadableFileError: the file is damaged.
    """
    with open_tensors(file) as tensors:
        names = list(tensors.keys())
    for name in names:
        with open_tensors(file) as tensors:
            value = tensors.get_tensor(name)
        yield name, value


def names_by_file(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the name of every tensor of a checkpoint. Errors: see :func:`read_tensors`."""
    for file in tensor_files(folder):
        with open_tensors(file) as tensors:
            names = list(tensors.keys())
        yield from ((file, name) for name in names)


def tensor_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint: the files in its index, or the only file.

    Raises:
        FileNotFoundError: the folder has no safetensors. UnreadableFileError: the index is invalid, or names a file
        outside of the folder. A checkpoint must not determine
            which other files of this machine are read.
    """
    index = folder / "model.safetensors.index.json"
    if os.path.lexists(index):
        return _read_index(index, ".safetensors")
    if os.path.lexists(folder / "model.safetensors"):
        return [folder / "model.safetensors"]
    pickles = pickle_files(folder) or sorted(folder.glob("*.bin"))
    hint = "is a pickle, which can run code and is not opened here: save it with safetensors"
    raise FileNotFoundError(f"{folder}: no model.safetensors{f'; {pickles[0].name} {hint}' if pickles else ''}")


def pickle_files(folder: Path) -> list[Path]:
    """Return the pickles of a checkpoint, written by torch; an empty list if it has safetensors.

    Raises:
        UnreadableFileError: the index is invalid, or names a file outside of the folder.
    """
    if any(os.path.lexists(folder / f"model.safetensors{suffix}") for suffix in ("", ".index.json")):
        return []
    index = folder / "pytorch_model.bin.index.json"
    if os.path.lexists(index):
        return _read_index(index, ".bin")
    return [path for path in [folder / "pytorch_model.bin"] if os.path.lexists(path)]


def weight_files(folder: Path) -> list[Path]:
    """Return the pickles or the safetensors files of a checkpoint. Errors: see :func:`tensor_files`."""
    return pickle_files(folder) or tensor_files(folder)


def _read_index(index: Path, suffix: str) -> list[Path]:
    """Return the files of an index, which must be in its folder and have the suffix, such as ``.safetensors``."""
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableFileError(index, "has no weight_map of tensors and their files")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(suffix) or set(name) & set("/\\\0"):
            raise UnreadableFileError(
                index, f"says that {tensor} is in {name!r}; it should be a {suffix} file of the same folder"
            )
    return [index.parent / name for name in sorted(set(weight_map.values()))]
