"""Clients that ask one server at once, of whom some go away before their answer.

    python tools/fuzz/server_requests.py --tries 5000 --seconds 500

Every text that came whole is that of an engine nobody else asks. When all are done, the server has
nothing left of them: no request, KV cache, connection, file or thread, and no memory that grows.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from engine_states import bundle
from pieces import run_tries

import edgedec
from edgedec.apps.serve import listening, web
from edgedec.apps.serve.model_registry import ModelRegistry
from edgedec.apps.serve.offers import find_offers
from edgedec.apps.serve.service import Service
from edgedec.apps.serve.settings import ServerSettings
from edgedec.runtime.engine.engine import Engine

N_CLIENTS = 16
LEAVING = 0.3
"""How many of the requests are given up."""

WAIT_S = 60
GROWTH_MB = 8
"""How much more memory there may be after the second half of many requests than after the first."""

TEXTS = (
    "hello", "hello there, hello", "a b c a b c a b c a b", "lines\nand\nlines\nand", "x",
    "0123456789" * 5, "hello there, how are you", '{"a": 1}',
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is asked for, whichever address is asked."""

    text: str
    n: int
    temperature: float
    seed: int
    method: str


@cache
def expected(case: Case, is_chat: bool) -> str:
    """Returns the text of an engine that nobody else asks."""
    with alone() as engine:
        prompt: Any = [{"role": "user", "content": case.text}] if is_chat else case.text
        config = edgedec.GenerationConfig(
            max_new_tokens=case.n,
            seed=case.seed,
            sampling=edgedec.SamplingConfig(temperature=case.temperature),
            method="plain",
        )
        return engine.generate(prompt, config).text


_alone: list[Engine] = []
_turn = threading.Lock()


@contextmanager
def alone() -> Iterator[Engine]:
    """Lends the engine that one thread at a time asks."""
    with _turn:
        if not _alone:
            options = edgedec.EngineOptions(threads=1, prefix_cache_mb=0)
            _alone.append(edgedec.load(bundle(), options))
        yield _alone[0]


def chat_body(case: Case) -> dict[str, Any]:
    """Returns what OpenAI's and Anthropic's conversations have alike."""
    return {**common(case), "messages": [{"role": "user", "content": case.text}]}


def common(case: Case) -> dict[str, Any]:
    """Returns what most bodies have alike."""
    return {
        "max_tokens": case.n, "temperature": case.temperature, "seed": case.seed,
        "method": case.method,
    }  # fmt: skip


def ollama_body(case: Case) -> dict[str, Any]:
    """Returns the body of Ollama's conversations."""
    options = {**common(case), "num_predict": case.n}
    messages = [{"role": "user", "content": case.text}]
    return {"model": "tiny", "messages": messages, "options": options}


Texts = Callable[[Any], str]


@dataclass(frozen=True)
class Address:
    """An address, what it is asked, and where the text of an answer or of a piece stands."""

    path: str
    body: Callable[[Case], dict[str, Any]]
    whole: Texts
    piece: Texts
    is_chat: bool = True


ADDRESSES = (
    Address(
        "/v1/chat/completions",
        chat_body,
        lambda d: d["choices"][0]["message"]["content"],
        lambda d: d["choices"][0]["delta"].get("content", ""),
    ),
    Address(
        "/v1/completions",
        lambda case: {**common(case), "prompt": case.text},
        lambda d: d["choices"][0]["text"],
        lambda d: d["choices"][0]["text"],
        is_chat=False,
    ),
    Address(
        "/completion",
        lambda case: {**common(case), "prompt": case.text, "n_predict": case.n},
        lambda d: d["content"],
        lambda d: d["content"],
        is_chat=False,
    ),
    Address(
        "/v1/messages",
        chat_body,
        lambda d: "".join(block["text"] for block in d["content"]),
        lambda d: d.get("delta", {}).get("text", ""),
    ),
    Address(
        "/api/chat",
        ollama_body,
        lambda d: d["message"]["content"],
        lambda d: d["message"]["content"],
    ),
)


