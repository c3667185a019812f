"""Connections of the server. A connection that does not complete its request is closed, so that others get in."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from toolkit.files.strict_json import dumps

#: Time in seconds for running requests when the server shuts down.
SHUTDOWN_SECONDS = 2
#: Maximum number of connections. Above it, the connections that have waited longest for a request are closed.
#: Connections with a running request stay; the worker's queue limits their number.
MAX_CONNECTIONS = 200


def make_server(app: ASGIApp, timeout: float) -> uvicorn.Server:
    """Return a server for an application; ``timeout`` is the time limit for the headers of a request, in seconds."""
    connection = cast(type[asyncio.Protocol], functools.partial(Connection, timeout=timeout))
    config = uvicorn.Config(
        app, loop="asyncio", http=connection, ws="none", lifespan="off", log_config=None, log_level="critical",
        access_log=False, server_header=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )  # fmt: skip
    return uvicorn.Server(config)


class Connection(H11Protocol):
    """A connection that must send the headers of its next request within ``timeout`` seconds.

    uvicorn limits only the time between two requests, so a client that sends a byte now and then could stay forever.
    The application limits the time for the body.
    """

    def __init__(self, *arguments: Any, timeout: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.timeout = timeout
        self.waits_since = self.loop.time()
        self._closing: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether the server waits for a request, or for the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register a new connection; if there are too many, close those that have waited longest for a request."""
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection.is_waiting
        ]
        waiting.sort(key=lambda connection: connection.waits_since)
        for oldest in waiting[: max(0, len(self.connections) + 1 - MAX_CONNECTIONS)]:
            oldest.close()
            self.connections.discard(oldest)
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer for the next request when the connection ends."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; after an answered request, start the timer for the next one."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        if is_answered and self._closing is None:
            self._wait_for_headers()
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle parsed events of the connection; stop the timer when the headers of a request are complete."""
        previous_cycle = self.cycle
        super().handle_events()
        if self.cycle is not previous_cycle:  # the headers of a request are here
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Answer a message that is not HTTP with JSON, like every other answer."""
        body = (dumps({"error": msg}) + "\n").encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def close(self) -> None:
        """Close the connection; answers that are already written are still sent."""
        self.transport.close()

    def _wait_for_headers(self) -> None:
        """Start the timer that closes the connection unless a request's headers arrive in time."""
        self.waits_since = self.loop.time()
        self._closing = self.loop.call_later(self.timeout, self.close)

    def _stop_waiting(self) -> None:
        """Stop the timer for the headers, if it runs."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
