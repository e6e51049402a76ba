"""The HTTP server itself: uvicorn, with an end that signals bring about, and limits of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgedec.apps.serve.body_writer import TRANSPORT
from edgedec.apps.serve.settings import ServerSettings
from edgedec.models.errors import ConfigError

_FLUSH_S = 1
"""How long clients have to read the last of an answer when the server ends."""

_IDLE_S = 320
"""How long a connection may stay open between requests: pools of clients keep theirs 5 minutes."""

_CONNECTIONS_PER_REQUEST = 4
"""How many connections there may be for each request that may be open."""


def bind(settings: ServerSettings) -> socket.socket:
    """Returns the socket to listen on.

    Raises:
        ConfigError: The address is taken, or none of this machine.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, number)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # who reads the address may connect at once
    except OSError as error:
        known = error.errno is not None and error.errno > 0  # names that nobody has are negative
        reason = os.strerror(error.errno or 0) if known else error.strerror
        where = f"{settings.host} port {settings.port}"
        raise ConfigError(f"cannot listen on {where}: {reason}; choose another --port") from None
    return listening


async def serve(
    app: ASGIApp,
    sock: socket.socket,
    settings: ServerSettings,
    end_requests: Callable[[], Awaitable[None]],
) -> None:
    """Answers requests until it is cancelled; then ends requests, and lets connections end."""
    config = uvicorn.Config(
        app,
        http=_limited_protocol(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=settings.max_header_bytes,
        timeout_keep_alive=_IDLE_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([sock]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await end_requests()
        await asyncio.wait((serving,), timeout=_FLUSH_S)
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # its client does not read
        await serving
        raise


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the program."""
        yield


def _with_transport(app: Any, transport: asyncio.Transport) -> ASGIApp:
    """Returns ``app``, which finds its connection's transport in the scope of a request."""

    async def with_transport(scope: Scope, receive: Receive, send: Send) -> None:
        extensions = {**scope.get("extensions", {}), TRANSPORT: transport}
        await app({**scope, "extensions": extensions}, receive, send)

    return with_transport


def _limited_protocol(settings: ServerSettings) -> type[H11Protocol]:
    """Returns uvicorn's protocol that drops late headers, and connections above a number."""
    most = settings.max_open * _CONNECTIONS_PER_REQUEST

    class LimitedProtocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app = _with_transport(self.app, transport)
            if len(self.connections) > most:
                transport.abort()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._unwatch()
            elif self._late is None:
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def _should_upgrade(self) -> bool:
            """Returns False: who offers another protocol, such as h2c, is answered in this one."""
            return False

        def _watch(self) -> None:
            self._late = self.loop.call_later(settings.header_s, self.transport.abort)

        def _unwatch(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return LimitedProtocol
