"""Pieces of a body from any thread: whole and in order, whatever the client reads when."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgedec.apps.serve.body_writer import BodyWriter

PIECES = [b"%05d:" % i + bytes([97 + i % 26]) * (i % 700) for i in range(4000)]
"""More than sockets and their buffers take while nobody reads."""


async def written(
    write: Callable[[BodyWriter], None], version: str = "1.1", quiet_s: float = 0.0
) -> tuple[bytes, int]:
    """Returns what a client reads of what ``write`` writes in a thread; how often the loop did.

    quiet_s: so long the client reads nothing.
    """
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
    n_loop = 0
    loop_writes = transport.write

    def counted(data: bytes) -> None:
        nonlocal n_loop
        n_loop += 1
        loop_writes(data)

    transport.write = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read_all, theirs, quiet_s)
        with BodyWriter(transport, version) as body:
            body.write(b"early ")
            body.begin()
            await asyncio.to_thread(write, body)
        body.write(b"too late")
        while transport.get_write_buffer_size():
            await asyncio.sleep(0.001)
        transport.close()
        await asyncio.sleep(0)
        found = await asyncio.wrap_future(reading)
    return found, n_loop


def _read_all(theirs: socket.socket, after_s: float) -> bytes:
    threading.Event().wait(after_s)
    with theirs:
        return b"".join(iter(lambda: theirs.recv(1 << 16), b""))


def test_the_event_loop_writes_only_what_came_before_the_headers() -> None:
    def write(body: BodyWriter) -> None:
        for word in (b"one ", b"two ", b"three"):
            body.write(word)

    assert asyncio.run(written(write, "1.0")) == (b"early one two three", 1)


def test_pieces_are_chunks_where_http_has_them() -> None:
    found, _ = asyncio.run(written(lambda body: body.write(b"x" * 17)))
    assert found == b"6\r\nearly \r\n11\r\n" + b"x" * 17 + b"\r\n"


@pytest.mark.parametrize("quiet_s", [0.0, 0.2])
def test_a_slow_client_gets_everything_in_order(quiet_s: float) -> None:
    def write(body: BodyWriter) -> None:
        for piece in PIECES:
            body.write(piece)

    found, n_loop = asyncio.run(written(write, "1.0", quiet_s))
    assert found == b"early " + b"".join(PIECES)
    assert n_loop > 1 or not quiet_s


def test_several_threads_write_whole_pieces() -> None:
    def write(body: BodyWriter) -> None:
        with ThreadPoolExecutor(4) as pool:
            for part in range(4):
                pool.submit(lambda own: [body.write(one + b"\n") for one in own], PIECES[part::4])

    found, _ = asyncio.run(written(write, "1.0"))
    assert sorted(found.removeprefix(b"early ").splitlines()) == sorted(PIECES)


def test_a_client_that_went_away_harms_nobody() -> None:
    async def write() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
        with BodyWriter(transport, "1.1") as body:
            body.begin()
            theirs.close()
            for _ in range(20):
                await asyncio.to_thread(body.write, b"x" * 1000)
        assert transport.is_closing() or transport.get_write_buffer_size() == 0
        transport.abort()

    asyncio.run(write())
