"""A real server over SmolLM2, in a thread of the test's process, and raw connections to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("pydantic")
pytest.importorskip("prometheus_client")

from edgedec.apps.serve import listening, web
from edgedec.apps.serve.model_registry import ModelRegistry
from edgedec.apps.serve.offers import find_offers
from edgedec.apps.serve.service import Service
from edgedec.apps.serve.settings import ServerSettings
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.sampling.grammar import Grammars

DEADLINE_S = 60


class Server:
    """A server in a thread of its own. service: what it is made of."""

    service: Service

    def __init__(
        self,
        models: list[str],
        settings: ServerSettings | None = None,
        load: Callable[[Path], Engine] = load,
        **registry: Any,
    ) -> None:
        self._models, self._load, self._registry = models, load, registry
        self.settings = replace(settings or ServerSettings(), port=0)
        self._sock = listening.bind(self.settings)
        self.port = self._sock.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._is_ready.wait(DEADLINE_S)

    async def _run(self) -> None:
        registry = ModelRegistry(find_offers(self._models), self._load, **self._registry)
        self.service = Service(registry, self.settings)
        self._loop = asyncio.get_running_loop()
        app = web.make_web(self.service)
        serving = listening.serve(app, self._sock, self.settings, self.service.requests.end)
        self._task = asyncio.create_task(serving)
        self._is_ready.set()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.service.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Returns status and document of an answer; a body that is no text is sent as JSON."""
        status, _, text = self.ask_raw(method, path, body, headers)
        return status, json.loads(text)

    def ask_raw(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        found = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        connection.close()
        return found

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Returns what waits until a condition holds."""

    def wait(condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s, "it never came to that"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def server(smollm2_bundle: Path) -> Iterator[Server]:
    """A server of SmolLM2 that tests share."""
    found = Server([f"smollm2={smollm2_bundle}"])
    yield found
    found.end()


@pytest.fixture
def make_server(smollm2_bundle: Path) -> Iterator[Callable[..., Server]]:
    """Returns a maker of servers with settings of their own."""
    made: list[Server] = []

    def make(models: list[str] | None = None, **fields: Any) -> Server:
        registry = {
            name: fields.pop(name)
            for name in ("memory_bytes", "keep_alive_s", "load")
            if name in fields
        }
        offered = models or [f"smollm2={smollm2_bundle}"]
        made.append(Server(offered, ServerSettings(**fields), **registry))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture(scope="session")
def engine(smollm2_bundle: Path) -> Iterator[Engine]:
    """The same model without a server."""
    with load(smollm2_bundle) as found:
        yield found


@pytest.fixture(scope="session")
def grammars(engine: Engine) -> Grammars:
    """Makes masks over the engine's tokenizer, which takes half a second to read."""
    return Grammars(engine.tokenizer, engine.model.vocab_size)
