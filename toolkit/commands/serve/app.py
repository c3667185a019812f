"""The addresses of the server, what it refuses, and errors as JSON: ``{"error": "one line"}``."""

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

from toolkit.commands.serve.requests import Service, errors_of, in_json
from toolkit.commands.serve.worker import Full, Worker
from toolkit.errors import UserError
from toolkit.files.strict_json import dumps
from toolkit.terminal.escape import one_line
from toolkit.terminal.failure import describe, keep_traceback

#: Most bytes of a request's body.
BODY = 2**20
#: A Host: a name or an IPv4 address, or an IPv6 address in brackets; then maybe a port.
HOST = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:@]+))(?::\d+)?")
#: No browser guesses what an answer is, or shows the page within another one.
HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "frame-ancestors 'none'"}


def make_app(
    service: Service, worker: Worker, about: Mapping[str, Any], page: str, names: Collection[str], timeout: float
) -> Starlette:
    """Return the server's application.

    Args:
        about: what ``/model`` answers.
        names: of this server, in a request's Host, beside any address.
        timeout: seconds for a request, in which it waits, too.
    """

    async def check_host(request: Request, following: RequestResponseEndpoint) -> Response:
        host = request.headers.get("host", "")
        if _is_ours(host, names):
            return await following(request)
        return _json({"error": f"Host {one_line(host)}: is no name of this server; use its address"}, 400)

    async def compute(request: Request) -> Response:
        _check_origin(request)
        try:
            return _json(await asyncio.wait_for(_answer(request, service, worker), timeout))
        except asyncio.TimeoutError:
            raise HTTPException(503, f"no answer within {timeout:g} seconds; ask for less, or again later") from None

    async def refuse(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        if problem.status_code == 404:
            problem.detail = f"no such address; there are /, /health, /model and POST {service.path}"
        return _json({"error": problem.detail}, problem.status_code)

    gets = {
        "/": lambda request: HTMLResponse(page, headers=HEADERS),
        "/health": lambda request: _json({"status": "ok"}),
        "/model": lambda request: _json(about),
    }
    return Starlette(
        routes=[*itertools.starmap(Route, gets.items()), Route(service.path, compute, methods=["POST"])],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=check_host)],
        exception_handlers={HTTPException: refuse},
    )


def _json(content: Any, status: int = 200) -> Response:
    return Response(dumps(content) + "\n", status, HEADERS, "application/json")


def _is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host is this server's. Another name, pointed at its address, would let a page of that name read it.

    Starlette's TrustedHostMiddleware knows no addresses, of which any is right: no name was looked up.
    """
    parts = HOST.fullmatch(host.lower())
    if parts is None:
        return False
    name = parts["name"] or ""
    with contextlib.suppress(ValueError):
        return name in names or bool(ipaddress.ip_address(parts["address"] or name))
    return False


def _check_origin(request: Request) -> None:
    """Refuse what pages of other origins send: a form of theirs cannot send JSON, and a browser names their origin."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send JSON, with Content-Type: application/json")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers["host"]:
        raise HTTPException(403, "a page of another origin has sent this")


async def _answer(request: Request, service: Service, worker: Worker) -> dict[str, Any]:
    """Read, check and compute a request."""
    asked = _checked(service, await _body(request)).model_dump()
    try:
        return await worker.compute(lambda advance: service.answer(asked, advance))
    except Full:
        raise HTTPException(503, "too many requests wait; ask again later") from None
    except UserError as error:
        raise HTTPException(422, in_json(one_line(str(error)))) from None
    except Exception as error:
        print(f"error: {describe(error)}; {keep_traceback(error)}", file=sys.stderr, flush=True)
        raise HTTPException(500, "the server has failed; its terminal says how") from None


async def _body(request: Request) -> bytes:
    """Read the body. One that is too large is read to its end all the same, or its sender would not hear of it."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part[: BODY + 1 - len(body)]
    except ClientDisconnect:
        raise HTTPException(400, "the request is incomplete") from None
    if len(body) > BODY:
        raise HTTPException(413, f"the request is larger than {BODY:,} bytes; send it in parts")
    return bytes(body)


def _checked(service: Service, body: bytes) -> BaseModel:
    """Parse a body as a request."""
    try:
        return service.request.model_validate_json(body)
    except ValidationError as error:
        broken = error.errors(include_url=False)[0]["type"] == "json_invalid"
        raise HTTPException(400 if broken else 422, one_line(errors_of(error))) from None
