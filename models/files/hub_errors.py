"""Errors of one line for requests to the Hugging Face hub.

Each names the repository, the revision and the file of a model or data set, and a remedy.
"""

from __future__ import annotations

import difflib
import errno
import http.client
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from models import families

#: Repositories that this project's recipes and texts name, by kind.
KNOWN_REPOSITORIES = {
    "model": tuple(name for family in families.FAMILIES for name in families.family(family).checkpoints),
    "dataset": ("coastalcph/lex_glue", "rajpurkar/squad", "stanfordnlp/imdb"),
}
TITLES = {"model": "model", "dataset": "data set"}
LOGIN = "log in (hf auth login, or HF_TOKEN)"
AGAIN = "run the same command again"
#: End of a remedy if the partial download is kept.
RESUMES = ": it goes on where it was"
#: Remedy for a damaged file of the cache; ``BLOB`` stands for the path of its blob.
FETCH_AGAIN = "delete BLOB, and it is fetched again"


class HubError(FileNotFoundError):
    """A request to the hub failed. The message has one line.

    Attributes:
        reason: ``gated``, ``private`` (or missing: the hub does not distinguish them), ``missing``, ``token``,
            ``revision``, ``file``, ``offline``, ``interrupted``, ``corrupt``, ``cache`` (it cannot be written),
            ``name``, or ``hub`` (any other answer).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.reason = reason


class HubRequest(NamedTuple):
    """A request to the hub.

    Attributes:
        id: name of the repository, ``owner/name``.
        revision: branch, tag, ``refs/pr/N`` or commit; None for the main branch.
        file: name of the file in the repository; None if the request has no file or it is unknown.
        kind: ``model`` or ``dataset``.
    """

    id: str
    revision: str | None = None
    file: str | None = None
    kind: str = "model"

    @property
    def repository(self) -> str:
        """The kind and name of the repository in words, without the revision."""
        return f"the {TITLES[self.kind]} {self.id}"

    @property
    def place(self) -> str:
        """The repository and the revision in words."""
        return f"{self.repository} at revision {self.revision}" if self.revision else self.repository

    @property
    def file_place(self) -> str:
        """The file, if it is known, the repository and the revision in words."""
        return f"{self.file} of {self.place}" if self.file else self.place

    @property
    def page(self) -> str:
        """The address of the hub's page of the repository."""
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{'datasets/' if self.kind == 'dataset' else ''}{self.id}"


def explain_error(error: BaseException, request: HubRequest) -> HubError | None:
    """Return the error of one line for an exception of the hub client; None if it has another cause."""
    import requests
    from huggingface_hub.errors import HFValidationError

    causes = list(_cause_chain(error))
    if hub_error := next((cause for cause in causes if isinstance(cause, HubError)), None):
        return hub_error
    if any(isinstance(cause, HFValidationError) for cause in causes):
        hint = "; its revision is given apart" if "@" in request.id else ""
        return HubError("name", f"{request.id} is neither a folder nor the name of a hub repository (owner/name){hint}")
    if refusal := _find_refusal(causes):
        return _refusal_error(refusal, request)
    if interruption := _interruption_error(causes, request):
        return interruption
    # OfflineModeIsEnabled is a ConnectionError, and LocalEntryNotFoundError is a RequestException.
    is_offline = any(isinstance(cause, requests.RequestException | ConnectionError) for cause in causes)
    return offline_error(request) if is_offline else None


def explain_push_error(error: BaseException, request: HubRequest) -> HubError | None:
    """Return the error of one line for an exception during a push; None if the hub is not the cause."""
    from huggingface_hub.errors import LocalTokenNotFoundError, RepositoryNotFoundError

    causes = list(_cause_chain(error))
    if any(isinstance(cause, LocalTokenNotFoundError) for cause in causes):
        return _login_error(request)
    if (refusal := _find_refusal(causes)) is None:
        hub_error = explain_error(error, request)
        if hub_error is None or hub_error.reason not in ("offline", "interrupted"):
            return hub_error
        return HubError("offline", f"cannot push to {request.id}: {_connection_remedy()}, and {AGAIN}")
    status, answer = refusal.response.status_code, refusal.response.headers.get("X-Error-Message", "")
    if status == 401 and not is_logged_in():
        return _login_error(request)
    if status == 401:
        return HubError(
            "token", f"cannot push to {request.id}: the hub does not know this token; log in again: {LOGIN}"
        )
    if status == 403 or isinstance(refusal, RepositoryNotFoundError):
        owner = request.id.partition("/")[0]
        reason = f"this token may not write there ({answer or 'no rights'})"
        remedy = f"use a token with write access, of an account that is {owner} or may write there"
        return HubError("private", f"cannot push to {request.id}: {reason}; {remedy}")
    if status == 404:
        return HubError("missing", f"cannot push to {request.id}: the hub knows no such owner or branch ({answer})")
    reason = answer or http.client.responses.get(status, "")
    return HubError("hub", f"cannot push to {request.id}: the hub answers {status} ({reason}); {AGAIN} later")


