"""One-line errors for what can go wrong between the Hugging Face hub and this machine, with models and data sets: each
names the repository, revision and file, and says what to do.
"""

from __future__ import annotations

import difflib
import errno
import http.client
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from models import families

#: The checkpoints and data sets that this project's recipes and texts name.
WELL_KNOWN = {
    "model": tuple(name for family in families.FAMILIES for name in families.family(family).checkpoints),
    "dataset": ("coastalcph/lex_glue", "rajpurkar/squad", "stanfordnlp/imdb"),
}
TITLES = {"model": "model", "dataset": "data set"}
LOGIN = "log in (hf auth login, or HF_TOKEN)"
AGAIN = "run the same command again"
#: For a partial download that is kept.
GOES_ON = ": it goes on where it was"
#: What to do about a damaged file of the cache.
FETCH_AGAIN = "delete BLOB, and it is fetched again"


class HubError(FileNotFoundError):
    """The hub did not give what was asked for. The message fits on a line.

    Attributes:
        reason: ``gated``, ``private`` (or missing: the hub does not say which), ``missing``, ``token``, ``revision``,
            ``file``, ``offline``, ``interrupted``, ``corrupt``, ``cache`` (it cannot be written), ``name`` or ``hub``
            (any other answer).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.reason = reason


class Wanted(NamedTuple):
    """A request to the hub.

    Attributes:
        kind: ``model`` or ``dataset``.
        revision: as it was written; None for the main branch.
        file: None if it is unknown which one failed.
    """

    id: str
    revision: str | None = None
    file: str | None = None
    kind: str = "model"

    @property
    def place(self) -> str:
        """Repository and revision, in words."""
        at = f" at revision {self.revision}" if self.revision else ""
        return f"the {TITLES[self.kind]} {self.id}{at}"

    @property
    def page(self) -> str:
        """Where the hub shows the repository."""
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{'datasets/' if self.kind == 'dataset' else ''}{self.id}"


def explain(problem: BaseException, wanted: Wanted) -> HubError | None:
    """Return the error to raise instead of a hub client's; None if the hub is not the cause."""
    from huggingface_hub.errors import HFValidationError

    causes = list(_chain(problem))
    if found := next((cause for cause in causes if isinstance(cause, HubError)), None):
        return found
    if any(isinstance(cause, HFValidationError) for cause in causes):
        apart = "; its revision is given apart" if "@" in wanted.id else ""
        return HubError("name", f"{wanted.id} is neither a folder nor the name of a hub repository (owner/name){apart}")
    for cause in causes:
        response = getattr(cause, "response", None)
        if response is not None and hasattr(response, "status_code"):
            return _answered(response, wanted)
    if interrupted := _interrupted(causes, wanted):
        return interrupted
    return offline(wanted) if _is_offline(causes) else None


def explain_push(problem: BaseException, wanted: Wanted) -> HubError | None:
    """As :func:`explain`, for a write to the hub."""
    from huggingface_hub.errors import LocalTokenNotFoundError

    causes = list(_chain(problem))
    if any(isinstance(cause, LocalTokenNotFoundError) for cause in causes):
        return _not_logged_in(wanted)
    response = next((found for cause in causes if (found := getattr(cause, "response", None)) is not None), None)
    if response is None:
        found = explain(problem, wanted)
        if found is None or found.reason not in ("offline", "interrupted"):
            return found
        return HubError("offline", f"cannot push to {wanted.id}: {_unreachable()}, and {AGAIN}")
    status, code = response.status_code, response.headers.get("X-Error-Code")
    said = " ".join((response.headers.get("X-Error-Message") or "").split())
    if status == 401 and not logged_in():
        return _not_logged_in(wanted)
    if status == 401:
        return HubError("token", f"cannot push to {wanted.id}: the hub does not know this token; log in again: {LOGIN}")
    if status == 403 or (status == 404 and code == "RepoNotFound"):
        owner = wanted.id.partition("/")[0]
        why = f"this token may not write there ({said or 'no rights'})"
        right = f"use a token with write access, of an account that is {owner} or may write there"
        return HubError("private", f"cannot push to {wanted.id}: {why}; {right}")
    if status == 404:
        return HubError("missing", f"cannot push to {wanted.id}: the hub knows no such owner or branch ({said})")
    reason = said or http.client.responses.get(status, "")
    return HubError("hub", f"cannot push to {wanted.id}: the hub answers {status} ({reason}); {AGAIN} later")


