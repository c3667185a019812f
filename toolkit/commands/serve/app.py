"""The application of the server: its addresses, rejected requests, and errors as JSON, ``{"error": "one line"}``."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from toolkit.commands.serve.requests import Service, describe_errors, options_to_fields
from toolkit.commands.serve.worker import QueueFullError, Worker
from toolkit.errors import UserError
from toolkit.files.strict_json import dumps
from toolkit.terminal.escape import one_line
from toolkit.terminal.failure import describe, keep_traceback

#: Maximum size of a request's body, in bytes.
MAX_BODY_BYTES = 2**20
#: Pattern of a Host header: a name, an IPv4 address, or an IPv6 address in brackets, with an optional port.
HOST = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:@]+))(?::\d+)?")
#: Headers of each answer. Browsers must neither guess its content type nor show the page in a frame.
HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "frame-ancestors 'none'"}


def make_app(
    service: Service, worker: Worker, about: Mapping[str, Any], page: str, host_names: Collection[str], timeout: float
) -> Starlette:
    """Return the application of the server.

    Args:
        service: service that answers requests.
        worker: thread that computes the answers.
        about: description of the run, the answer of ``/model``.
        page: HTML of the page at ``/``.
        host_names: names of this server that the Host header of a request may contain; IP addresses are always allowed.
        timeout: time limit of a request in seconds, including the time in the queue.
    """

    async def check_host(request: Request, call_next: RequestResponseEndpoint) -> Response:
        host = request.headers.get("host", "")
        if _names_this_server(host, host_names):
            return await call_next(request)
        return _json_response({"error": f"Host {one_line(host)}: is no name of this server; use its address"}, 400)

    async def compute(request: Request) -> Response:
        _check_origin(request)
        try:
            return _json_response(await asyncio.wait_for(_compute_answer(request, service, worker), timeout))
        except asyncio.TimeoutError:
            raise HTTPException(503, f"no answer within {timeout:g} seconds; ask for less, or again later") from None

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            error.detail = f"no such address; there are /, /health, /model and POST {service.path}"
        return _json_response({"error": error.detail}, error.status_code)

    gets = {
        "/": lambda request: HTMLResponse(page, headers=HEADERS),
        "/health": lambda request: _json_response({"status": "ok"}),
        "/model": lambda request: _json_response(about),
    }
    return Starlette(
        routes=[*itertools.starmap(Route, gets.items()), Route(service.path, compute, methods=["POST"])],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=check_host)],
        exception_handlers={HTTPException: refuse},
    )


def _json_response(content: Any, status: int = 200) -> Response:
    """Return an HTTP response with JSON content and a status code."""
    return Response(dumps(content) + "\n", status, HEADERS, "application/json")


def _names_this_server(host: str, host_names: Collection[str]) -> bool:
    """Return whether a Host header names this server by one of ``host_names`` or by an IP address.

    Otherwise a web page could read the server after pointing its own name at the server's address (DNS rebinding). Any
    IP address is allowed, since it involves no name. Starlette's TrustedHostMiddleware cannot allow all addresses.
    """
    parts = HOST.fullmatch(host.lower())
    if parts is None:
        return False
    name = parts["name"] or ""
    with contextlib.suppress(ValueError):
        return name in host_names or bool(ipaddress.ip_address(parts["address"] or name))
    return False


def _check_origin(request: Request) -> None:
    """Reject requests of web pages from other origins.

    Their forms cannot send JSON, and a browser adds their origin to other requests.

    Args:
        request: HTTP request.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send JSON, with Content-Type: application/json")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers["host"]:
        raise HTTPException(403, "a page of another origin has sent this")


async def _compute_answer(request: Request, service: Service, worker: Worker) -> dict[str, Any]:
    """Read and check a request, and return its answer.

    Args:
        request: HTTP request.
        service: model and tokenizer that answer requests.
        worker: thread that runs the model.
    """
    fields = _parse_request(service, await _read_body(request)).model_dump()
    try:
        return await worker.compute(lambda advance: service.answer(fields, advance))
    except QueueFullError:
        raise HTTPException(503, "too many requests wait; ask again later") from None
    except UserError as error:
        raise HTTPException(422, options_to_fields(one_line(str(error)))) from None
    except Exception as error:
        print(f"error: {describe(error)}; {keep_traceback(error)}", file=sys.stderr, flush=True)
        raise HTTPException(500, "the server has failed; its terminal says how") from None


async def _read_body(request: Request) -> bytes:
    """Return the body of a request.

    A body that is too large is still read to its end. Otherwise the client would never read the error.

    Args:
        request: HTTP request.
    """
    body = bytearray()
    try:
        async for part in request.stream():
            body += part[: MAX_BODY_BYTES + 1 - len(body)]
    except ClientDisconnect:
        raise HTTPException(400, "the request is incomplete") from None
    if len(body) > MAX_BODY_BYTES:
        raise HTTPException(413, f"the request is larger than {MAX_BODY_BYTES:,} bytes; send it in parts")
    return bytes(body)


def _parse_request(service: Service, body: bytes) -> BaseModel:
    """Parse and check the body of a request."""
    try:
        return service.request.model_validate_json(body)
    except ValidationError as error:
        is_invalid_json = error.errors(include_url=False)[0]["type"] == "json_invalid"
        raise HTTPException(400 if is_invalid_json else 422, one_line(describe_errors(error))) from None
