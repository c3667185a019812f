"""Run a small Hugging Face hub on 127.0.0.1 for the real clients of `huggingface_hub`, `datasets` and `transformers`.

The clients read ``HF_ENDPOINT`` when they are imported, so they run in a child process with
:meth:`LoopbackHub.environment`::

    with LoopbackHub() as hub:
        repository = hub.add("owner/name", folder)              # a branch "main" with one commit
        repository.commit({"config.json": b"{}"}, "refs/pr/1")  # another revision
        repository.faults["model.safetensors"] = Cut(1000)      # a fault, which may change while the hub runs
        subprocess.run([...], env=hub.environment(tmp_path))
        assert hub.requests == []

It responds like the hub: errors with their ``X-Error-Code``, and large files as a redirect to their storage,
with ``X-Linked-Size`` and ``X-Linked-ETag``. Files are read from the disk while they are sent.

Tokens with the right to write (``hub.writers``) can create repositories and branches and upload files. Large files use
the Git LFS protocol, and a commit without its LFS objects is refused.

A client keeps an interrupted download in pieces of 10 MiB, so only longer files can resume.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, quote, unquote, urlsplit

CHUNK = 2**20
#: Suffixes of files that the hub stores as Git LFS objects, and the size above which it does so for all files.
LFS_SUFFIXES = (".bin", ".safetensors", ".h5", ".ot", ".model", ".parquet", ".arrow", ".gz", ".zip")
LFS_BYTES = 10 * 2**20

API = re.compile(r"/api/(model|dataset)s/([^/]+(?:/[^/]+)?)(?:/(revision|tree|paths-info|refs)(?:/([^/]+)(/.+)?)?)?/?")
FILE = re.compile(r"/(datasets/)?([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)")
WRITE = re.compile(r"/api/models/([^/]+/[^/]+)/(branch|preupload|commit)/([^/]+)")
LFS_BATCH = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch")
STORAGE = re.compile(r"/storage/(model|dataset)/([^/]+)/([0-9a-f]{40})/(.+)")


# -- repositories ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A file of a commit: its bytes, or their path on the disk, which is read when they are sent."""

    source: bytes | Path
    size: int
    sha1: str
    sha256: str
    lfs: bool

    @classmethod
    def of(cls, name: str, source: bytes | str | Path) -> File:
        source = source.encode() if isinstance(source, str) else source
        size = source.stat().st_size if isinstance(source, Path) else len(source)
        sha1, sha256 = hashlib.sha1(b"blob %d\0" % size), hashlib.sha256()
        with _open_source(source) as stream:
            while chunk := stream.read(CHUNK):
                sha1.update(chunk)
                sha256.update(chunk)
        lfs = name.endswith(LFS_SUFFIXES) or size > LFS_BYTES
        return cls(source, size, sha1.hexdigest(), sha256.hexdigest(), lfs)

    @property
    def etag(self) -> str:
        """The name of the file in a client's cache."""
        return self.sha256 if self.lfs else self.sha1

    def pointer(self) -> bytes:
        """Return the text that Git stores for an LFS object, and that a clone without LFS contains."""
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    def entry(self, path: str) -> dict[str, Any]:
        """Return the entry of the file in a list of the hub."""
        lfs = {"lfs": {"oid": self.sha256, "size": self.size, "pointerSize": len(self.pointer())}} if self.lfs else {}
        return {"type": "file", "oid": self.sha1, "size": self.size, "path": path, **lfs}


def _open_source(source: bytes | Path) -> contextlib.AbstractContextManager[BinaryIO]:
    return source.open("rb") if isinstance(source, Path) else io.BytesIO(source)


def _files(content: Path | Mapping[str, bytes | str | Path]) -> dict[str, File]:
    if isinstance(content, Path):
        content = {path.relative_to(content).as_posix(): path for path in content.rglob("*") if path.is_file()}
    return {name: File.of(name, source) for name, source in sorted(content.items())}