def _not_logged_in(wanted: Wanted) -> HubError:
    return HubError("token", f"cannot push to {wanted.id}: not logged in; {LOGIN}")


def _unreachable() -> str:
    from huggingface_hub import constants

    return (
        "HF_HUB_OFFLINE is set; unset it"
        if constants.HF_HUB_OFFLINE
        else f"no answer from {constants.ENDPOINT}; connect"
    )


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield the problem and the chain of its causes."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        yield problem
        problem = problem.__cause__ or problem.__context__


# -- the hub has answered -------------------------------------------------------------------------------------------


def _answered(response: Any, wanted: Wanted) -> HubError:
    """Return the error that an answer of the hub means."""
    status, code = response.status_code, response.headers.get("X-Error-Code")
    said = " ".join((response.headers.get("X-Error-Message") or "").split())
    if wanted.file is None and (named := re.search(r"/resolve/[^/]+/([^?]+)", response.url or "")):
        wanted = wanted._replace(file=unquote(named.group(1)))
    if code == "GatedRepo":
        return _gated(wanted)
    if said.startswith("Invalid credentials"):
        refused = "the hub does not know the token that was sent with it: it is wrong or has expired"
        return HubError(
            "token", f"cannot read {wanted.place}: {refused}; log in again (hf auth login), or change HF_TOKEN"
        )
    if code == "RevisionNotFound":
        return HubError("revision", f"{_bare(wanted)} has no revision {wanted.revision or 'main'}{_revisions(wanted)}")
    if code == "EntryNotFound":
        return missing_file(wanted)
    if status == 401 or (status == 404 and code in (None, "RepoNotFound")):
        return _private_or_missing(wanted)
    if status == 403:
        return HubError(
            "private", f"cannot read {wanted.place}: the hub forbids it: {said or response.reason}; see {wanted.page}"
        )
    reason = said or http.client.responses.get(status, "")
    return HubError("hub", f"cannot read {_file(wanted)}: the hub answers {status} ({reason}); {AGAIN} later")


def _gated(wanted: Wanted) -> HubError:
    ask = f"{_bare(wanted)} is gated: its files are for those who were granted access; ask for it at {wanted.page}"
    if logged_in():
        return HubError("gated", f"{ask}, and run again when it is granted to the account of this token")
    return HubError("gated", f"{ask}, then {LOGIN}; now there is no login here")


def _private_or_missing(wanted: Wanted) -> HubError:
    near = near_names(wanted.id, wanted.kind)
    meant = f"did you mean {' or '.join(near)}" if near else "check its name"
    if logged_in():
        why = "or is private and not for the account of this token"
        return HubError("missing", f"{_bare(wanted)} does not exist, {why}; {meant}; see {wanted.page}")
    why = "or is private: without a login the hub does not say which"
    return HubError("private", f"{_bare(wanted)} does not exist, {why}; {meant}; if it is private, {LOGIN}")


def missing_file(wanted: Wanted) -> HubError:
    """The repository lacks a needed file."""
    what = {"config.json": ", so it is no checkpoint of transformers"}.get(wanted.file or "", "")
    return HubError("file", f"{wanted.place} has no {wanted.file or 'such file'}{what}; see {wanted.page}")


def _bare(wanted: Wanted) -> str:
    """The repository, whatever the revision."""
    return wanted._replace(revision=None).place


def _file(wanted: Wanted) -> str:
    return f"{wanted.file} of {wanted.place}" if wanted.file else wanted.place


def _revisions(wanted: Wanted) -> str:
    """The revisions that a repository has, if the hub tells."""
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(wanted.id, repo_type=wanted.kind, include_pull_requests=True)
    except Exception:  # only a hint: whatever goes wrong here, the original error is the one to report
        return f"; see {wanted.page}/tree/main"
    names = [ref.name for ref in (*refs.branches, *refs.tags)] + [ref.ref for ref in refs.pull_requests or []]
    near = difflib.get_close_matches(wanted.revision or "", names, 3)
    listed = ", ".join(dict.fromkeys([*near, *names][:8]))
    return f"; it has {listed}, and the commits at {wanted.page}/commits/main"


def logged_in() -> bool:
    """Whether this machine has a token for the hub."""
    from huggingface_hub import get_token

    return get_token() is not None