def _login_error(request: HubRequest) -> HubError:
    """Return the error for a push without a token.

    Args:
        request: request to the hub that failed.
    """
    return HubError("token", f"cannot push to {request.id}: not logged in; {LOGIN}")


def _connection_remedy() -> str:
    """Return the reason why the hub was not reached, and the remedy."""
    from huggingface_hub import constants

    return (
        "HF_HUB_OFFLINE is set; unset it"
        if constants.HF_HUB_OFFLINE
        else f"no answer from {constants.ENDPOINT}; connect"
    )


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause of its cause, and so on."""
    ids: set[int] = set()
    while error is not None and id(error) not in ids:
        ids.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


# -- the hub has answered -------------------------------------------------------------------------------------------


def _find_refusal(causes: Iterable[BaseException]) -> Any:
    """Return the first ``requests.HTTPError`` with a response of the hub; None without a response.

    Args:
        causes: exceptions of the request, from the last to the first.
    """
    import requests

    refusals = (cause for cause in causes if isinstance(cause, requests.HTTPError) and cause.response is not None)
    return next(refusals, None)


def _refusal_error(refusal: Any, request: HubRequest) -> HubError:
    """Return the error for a response of the hub that is not a success.

    The client has an exception class for most of them. If it gives up its retries, it raises a plain HTTPError.
    """
    from huggingface_hub import errors

    status, answer = refusal.response.status_code, refusal.response.headers.get("X-Error-Message", "")
    if request.file is None and (match := re.search(r"/resolve/[^/]+/([^?]+)", refusal.response.url or "")):
        request = request._replace(file=unquote(match.group(1)))
    if isinstance(refusal, errors.GatedRepoError):
        return _gated_error(request)
    if answer.startswith("Invalid credentials"):
        reason = "the hub does not know the token that was sent with it: it is wrong or has expired"
        return HubError(
            "token", f"cannot read {request.place}: {reason}; log in again (hf auth login), or change HF_TOKEN"
        )
    if isinstance(refusal, errors.RevisionNotFoundError):
        revision = request.revision or "main"
        return HubError("revision", f"{request.repository} has no revision {revision}{_list_revisions(request)}")
    if isinstance(refusal, errors.EntryNotFoundError):
        return missing_file_error(request)
    if isinstance(refusal, errors.RepositoryNotFoundError) or status in (401, 404):
        return _missing_repository_error(request)
    reason = answer or http.client.responses.get(status, "")
    if status == 403:
        return HubError("private", f"cannot read {request.place}: the hub forbids it: {reason}; see {request.page}")
    return HubError("hub", f"cannot read {request.file_place}: the hub answers {status} ({reason}); {AGAIN} later")


def _gated_error(request: HubRequest) -> HubError:
    """Return the error for a repository whose owner grants access.

    Args:
        request: request to the hub that failed.
    """
    problem = f"{request.repository} is gated: its files are for those who were granted access"
    remedy = f"ask for it at {request.page}"
    if is_logged_in():
        return HubError("gated", f"{problem}; {remedy}, and run again when it is granted to the account of this token")
    return HubError("gated", f"{problem}; {remedy}, then {LOGIN}; now there is no login here")


def _missing_repository_error(request: HubRequest) -> HubError:
    """Return the error for a repository that does not exist or is private.

    Args:
        request: request to the hub that failed.
    """
    names = similar_names(request.id, request.kind)
    hint = f"did you mean {' or '.join(names)}" if names else "check its name"
    if is_logged_in():
        reason = "or is private and not for the account of this token"
        return HubError("missing", f"{request.repository} does not exist, {reason}; {hint}; see {request.page}")
    reason = "or is private: without a login the hub does not say which"
    return HubError("private", f"{request.repository} does not exist, {reason}; {hint}; if it is private, {LOGIN}")


def missing_file_error(request: HubRequest) -> HubError:
    """Return the error for a repository that lacks the requested file.

    Args:
        request: request to the hub that failed.
    """
    consequence = {"config.json": ", so it is no checkpoint of transformers"}.get(request.file or "", "")
    return HubError("file", f"{request.place} has no {request.file or 'such file'}{consequence}; see {request.page}")


def _list_revisions(request: HubRequest) -> str:
    """Return the end of a message that lists some revisions of the repository, the most similar first.

    Args:
        request: request to the hub that failed.
    """
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(request.id, repo_type=request.kind, include_pull_requests=True)
    except Exception:  # The list is only a hint; the original error is reported in any case.
        return f"; see {request.page}/tree/main"
    names = [ref.name for ref in (*refs.branches, *refs.tags)] + [ref.ref for ref in refs.pull_requests or []]
    similar_revisions = difflib.get_close_matches(request.revision or "", names, 3)
    revisions = ", ".join(dict.fromkeys([*similar_revisions, *names][:8]))
    return f"; it has {revisions}, and the commits at {request.page}/commits/main"


def is_logged_in() -> bool:
    """Return whether this machine has a token for the hub."""
    from huggingface_hub import get_token

    return get_token() is not None


def similar_names(id: str, kind: str) -> list[str]:
    """Return at most two similar names of repositories that are cached or that this project names.

    Args:
        id: name of a repository, ``owner/name``.
        kind: ``model`` or ``dataset``.
    """
    from huggingface_hub import constants

    folders = Path(constants.HF_HUB_CACHE).glob(f"{kind}s--*/snapshots")
    cached_names = [folder.parent.name.removeprefix(f"{kind}s--").replace("--", "/") for folder in folders]
    known_names = {name.lower(): name for name in (*cached_names, *KNOWN_REPOSITORIES[kind]) if name != id}
    without_owner = {name.rpartition("/")[2].lower(): name for name in known_names.values()}
    matches = difflib.get_close_matches(id.lower(), known_names, 2, 0.8)
    if not matches:  # the user may have forgotten the owner
        matches = difflib.get_close_matches(id.rpartition("/")[2].lower(), without_owner, 1, 0.85)
        return list(dict.fromkeys(without_owner[name] for name in matches))
    return list(dict.fromkeys(known_names[name] for name in matches))


# -- the hub has not answered, or not to the end --------------------------------------------------------------------


def offline_error(request: HubRequest) -> HubError:
    """Return the error for a file that is not in the cache if the hub cannot be reached.

    Args:
        request: request to the hub that failed.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        reason, remedy = "HF_HUB_OFFLINE is set", "unset it"
    else:
        reason, remedy = f"{constants.ENDPOINT} cannot be reached", "connect"
    return HubError(
        "offline",
        f"offline and not cached: {request.file_place} is not in {constants.HF_HUB_CACHE}, and {reason}; {remedy} and "
        f"{AGAIN}, or copy the cache of a machine that has it",
    )