@dataclass
class Repository:
    """A repository of models or data, with its commits, its readers and its faults.

    Attributes:
        refs: branch, tag or ``refs/pr/N`` -> commit.
        access: ``public``; ``private`` (as missing for all but ``readers``); ``gated`` (listed, but its files are for
            ``readers`` only); ``missing``.
        readers: tokens that may read it.
        faults: file -> :class:`Stall`, :class:`Cut`, :class:`Corrupt`, :class:`WrongSize`, :class:`Pointer` or
            :class:`Status`; ``None`` in a file's place: for every request of the repository (:class:`Status` only).
        messages: messages of the uploaded commits.
    """

    kind: str
    id: str
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    access: str = "public"
    readers: set[str] = field(default_factory=set)
    faults: dict[str | None, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, content: Path | Mapping[str, bytes | str | Path], ref: str = "main") -> str:
        """Add a commit with exactly these files (a folder, or name -> content or file), and move ``ref`` to it."""
        files = _files(content)
        listing = json.dumps(
            [self.kind, self.id, len(self.commits), [(name, file.sha1) for name, file in files.items()]]
        )
        commit = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[commit] = files
        self.refs[ref] = commit
        return commit

    def at(self, revision: str) -> str | None:
        """Return the commit of a branch, a tag, a pull request or a commit hash."""
        return revision if revision in self.commits else self.refs.get(revision)


# -- faults ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stall:
    """Send nothing after byte ``at`` of the file, and keep the connection open."""

    at: int


@dataclass
class Cut:
    """Close the connection at byte ``at`` of the file, ``times`` times, or always if it is None."""

    at: int
    times: int | None = None


@dataclass(frozen=True)
class Corrupt:
    """Change byte ``at``, so that the file does not match its checksum."""

    at: int


@dataclass(frozen=True)
class WrongSize:
    """Announce ``more`` bytes than the file has (fewer, if negative)."""

    more: int


@dataclass(frozen=True)
class Pointer:
    """Send the Git LFS pointer instead of the file."""


@dataclass(frozen=True)
class Status:
    """Answer with this status, with ``X-Error-Code`` if a code is set, and with ``headers`` such as ``Retry-After``."""

    status: int
    code: str | None = None
    message: str = "told to"
    headers: tuple[tuple[str, str], ...] = ()


# -- the hub --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request of a client. ``start``: the first byte of a Range request. ``token``: the token of the client."""

    method: str
    path: str
    status: int
    start: int | None
    token: str | None


class LoopbackHub:
    """The hub; a context manager. See the module.

    Attributes:
        requests: all requests so far, in order; tests may clear it.
        tokens: tokens of the users of the hub; other tokens are invalid.
        page: entries to a page of a repository's tree.
        writers: token -> the owners under whose names it may write.
        uploaded: the uploaded LFS objects, by their SHA-256.
        refusals: part of a path -> fault of all POST requests whose path contains it.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.requests: list[Request] = []
        self.tokens: set[str] = set()
        self.page = 1000
        self.writers: dict[str, set[str]] = {}
        self.uploaded: dict[str, bytes] = {}
        self.refusals: dict[str, Status] = {}
        self.closing = threading.Event()
        self._server: _Server | None = None

    def __enter__(self) -> LoopbackHub:
        self.closing.clear()
        self._server = _Server(("127.0.0.1", 0), _Handler, hub=self)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._server.connections):  # a client may have kept a connection for its next request
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def endpoint(self) -> str:
        """Value of ``HF_ENDPOINT`` for clients."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """Return the environment of a child process that uses this hub and has its cache in ``home``.

        Args:
            more: further variables, such as ``HF_TOKEN`` or ``HF_HUB_OFFLINE="1"``.
        """
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        variables = {
            name: value
            for name, value in variables.items()
            if name.lower() not in ("http_proxy", "https_proxy", "all_proxy")
        }
        return {
            **variables,
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "10",
            "HF_HUB_ETAG_TIMEOUT": "10",
            "NO_PROXY": "127.0.0.1",
            **more,
        }

    def add(
        self, id: str, content: Path | Mapping[str, bytes | str | Path], kind: str = "model", ref: str = "main"
    ) -> Repository:
        """Add a repository with one commit, and return it.

        Args:
            content: a folder, or name -> content or file.
            kind: ``model`` or ``dataset``.
        """
        repository = self.repositories[kind, id] = Repository(kind, id)
        repository.commit(content, ref)
        return repository

    def requests_with(self, part: str, method: str | None = None) -> list[Request]:
        """Return the requests whose unquoted path contains this part."""
        return [request for request in self.requests if part in request.path and method in (None, request.method)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, hub: LoopbackHub) -> None:
        self.hub = hub
        self.connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that have disconnected."""


