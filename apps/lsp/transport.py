"""Messages of the Language Server Protocol from a stream of bytes, and to one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

_CONTENT_LENGTH = re.compile(rb"content-length:\s*(\d{1,12})\s*", re.IGNORECASE)
_CHUNK = 1 << 20


class DescriptorReader(asyncio.StreamReader):
    """What a file descriptor gives, read by a thread: it may be a pipe, a file or a terminal."""

    def __init__(self, descriptor: int) -> None:
        """Begins to read; to be called where the loop runs."""
        super().__init__()
        self._is_over = False
        reading = threading.Thread(
            target=self._read, args=(descriptor, asyncio.get_running_loop()), daemon=True
        )
        reading.start()

    def end(self) -> None:
        """Reads no further."""
        self.feed_eof()

    def feed_eof(self) -> None:
        """Takes the stream for ended: what comes later is dropped."""
        self._is_over = True
        super().feed_eof()

    def _read(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        chunk = b"more"
        while chunk:
            try:
                chunk = os.read(descriptor, _CHUNK)
            except OSError:
                chunk = b""
            try:
                loop.call_soon_threadsafe(self._feed, chunk)
            except RuntimeError:  # the loop has ended, and nobody reads any more
                return

    def _feed(self, chunk: bytes) -> None:
        if self._is_over:
            return
        if chunk:
            self.feed_data(chunk)
        else:
            self.feed_eof()


async def read_messages(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """Yields the JSON values of messages until the stream ends, be it in the middle of one.

    Bytes that are not UTF-8 are replaced: a document that is wrong in one character is of more use
    than one that misses a change. What is no JSON, or has no length, is skipped.
    """
    n_bytes = None
    while True:
        try:
            line = await reader.readline()
            if not line:
                return
            if match := _CONTENT_LENGTH.fullmatch(line):
                n_bytes = int(match[1])
            elif not line.strip() and n_bytes is not None:
                body = await reader.readexactly(n_bytes)
                n_bytes = None
                yield json.loads(decoded(body))
        except asyncio.IncompleteReadError:
            return
        except (ValueError, RecursionError):  # too long a line, or no JSON
            continue


def decoded(body: bytes) -> str:
    """Returns ``body`` as text; what is not UTF-8 is replaced, but surrogates are kept."""
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return body.decode("utf-8", "replace")


def envelope_fault(message: object) -> str:
    """Returns what makes ``message`` none of JSON-RPC 2.0, or nothing. Batches are none here.

    Source: the JSON-RPC 2.0 specification, sections 4 and 5; a number, as the Language Server
    Protocol has it, is whole.
    """
    if not isinstance(message, dict):
        return f"got a {type(message).__name__}, expected an object"
    if message.get("jsonrpc") != "2.0":
        return f"jsonrpc is {message.get('jsonrpc')!r}, expected '2.0'"
    number = message.get("id", 0)
    if isinstance(number, bool) or not isinstance(number, int | str):
        return f"id is {number!r}, expected a whole number or a text"
    method = message.get("method", "")
    if not isinstance(method, str):
        return f"method is {method!r}, expected a text"
    return "" if message.keys() & {"method", "result", "error"} else "it has no method"


class DescriptorWriter:
    """Writes to a file descriptor; calls ``on_gone`` where nobody reads there any more."""

    def __init__(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_gone = on_gone

    def write(self, data: bytes) -> None:
        """Writes all of ``data``."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._on_gone()

    def close(self) -> None:
        """Leaves the descriptor to whoever opened it."""
