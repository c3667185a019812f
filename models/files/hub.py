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

from models.files.hub_errors import HubError, Wanted, corrupt, explain, missing_file, no_room, offline, read_only
from models.files.plain import UnreadableFile, open_tensors, read_object

#: Files that are read from a checkpoint's top folder. Code is neither downloaded nor opened.
PATTERNS = ("*.json", "*.safetensors", "*.model", "merges.txt")
#: Fetched only if a revision has no safetensors. Pickles: nothing in this process opens them.
PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin")
COMMIT = re.compile(r"[0-9a-f]{40}")


# -- from a name to a folder ----------------------------------------------------------------------------------------


def split_revision(text: str) -> tuple[str, str | None]:
    """Split ``ID@REVISION`` of a command line into its parts; an existing path, even with an @, stays whole."""
    id, at, revision = text.partition("@")
    return (text, None) if os.path.exists(text) or not at or not id else (id, revision)


def resolve_folder(folder_or_id: str | os.PathLike, revision: str | None = None) -> Path:
    """Return the folder itself, or that of a hub repository's snapshot, whose missing files are downloaded.

    The client shows its progress on standard error. The next call resumes an interrupted download. Without the
    hub, a complete snapshot in the cache is used.

    Args:
        revision: a branch, a tag, ``refs/pr/N`` or a commit of the hub repository; None for its main branch.

    Raises:
        HubError: a FileNotFoundError: neither a folder nor an available repository; gives the reason in a line.
    """
    folder = Path(folder_or_id)
    if folder.is_dir():
        if revision is not None:
            raise HubError("revision", f"{folder} is a folder, which has no revision {revision}; remove the revision")
        return folder
    wanted = Wanted(str(folder_or_id), revision)
    try:
        found = _asked(wanted)
    except HubError as error:
        return _from_cache(wanted, error)
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
    """Return the cached snapshot when the hub does not answer or no longer gives what it once gave. Raises ``problem``
    unless the snapshot is there with its weights."""
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
    """Return the commit of a folder from :func:`resolve_folder`; None if it is not from the hub."""
    return snapshot.name if COMMIT.fullmatch(snapshot.name) and snapshot.parent.name == "snapshots" else None


def current_commit(id: str, revision: str | None = None, kind: str = "model") -> str:
    """Return the commit that a branch or tag names now; without the hub, the one last seen. The ``kind`` is ``model``
    or ``dataset``. Raises HubError if the hub says no, or cannot be asked and never was."""
    wanted = Wanted(id, revision, kind=kind)
    if revision and COMMIT.fullmatch(revision):
        return revision
    try:
        commit = str(_asked(wanted).sha)
    except HubError as error:
        if error.reason in ("revision", "name") or not (known := _cached_commit(wanted)):
            raise
        return known
    _write_ref(wanted, commit)
    return commit


def moved_to(id: str, revision: str | None, kind: str) -> str | None:
    """Return the commit that a branch or tag names now, None if the hub does not tell. Store nothing."""
    try:
        return str(_asked(Wanted(id, revision, kind=kind)).sha)
    except HubError:
        return None


def refusal(wanted: Wanted) -> HubError | None:
    """Ask the hub again why it refuses a file; None if it does not, or the file does not exist."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    try:
        with _explained(wanted):
            url = hf_hub_url(wanted.id, str(wanted.file), repo_type=wanted.kind, revision=wanted.revision)
            get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HubError as error:
        return None if error.reason == "file" else error
    return None


def _asked(wanted: Wanted) -> Any:
    """Return the hub's answer on a repository at a revision: ``sha``, its commit, and ``siblings``, its files.

    Unlike a download, this is tried once: the client would retry an unreachable hub for half a minute.
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
    """Store the commit of a branch or tag where the client looks for it offline."""
    if wanted.revision == commit:
        return
    with contextlib.suppress(OSError):  # a read-only cache is good enough
        _ref(wanted).parent.mkdir(parents=True, exist_ok=True)
        _ref(wanted).write_text(commit)