class _RefusedError(Exception):
    def __init__(self, status: int, code: str | None, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    server: _Server

    @property
    def hub(self) -> LoopbackHub:
        return self.server.hub

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        """Print nothing on the terminal."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        body = self._body()
        self._answer(lambda path: self._post(path, body))

    def do_PUT(self) -> None:
        body = self._body()
        self._answer(lambda path: self._receive_lfs_object(path, body))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _post(self, path: str, body: bytes) -> None:
        for part, fault in self.hub.refusals.items():
            if part in path:
                raise _RefusedError(fault.status, fault.code, fault.message, dict(fault.headers))
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif match := LFS_BATCH.fullmatch(path):
            self._lfs_batch(self._writable_repository(unquote(match[1])), json.loads(body))
        elif match := WRITE.fullmatch(path):
            name, action, revision = map(unquote, match.groups())
            {"branch": self._branch, "preupload": self._preupload, "commit": self._take_commit}[action](
                self._writable_repository(name), revision, body
            )
        else:
            self._api(path, parse_qs(body.decode()))

    def _answer(self, respond: Callable[[str], None]) -> None:
        path = urlsplit(self.path).path
        try:
            respond(path)
        except _RefusedError as error:
            body = json.dumps({"error": str(error)}).encode()
            self._start(error.status, len(body), {"Content-Type": "application/json", **error.headers})
            self._send(body)

    def _get(self, path: str) -> None:
        if match := STORAGE.fullmatch(path):
            kind, name, commit, file = map(unquote, match.groups())
            self._send_stored_file(self.hub.repositories[kind, name], commit, file)
        elif path.startswith("/api/"):
            self._api(path, {})
        elif match := FILE.fullmatch(path):
            dataset, name, revision, file = match.groups()
            self._resolve("dataset" if dataset else "model", unquote(name), unquote(revision), unquote(file))
        else:
            raise _RefusedError(404, None, "Not Found")

    # -- access and commits

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip() or None

    def _repository(self, kind: str, name: str, files: bool) -> Repository:
        """Return the repository if the client may read it; ``files``: the client reads files, not only their list."""
        token = self._token()
        if token is not None and token not in self.hub.tokens:
            raise _RefusedError(401, None, "Invalid credentials in Authorization header")
        repository = self.hub.repositories.get((kind, name))
        reader = repository is not None and token in repository.readers
        if repository is None or repository.access == "missing" or (repository.access == "private" and not reader):
            if token is None:
                raise _RefusedError(401, None, "Invalid username or password.")
            raise _RefusedError(404, "RepoNotFound", "Repository not found")
        if repository.access == "gated" and files and not reader:
            message = f"Access to {kind} {name} is restricted."
            raise _RefusedError(401 if token is None else 403, "GatedRepo", message)
        self._raise_fault(repository, None)
        return repository

    def _raise_fault(self, repository: Repository, file: str | None) -> None:
        if isinstance(fault := repository.faults.get(file), Status):
            raise _RefusedError(fault.status, fault.code, fault.message, dict(fault.headers))

    def _commit(self, repository: Repository, revision: str) -> str:
        commit = repository.at(revision)
        if commit is None:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    # -- responses of the API

    def _api(self, path: str, form: Mapping[str, list[str]]) -> None:
        if not (match := API.fullmatch(path)):
            raise _RefusedError(404, None, "Not Found")
        kind, name, action, revision, folder = match.groups()
        repository = self._repository(kind, unquote(name), files=False)
        if action == "refs":
            return self._json(_refs(repository))
        commit = self._commit(repository, unquote(revision or "main"))
        if action == "tree":
            return self._tree(repository.commits[commit], unquote(folder or "").strip("/"))
        if action == "paths-info":
            return self._json(list(_paths_info(repository.commits[commit], form.get("paths", []))))
        return self._json(_info(repository, commit))

    def _tree(self, files: Mapping[str, File], folder: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = _entries(files, folder, recursive)
        if folder and not entries:
            raise _RefusedError(404, "EntryNotFound", f"{folder} does not exist")
        first = int(query.get("cursor", ["0"])[0])
        headers = {}
        if (later := first + self.hub.page) < len(entries):
            path = urlsplit(self.path).path
            parameters = f"recursive={str(recursive).lower()}&cursor={later}"
            headers["Link"] = f'<{self.hub.endpoint}{path}?{parameters}>; rel="next"'
        self._json(entries[first:later], headers)

    def _json(self, content: Any, headers: Mapping[str, str] | None = None, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self._start(status, len(body), {"Content-Type": "application/json", **(headers or {})})
        self._send(body)

    # -- uploads

    def _may_write(self, owner: str) -> None:
        token = self._token()
        if token is None:
            raise _RefusedError(401, None, "Invalid username or password.")
        if token not in self.hub.tokens:
            raise _RefusedError(401, None, "Invalid credentials in Authorization header")
        if owner not in self.hub.writers.get(token, ()):
            raise _RefusedError(
                403, None, f'You don\'t have the rights to create a model under the namespace "{owner}"'
            )

    def _writable_repository(self, name: str) -> Repository:
        repository = self._repository("model", name, files=True)
        self._may_write(name.partition("/")[0])
        return repository

    def _create(self, request: Mapping[str, Any]) -> None:
        self._may_write(request["organization"])
        name = f"{request['organization']}/{request['name']}"
        if ("model", name) in self.hub.repositories:
            return self._json({"error": "You already created this model repo", "url": self._url(name)}, status=409)
        access = "private" if request.get("private") else "public"
        repository = Repository("model", name, access=access, readers={self._token() or ""})
        repository.commit({".gitattributes": "*.safetensors filter=lfs\n"})
        self.hub.repositories["model", name] = repository
        self._json({"url": self._url(name), "name": name})

    def _url(self, name: str) -> str:
        return f"{self.hub.endpoint}/{name}"

    def _branch(self, repository: Repository, branch: str, body: bytes) -> None:
        if branch in repository.refs:
            raise _RefusedError(409, None, f"Reference already exists: refs/heads/{branch}")
        repository.refs[branch] = repository.refs["main"]
        self._json({})

    def _preupload(self, repository: Repository, revision: str, body: bytes) -> None:
        existing_files = repository.commits[self._commit(repository, revision)]
        files = []
        for file in json.loads(body)["files"]:
            path, existing_file = file["path"], existing_files.get(file["path"])
            large = path.endswith(LFS_SUFFIXES) or file["size"] > LFS_BYTES
            oid = {"oid": existing_file.etag} if existing_file else {}
            files.append({"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, **oid})
        self._json({"files": files})

    def _lfs_batch(self, repository: Repository, request: Mapping[str, Any]) -> None:
        assert request["operation"] == "upload" and request["hash_algo"] == "sha256"
        objects: list[dict[str, Any]] = [
            {"oid": lfs_object["oid"], "size": lfs_object["size"]} for lfs_object in request["objects"]
        ]
        for lfs_object in objects:
            if lfs_object["oid"] not in self.hub.uploaded:
                lfs_object["actions"] = {"upload": {"href": f"{self.hub.endpoint}/lfs-upload/{lfs_object['oid']}"}}
        self._json({"transfer": "basic", "objects": objects})

    def _receive_lfs_object(self, path: str, body: bytes) -> None:
        oid = path.removeprefix("/lfs-upload/")
        if hashlib.sha256(body).hexdigest() != oid:
            raise _RefusedError(400, None, "the content is not the one that was announced")
        self.hub.uploaded[oid] = body
        self._json({})

    def _take_commit(self, repository: Repository, revision: str, body: bytes) -> None:
        existing_files = repository.commits[self._commit(repository, revision)]
        content: dict[str, bytes | str | Path] = {name: file.source for name, file in existing_files.items()}
        header, *operations = map(json.loads, body.splitlines())
        assert header["key"] == "header"
        repository.messages.append(header["value"]["summary"])
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                content[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile" and value["oid"] in self.hub.uploaded:
                content[value["path"]] = self.hub.uploaded[value["oid"]]
            else:
                raise _RefusedError(400, None, f"{operation['key']} {value['path']}: nothing was uploaded")
        commit = repository.commit(content, revision)
        url = f"{self._url(repository.id)}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit, "pullRequestUrl": None})

    # -- files

    def _resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        repository = self._repository(kind, name, files=True)
        commit = self._commit(repository, revision)
        stored_file = repository.commits[commit].get(path)
        if stored_file is None:
            raise _RefusedError(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        self._raise_fault(repository, path)
        file, fault = _apply_pointer(stored_file, repository.faults.get(path))
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if not file.lfs:
            return self._content(file, fault, headers)
        size = file.size + (fault.more if isinstance(fault, WrongSize) else 0)
        headers |= {
            "X-Linked-Size": str(size),
            "X-Linked-ETag": f'"{file.sha256}"',
            "Location": f"{self.hub.endpoint}/storage/{kind}/{quote(name, safe='')}/{commit}/{quote(path)}",
        }
        self._start(302, 0, headers)

    def _send_stored_file(self, repository: Repository, commit: str, path: str) -> None:
        file, fault = _apply_pointer(repository.commits[commit][path], repository.faults.get(path))
        self._content(file, fault, {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"})

    def _content(self, file: File, fault: Any, headers: dict[str, str]) -> None:
        start, end = 0, file.size
        if byte_range := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or ""):
            first, last = byte_range.groups()
            start = int(first) if first else max(0, file.size - int(last))
            end = min(file.size, int(last) + 1) if first and last else file.size
            if start >= file.size:
                raise _RefusedError(416, None, "Range Not Satisfiable", {"Content-Range": f"bytes */{file.size}"})
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        if isinstance(fault, WrongSize) and not file.lfs and self.command == "HEAD":
            end += fault.more
        self._start(206 if byte_range else 200, end - start, headers)
        if self.command != "HEAD":
            self._stream(file, fault, start, end)

    def _stream(self, file: File, fault: Any, start: int, end: int) -> None:
        stop = end
        if isinstance(fault, Stall) or (isinstance(fault, Cut) and fault.times != 0):
            stop = min(end, max(start, fault.at))
        with _open_source(file.source) as stream:
            stream.seek(start)
            at = start
            while at < stop and not self.hub.closing.is_set():
                chunk = stream.read(min(CHUNK, stop - at))
                if isinstance(fault, Corrupt) and at <= fault.at < at + len(chunk):
                    place = fault.at - at
                    chunk = chunk[:place] + bytes([chunk[place] ^ 0xFF]) + chunk[place + 1 :]
                self._send(chunk)
                at += len(chunk)
        if stop < end:
            self.wfile.flush()
            if isinstance(fault, Stall):
                self.hub.closing.wait()
            elif fault.times is not None:
                fault.times -= 1
            self.close_connection = True

    # -- the wire

    def _start(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        byte_range = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(byte_range.group(1)) if byte_range else None
        self.hub.requests.append(Request(self.command, unquote(self.path), status, start, self._token()))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, body: bytes) -> None:
        if self.command == "HEAD":
            return
        try:
            self.wfile.write(body)
        except OSError:  # the client has disconnected
            self.close_connection = True


def _apply_pointer(file: File, fault: Any) -> tuple[File, Any]:
    """Return the file that is sent, and its fault."""
    return (File.of("pointer", file.pointer()), None) if isinstance(fault, Pointer) else (file, fault)


def _info(repository: Repository, commit: str) -> dict[str, Any]:
    return {
        "_id": "0" * 24,
        "id": repository.id,
        "author": repository.id.partition("/")[0],
        "sha": commit,
        "lastModified": "2020-01-01T00:00:00.000Z",
        "createdAt": "2020-01-01T00:00:00.000Z",
        "private": repository.access == "private",
        "gated": "manual" if repository.access == "gated" else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": [{"rfilename": name} for name in repository.commits[commit]],
    }


def _refs(repository: Repository) -> dict[str, list[dict[str, str]]]:
    branches = [name for name in repository.refs if not name.startswith("refs/")]
    pulls = [name for name in repository.refs if name.startswith("refs/pr/")]
    return {
        "branches": [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": repository.refs[name]} for name in branches
        ],
        "pullRequests": [{"name": name, "ref": name, "targetCommit": repository.refs[name]} for name in pulls],
        "converts": [],
        "tags": [],
    }


def _folders(path: str) -> Iterator[str]:
    parts = path.split("/")[:-1]
    yield from ("/".join(parts[: count + 1]) for count in range(len(parts)))


def _folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path}


def _entries(files: Mapping[str, File], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """Return the entries of a folder of a commit, with all entries below it if `recursive` is set."""
    prefix = f"{folder}/" if folder else ""
    folders = {parent for path in files for parent in _folders(path)}
    everything = {path: _folder_entry(path) for path in folders} | {
        path: file.entry(path) for path, file in files.items()
    }
    return [
        entry
        for path, entry in sorted(everything.items())
        if path.startswith(prefix) and (recursive or "/" not in path.removeprefix(prefix))
    ]


def _paths_info(files: Mapping[str, File], paths: list[str]) -> Iterator[dict[str, Any]]:
    folders = {parent for path in files for parent in _folders(path)}
    for path in paths:
        if path in files:
            yield files[path].entry(path)
        elif path in folders:
            yield _folder_entry(path)
