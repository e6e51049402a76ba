"""Reading bodies and sending answers, within limits, to clients that may go away."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from edgedec.apps.serve.api.endpoint import Document, json_bytes
from edgedec.apps.serve.body_writer import BodyWriter
from edgedec.apps.serve.core import ServeError, invalid
from edgedec.apps.serve.settings import ServerSettings

T = TypeVar("T")
logger = logging.getLogger(__name__)

_GZIP_BITS = zlib.MAX_WBITS | 16
_MAX_MEMBERS = 16
"""Most parts of a gzip body, which are joined: each takes a copy of what follows it."""


class ClientGoneError(Exception):
    """The client closed the connection: nobody waits for an answer."""


async def read_body(scope: Scope, receive: Receive, settings: ServerSettings) -> bytes:
    """Returns the body of a request.

    Raises:
        ServeError: It is too long, or takes too long to come.
        ClientGoneError: The client went away.
    """
    most = settings.max_body_bytes
    too_long = ServeError(413, "invalid_request_error", f"the body has more than {most} bytes")
    if int(Headers(scope=scope).get("content-length", "0")) > most:
        raise too_long
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(settings.body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                parts.append(message.get("body", b""))
                if sum(map(len, parts)) > most:
                    raise too_long
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise ServeError(
            408, "invalid_request_error", f"the body did not come within {settings.body_s:g} s"
        ) from None
    codings = Headers(scope=scope).getlist("content-encoding") or ["identity"]
    coding = ", ".join(codings).strip().lower()
    return b"".join(parts) if coding == "identity" else _decoded(b"".join(parts), coding, most)


def _decoded(data: bytes, coding: str, most: int) -> bytes:
    """Returns what a compressed body holds; never more than ``most`` bytes are made of it."""
    if coding not in ("gzip", "x-gzip", "deflate"):
        message = f"Content-Encoding is {coding[:40]!r}, expected gzip, deflate or none"
        raise ServeError(415, "invalid_request_error", message)
    bits, n_most_members = (
        (zlib.MAX_WBITS, 1) if coding == "deflate" else (_GZIP_BITS, _MAX_MEMBERS)
    )
    decoded = b""
    for _ in range(n_most_members):
        reader = zlib.decompressobj(bits)
        try:
            decoded += reader.decompress(data, most + 1 - len(decoded))
        except zlib.error as error:
            raise invalid(f"the body is not valid {coding}: {error}") from None
        if len(decoded) > most:
            raise ServeError(413, "invalid_request_error", f"the body has more than {most} bytes")
        if not reader.eof:
            raise invalid(f"the body is not valid {coding}: it ends too early")
        data = reader.unused_data
        if not data:
            return decoded
    raise invalid(
        f"the body has {len(data)} bytes behind the end of its {coding} data: send one part"
    )


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of ``work``, which is cancelled when the client goes away.

    Raises:
        ClientGoneError: It did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for waiting in (task, gone):
            waiting.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Header = tuple[bytes, bytes]


async def send_json(
    send: Send, document: Document | list[Any], status: int = 200, more: Sequence[Header] = ()
) -> None:
    """Sends one document. more: headers."""
    await send_bytes(send, json_bytes(document), "application/json", status, more)


async def send_bytes(
    send: Send, body: bytes, media_type: str, status: int = 200, more: Sequence[Header] = ()
) -> None:
    """Sends a whole response. more: headers."""
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_problem(
    send: Send, problem: ServeError, error_shape: Callable[[ServeError], Document]
) -> None:
    """Sends what is wrong, in the words of the interface that was asked."""
    await send_json(send, error_shape(problem), problem.status)


class StreamSender:
    """Sends a response piece by piece."""

    def __init__(
        self, send: Send, media_type: str, body: BodyWriter, more: Sequence[Header] = ()
    ) -> None:
        """more: headers."""
        self._more = more
        self._send = send
        self._media_type = media_type
        self._body = body
        self._starting = asyncio.Lock()
        self._making = threading.Lock()  # framers number what they make, in the order it is sent
        self._has_first = False
        self._sent_s = time.monotonic()
        self.is_begun = False

    async def begin(self, piece: bytes) -> None:
        """Sends the headers, unless a heartbeat did, and the first piece."""
        async with self._starting:
            await self._start()
            await self._send_body(piece)
            self._has_first = True
            self._body.begin()

    @asynccontextmanager
    async def beating(
        self, early: bytes, beat: Callable[[], Iterable[bytes]], every_s: float
    ) -> AsyncIterator[None]:
        """Inside the block, sends a sign of life whenever nothing was sent for ``every_s``.

        early: what is sent before the first piece. beat: makes what is sent behind it.
        """
        task = asyncio.create_task(self._beat(early, beat, every_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _beat(
        self, early: bytes, beat: Callable[[], Iterable[bytes]], every_s: float
    ) -> None:
        while True:
            quiet_s = time.monotonic() - self._sent_s
            if quiet_s < every_s:
                await asyncio.sleep(every_s - quiet_s)
                continue
            self._sent_s = time.monotonic()
            async with self._starting:
                if self._has_first:
                    self.send_soon(beat)
                else:
                    await self._start()
                    await self._send_body(early)

    async def _start(self) -> None:
        if self.is_begun:
            return
        self.is_begun = True
        headers = [
            (b"content-type", self._media_type.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # nginx would hold pieces back
            *self._more,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    def send_soon(self, make: Callable[[], Iterable[bytes]]) -> None:
        """Sends the pieces that ``make`` returns, from any thread; they come after the first."""
        with self._making:
            self._sent_s = time.monotonic()
            self._body.write(b"".join(make()))

    async def end(self, pieces: Iterable[bytes]) -> None:
        """Sends the last pieces and ends the response."""
        self._body.end()
        await self._send_body(b"".join(pieces))
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_body(self, piece: bytes) -> None:
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


def log_unexpected(error: BaseException) -> None:
    """Logs where an error came from, but not its text, which may quote a prompt."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    logger.error("unexpected %s in %s:%s", type(error).__name__, place.filename, place.lineno)