def _cached_commit(wanted: Wanted) -> str | None:
    """Return the last known commit of a branch or tag."""
    if wanted.revision and COMMIT.fullmatch(wanted.revision):
        return wanted.revision
    try:
        return _ref(wanted).read_text().strip()
    except OSError:
        return None


def _chosen(names: Sequence[str]) -> list[str]:
    """Choose the files to download; pickles only if there are no safetensors."""
    top = [name for name in names if "/" not in name]
    chosen = [name for name in top if any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS)]
    if not any(name.endswith(".safetensors") for name in chosen):
        chosen += [name for name in top if any(fnmatch.fnmatchcase(name, pattern) for pattern in PICKLES)]
    return chosen


def missing_weights(snapshot: Path) -> str | None:
    """Return the first weights file missing in a cached snapshot; None if it is complete."""
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
    """Return the cached path of a repository's file; a download is checked against its checksum."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    with _explained(wanted):
        before = try_to_load_from_cache(wanted.id, str(wanted.file), revision=wanted.revision)
        path = Path(hf_hub_download(wanted.id, str(wanted.file), revision=wanted.revision))
    if str(path) != before:
        _check_sum(path)
    return path


def _check_sum(path: Path) -> None:
    """Compare a download with its checksum, which is its blob's name: SHA-256 of a large file, Git's SHA-1 of others.
    Raises HubError if it differs; the file is removed, or the cache would serve it from now on."""
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
    """Turn what the client raises into one line. A full disk is not the hub's fault and stays as it is."""
    try:
        yield
    except Exception as error:
        if no_room(error):
            raise
        explained = read_only(error) or explain(error, wanted)
        if explained is None:
            raise
        if explained.reason == "corrupt" or "416" in str(error):
            forget_partial(wanted)
        raise explained from None


def forget_partial(wanted: Wanted) -> None:
    """Remove a partial download that is not part of the hub's file."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    with contextlib.suppress(Exception):  # else the next download fails and reports it
        url = hf_hub_url(wanted.id, str(wanted.file), repo_type=wanted.kind, revision=wanted.revision)
        etag = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT).etag
        (_cache_of(wanted) / "blobs" / f"{etag}.incomplete").unlink(missing_ok=True)


# -- from a folder to tensors ---------------------------------------------------------------------------------------


class StoredTensor:
    """A tensor in a file: reads its shape at once, its values on each ``np.asarray``."""

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
    """Yield as :func:`read_tensors`, but leave values on disk: for checkpoints beyond memory."""
    for file, name in names_by_file(folder):
        yield name, StoredTensor(file, name)


def read_tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and value of every tensor of the checkpoint in ``folder``, in one file or in shards.

    Raises:
        FileNotFoundError: no safetensors file. A pickle found there is named but not opened: unpickling runs code.
        UnreadableFile: one of the files or the index is damaged.
    """
    for file in tensor_files(folder):
        yield from tensors_in(file)


def tensors_in(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and value of every tensor of a file, opened anew for each, as what was read stays mapped. Raises
    UnreadableFile if it is damaged."""
    with open_tensors(file) as tensors:
        names = list(tensors.keys())
    for name in names:
        with open_tensors(file) as tensors:
            value = tensors.get_tensor(name)
        yield name, value


def names_by_file(folder: Path) -> Iterator[tuple[Path, str]]:
    """File and name of every tensor of a checkpoint; raises as :func:`read_tensors`."""
    for file in tensor_files(folder):
        with open_tensors(file) as tensors:
            names = list(tensors.keys())
        yield from ((file, name) for name in names)


def tensor_files(folder: Path) -> list[Path]:
    """Return the files with a checkpoint's tensors: those its index names, or the only one.

    Raises:
        FileNotFoundError: as :func:`read_tensors`.
        UnreadableFile: the index is invalid, or names a file elsewhere: a checkpoint must not decide which other
            files of this disk are read.
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
    """The pickles that hold a checkpoint's tensors, as torch writes them; none where there are safetensors. Raises as
    :func:`tensor_files`."""
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
