"""The body of a streamed response, sent by whichever thread made the next piece of it."""

from __future__ import annotations

import asyncio
import socket
from threading import Lock
from typing import Self

TRANSPORT = "edgedec.transport"
"""The extension of ASGI under which a request finds the transport of its connection."""


class BodyWriter:
    """Sends pieces of a response's body from any thread, without waking the event loop.

    Where a model computes on all processors, the event loop's thread has to wait for one of them.
    With a small model that costs several percent of the tokens per second. What the socket does not
    take at once goes through the event loop. Until it is sent, later chunks go there, too.
    """

    def __init__(self, transport: asyncio.Transport, http_version: str) -> None:
        self._transport = transport
        self._is_chunked = http_version != "1.0"
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()  # guards what follows
        self._socket: socket.socket | None = None  # a descriptor of its own: nobody else closes it
        self._is_begun = self._is_over = False
        self._is_direct = False  # nothing that was written earlier waits to be sent
        self._waiting: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def begin(self) -> None:
        """Learns, in the event loop, that the headers were written: pieces may follow."""
        with self._lock:
            socket = self._transport.get_extra_info("socket")
            self._socket = None if socket is None else socket.dup()
            self._is_begun = True
            self._send_waiting()

    def write(self, piece: bytes) -> None:
        """Sends ``piece``, or has the event loop send it; before `begin` it is held back."""
        data = b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece
        with self._lock:
            if self._is_over or not piece:
                return
            if self._is_direct:
                data = data[self._sent(data) :]
            if data:
                self._is_direct = False
                self._waiting.append(data)
                if self._is_begun and len(self._waiting) == 1:
                    self._loop.call_soon_threadsafe(self._flush)

    def end(self) -> None:
        """Writes, in the event loop, what is left; later pieces are dropped."""
        with self._lock:
            self._send_waiting()
            self._is_over = True
            self._is_direct = False
            if self._socket is not None:
                self._socket.close()

    def _sent(self, data: bytes) -> int:
        """Returns how many bytes of ``data`` the socket took."""
        assert self._socket is not None
        try:
            return self._socket.send(data)
        except OSError:  # it is full, or the client went away: the event loop finds out which
            return 0

    def _flush(self) -> None:
        with self._lock:
            if not self._is_over:
                self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting and not self._transport.is_closing():
            self._transport.write(b"".join(self._waiting))
            self._waiting.clear()
        is_empty = self._transport.get_write_buffer_size() == 0
        self._is_direct = self._socket is not None and is_empty