def near_names(id: str, kind: str) -> list[str]:
    """Return up to two similar names, from the local cache's repositories and those that this project names."""
    from huggingface_hub import constants

    folders = Path(constants.HF_HUB_CACHE).glob(f"{kind}s--*/snapshots")
    cached = [folder.parent.name.removeprefix(f"{kind}s--").replace("--", "/") for folder in folders]
    known = {name.lower(): name for name in (*cached, *WELL_KNOWN[kind]) if name != id}
    bare = {name.rpartition("/")[2].lower(): name for name in known.values()}
    near = difflib.get_close_matches(id.lower(), known, 2, 0.8)
    same = difflib.get_close_matches(id.rpartition("/")[2].lower(), bare, 1, 0.85)  # the owner forgotten
    return list(dict.fromkeys([known[name] for name in near] or [bare[name] for name in same]))


# -- the hub has not answered, or not to the end --------------------------------------------------------------------


def _is_offline(causes: list[BaseException]) -> bool:
    import requests
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    kinds = (LocalEntryNotFoundError, OfflineModeIsEnabled, requests.RequestException, ConnectionError)
    return any(isinstance(cause, kinds) for cause in causes)


def offline(wanted: Wanted) -> HubError:
    """Not in the cache, and the hub cannot be asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        why, way = "HF_HUB_OFFLINE is set", "unset it"
    else:
        why, way = f"{constants.ENDPOINT} cannot be reached", "connect"
    return HubError(
        "offline",
        f"offline and not cached: {_file(wanted)} is not in {constants.HF_HUB_CACHE}, and {why}; {way} and {AGAIN}, "
        "or copy the cache of a machine that has it",
    )


def _interrupted(causes: list[BaseException], wanted: Wanted) -> HubError | None:
    """A download that stalled, was cut off, or had another size than announced."""
    import requests

    texts = [str(cause) for cause in causes]
    if any(text.startswith("Consistency check failed") for text in texts):
        return HubError(
            "corrupt",
            f"{_file(wanted)} came with another size than the hub announced; what came was removed: {AGAIN} to fetch "
            "it",
        )
    # A connection never made is not one of these: ConnectTimeout, ConnectionError by MaxRetryError.
    stalled = any("Read timed out" in text for text in texts)
    if not stalled and not any(isinstance(cause, requests.exceptions.ChunkedEncodingError) for cause in causes):
        return None
    how = "no more bytes came" if stalled else "the connection was closed"
    return HubError("interrupted", f"the download of {_file(wanted)} was interrupted: {how}; {AGAIN}{GOES_ON}")


def no_room(problem: BaseException) -> bool:
    """Whether the disk is full: no fault of the hub."""
    return _system_error(problem, errno.ENOSPC, errno.EDQUOT)


def read_only(problem: BaseException) -> HubError | None:
    """Return the error for a cache that cannot be written, if that failed."""
    from huggingface_hub import constants

    if not _system_error(problem, errno.EROFS, errno.EACCES):
        return None
    return HubError("cache", f"the hub's cache {constants.HF_HUB_CACHE} cannot be written; set HF_HUB_CACHE to another")


def _system_error(problem: BaseException, *numbers: int) -> bool:
    return any(isinstance(cause, OSError) and cause.errno in numbers for cause in _chain(problem))


# -- files of the cache ---------------------------------------------------------------------------------------------


class CachedFile(NamedTuple):
    """A file of a cached snapshot, and the blob that its link leads to."""

    wanted: Wanted
    blob: Path


def cached_file(path: str | os.PathLike) -> CachedFile | None:
    """Return the file that a path in the hub's cache names; else None."""
    parts = re.search(
        r"(?:^|/)(model|dataset)s--([^/]+)/snapshots/([0-9a-f]{40})/(.+)$", Path(path).absolute().as_posix()
    )
    if parts is None:
        return None
    kind, id, commit, name = parts.groups()
    return CachedFile(Wanted(id.replace("--", "/", 1), commit, name, kind), Path(os.path.realpath(path)))


def from_hub(path: str | os.PathLike, way_out: str) -> str:
    """Say where a cached file is from and what to do about it; "" for any other file. ``BLOB`` in ``way_out`` stands
    for the cached blob's path."""
    found = cached_file(path)
    return "" if found is None else f" ({_file(found.wanted)}); {way_out.replace('BLOB', str(found.blob))}"


def corrupt(path: Path) -> HubError:
    """A download, now removed, whose checksum is not the announced one."""
    found = cached_file(path)
    named = _file(found.wanted) if found else str(path)
    return HubError(
        "corrupt",
        f"{named} came damaged: its checksum is not the one that the hub announced; it was removed: {AGAIN} to fetch "
        "it",
    )