class Server:
    """A server of the tiny model, in a thread of this process, so that its insides can be seen."""

    def __init__(self) -> None:
        settings = ServerSettings(port=0)
        self._sock = listening.bind(settings)
        self.port = self._sock.getsockname()[1]
        self._settings = settings
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._is_ready.wait(WAIT_S)

    async def _run(self) -> None:
        options = edgedec.EngineOptions(threads=1, prefix_cache_mb=1)  # full before it matters
        self.engines: list[Engine] = []

        def load(path: Any) -> Engine:
            self.engines.append(edgedec.load(path, options))
            return self.engines[-1]

        self.service = Service(
            ModelRegistry(find_offers([f"tiny={bundle()}"]), load), self._settings
        )
        self._loop = asyncio.get_running_loop()
        app = web.make_web(self.service)
        serving = listening.serve(app, self._sock, self._settings, self.service.requests.end)
        self._task = asyncio.create_task(serving)
        self._is_ready.set()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.service.close()

    @property
    def is_idle(self) -> bool:
        """Nothing of any request is left."""
        n_lent = sum(len(engine.streams._pool._lent) for engine in self.engines)
        return not (self.service.n_running or len(self.service.requests) or n_lent)

    def end(self) -> None:
        """Ends the server."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def ask(port: int, number: int) -> None:
    """Makes one request; raises where its text is wrong."""
    rng = random.Random(number)
    case = Case(
        rng.choice(TEXTS),
        rng.choice((1, 2, 5, 12, 24)),
        rng.choice((0.0, 0.8)),
        rng.randrange(3),
        rng.choice(("plain", "auto", "lookup")),
    )
    address, is_streamed = rng.choice(ADDRESSES), rng.random() < 0.5
    body = {**address.body(case), "stream": is_streamed}
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", address.path, json.dumps(body), {"Host": "localhost"})
        if rng.random() < LEAVING:
            leave(connection, rng)
            return
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        answer = pieces_of(text, address.piece) if is_streamed else address.whole(json.loads(text))
        expected_ = expected(case, address.is_chat)
        assert answer == expected_, (number, address.path, case, answer, expected_)
    finally:
        connection.close()


def leave(connection: HTTPConnection, rng: random.Random) -> None:
    """Waits for a moment, or for the first byte, before the connection is closed."""
    if rng.random() < 0.5:
        time.sleep(rng.random() * 0.02)
    else:
        assert connection.sock is not None
        connection.sock.recv(1)


def pieces_of(text: str, piece: Texts) -> str:
    """Returns what the pieces of a stream add up to, events or lines."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    pieces = [json.loads(line) for line in lines if line.startswith("{")]
    assert not [d for d in pieces if "error" in d], pieces
    return "".join(piece(document) for document in pieces if document.get("choices", True))


@cache
def server() -> Server:
    """The server that all pieces of one call ask."""
    return Server()


def ask_some(n_done: int, n: int = 200) -> int:
    """Makes requests ``n_done`` to ``n_done + n``, and looks for what they leave; returns n."""
    port = server().port
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        list(pool.map(lambda number: ask(port, number), range(n_done, n_done + n)))
    end_s = time.monotonic() + WAIT_S
    while not server().is_idle:
        assert time.monotonic() < end_s, "something of a request is left"
        time.sleep(0.01)
    note_left()
    return n


def rss_mb() -> float:
    """Returns the memory that this process has resident now."""
    n_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return n_pages * os.sysconf("SC_PAGE_SIZE") / 1e6


_left: list[tuple[float, int, int]] = []


def note_left() -> None:
    """Notes memory, open files and threads, and compares them with those of before."""
    gc.collect()
    time.sleep(0.2)  # connections that were just closed
    _left.append((rss_mb(), len(list(Path("/proc/self/fd").iterdir())), threading.active_count()))
    warm = _left[len(_left) // 2]
    if len(_left) > 4:
        growth_mb = _left[-1][0] - warm[0]
        assert growth_mb < GROWTH_MB, f"memory grew by {growth_mb:.0f} MB: {_left}"
        assert _left[-1][1] <= max(row[1] for row in _left[:4]) + 2, f"files stay open: {_left}"
        assert _left[-1][2] <= max(row[2] for row in _left[:4]), f"threads stay: {_left}"


def main() -> int:
    """Asks until the time is over."""
    try:
        return run_tries(__doc__, "server_requests", 5000, ask_some)
    finally:
        server().end()
        print("memory in MB, files, threads after each piece:", _left)


if __name__ == "__main__":
    raise SystemExit(main())