def _interruption_error(causes: list[BaseException], request: HubRequest) -> HubError | None:
    """Return the error for a download that stalled, was cut off or has a wrong size; None for other exceptions.

    Args:
        causes: exceptions of the download, from the last to the first.
        request: request to the hub that failed.
    """
    import requests
    from urllib3.exceptions import ReadTimeoutError

    if any(str(cause).startswith("Consistency check failed") for cause in causes):
        return HubError(
            "corrupt",
            f"{request.file_place} came with another size than the hub announced; what came was removed: {AGAIN} to "
            "fetch it",
        )
    # A connection that was never established raises other errors: ConnectTimeout, or ConnectionError by MaxRetryError.
    has_stalled = any(isinstance(cause, ReadTimeoutError) for cause in causes)
    if not has_stalled and not any(isinstance(cause, requests.exceptions.ChunkedEncodingError) for cause in causes):
        return None
    reason = "no more bytes came" if has_stalled else "the connection was closed"
    return HubError("interrupted", f"the download of {request.file_place} was interrupted: {reason}; {AGAIN}{RESUMES}")


def is_disk_full(error: BaseException) -> bool:
    """Return whether an exception has the cause that the disk is full, or a quota used up."""
    return _has_system_error(error, errno.ENOSPC, errno.EDQUOT)


def read_only_error(error: BaseException) -> HubError | None:
    """Return the error for a cache that cannot be written; None if the exception has another cause."""
    from huggingface_hub import constants

    if not _has_system_error(error, errno.EROFS, errno.EACCES):
        return None
    return HubError("cache", f"the hub's cache {constants.HF_HUB_CACHE} cannot be written; set HF_HUB_CACHE to another")


def _has_system_error(error: BaseException, *error_numbers: int) -> bool:
    """Return whether an exception or one of its causes is an OSError with one of the numbers."""
    return any(isinstance(cause, OSError) and cause.errno in error_numbers for cause in _cause_chain(error))


# -- files of the cache ---------------------------------------------------------------------------------------------


class CachedFile(NamedTuple):
    """A file of a cached snapshot.

    Attributes:
        request: repository, commit and name of the file.
        blob: path of the file behind the link in the snapshot.
    """

    request: HubRequest
    blob: Path


def find_cached_file(path: str | os.PathLike) -> CachedFile | None:
    """Return the file of a path in the hub's cache; None for a path elsewhere."""
    match = re.search(
        r"(?:^|/)(model|dataset)s--([^/]+)/snapshots/([0-9a-f]{40})/(.+)$", Path(path).absolute().as_posix()
    )
    if match is None:
        return None
    kind, id, commit, name = match.groups()
    return CachedFile(HubRequest(id.replace("--", "/", 1), commit, name, kind), Path(os.path.realpath(path)))


def describe_hub_file(path: str | os.PathLike, remedy: str) -> str:
    """Return the origin of a cached file and the remedy, as the end of a message; empty for any other file.

    Args:
        path: path of a file.
        remedy: remedy; ``BLOB`` stands for the path of the file's blob.
    """
    file = find_cached_file(path)
    return "" if file is None else f" ({file.request.file_place}); {remedy.replace('BLOB', str(file.blob))}"


def checksum_error(path: Path) -> HubError:
    """Return the error for a removed download whose checksum was wrong."""
    file = find_cached_file(path)
    name = file.request.file_place if file else str(path)
    return HubError(
        "corrupt",
        f"{name} came damaged: its checksum is not the one that the hub announced; it was removed: {AGAIN} to fetch it",
    )
