"""The server's addresses as an application of Ray Serve: replicas of models behind one entrance.

    serve run edgedec.apps.serve.ray_app:app models=smollm2.edgedec replicas=2

A request goes to the replica that answered one with the same first bytes, which has computed that
part of the prompt. Ray takes another one if that is busy.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from edgedec.apps.serve.access import collected_keys
from edgedec.apps.serve.body_writer import TRANSPORT
from edgedec.apps.serve.model_registry import ModelRegistry
from edgedec.apps.serve.offers import find_offers
from edgedec.apps.serve.service import Service
from edgedec.apps.serve.settings import ServerSettings
from edgedec.apps.serve.web import make_web
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

PREFIX_BYTES = 1024
"""First bytes of a body that decide which replica answers, as in `tools/serving/haproxy.cfg`."""

_MAX_PREFIXES = 256
"""Beginnings that a replica is asked again for."""


class RayOptions(BaseModel):
    """What is served. Texts have commas between several values.

    models: as for `edgedec serve`. replicas: how many, with ``threads`` each. api_keys: one of
    them must come with each request, if there are any.
    """

    model_config = ConfigDict(extra="forbid")

    models: str
    replicas: int = 2
    threads: int = 1
    api_keys: str | None = None


class Models:
    """A replica: the whole server but for its socket."""

    def __init__(self, models: list[str], threads: int, settings: ServerSettings) -> None:
        loading = EngineOptions(threads=threads)
        registry = ModelRegistry(find_offers(models), lambda bundle: load(bundle, loading))
        self._web = make_web(Service(registry, settings))

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """Yields the messages of ASGI that answer a request; ends it if they are not wanted."""
        if prefix := serve.get_multiplexed_model_id():
            await self.knows(prefix)
        messages = asyncio.Queue[Message | None]()
        task = asyncio.create_task(self._respond(scope, body, messages))
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @serve.multiplexed(max_num_models_per_replica=_MAX_PREFIXES)
    async def knows(self, prefix: str) -> str:
        """Tells Ray that this replica has computed such a beginning."""
        return prefix

    async def _respond(
        self, scope: dict[str, Any], body: bytes, messages: asyncio.Queue[Message | None]
    ) -> None:
        """Puts all messages of an answer into a queue, then None."""
        waiting: list[Message] = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()  # who goes away cancels the task
            return {"type": "http.disconnect"}

        scope_ = {**scope, "extensions": {TRANSPORT: _Pieces(messages)}}
        try:
            await self._web(scope_, receive, messages.put)
        finally:
            messages.put_nowait(None)


class Entrance:
    """Takes requests, and sends each to a replica."""

    def __init__(self, models: DeploymentHandle, settings: ServerSettings) -> None:
        self._models = models.options(stream=True)
        self._most_bytes = settings.max_body_bytes

    async def __call__(self, request: Request) -> Response:
        body = await self._body(request)
        keys = ("type", "method", "path", "raw_path", "query_string", "headers", "scheme")
        # No chunks in the body: Ray's own server makes them.
        scope = {key: request.scope[key] for key in keys} | {"http_version": "1.0"}
        models = self._models
        if body:
            prefix = hashlib.sha256(body[:PREFIX_BYTES]).hexdigest()
            models = models.options(multiplexed_model_id=prefix)
        messages = models.answer.remote(scope, body)
        start = await anext(messages)
        response = StreamingResponse(
            (message.get("body", b"") async for message in messages), start["status"]
        )
        response.raw_headers = list(start["headers"])
        return response

    async def _body(self, request: Request) -> bytes:
        """Returns the body; of one that is too long enough for the replica to see that."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._most_bytes:
                break
        return bytes(body)


class _Pieces(asyncio.Transport):
    """What the body's writer takes for a connection: pieces become messages."""

    def __init__(self, messages: asyncio.Queue[Message | None]) -> None:
        super().__init__()
        self._messages = messages

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._messages.put_nowait({"type": "http.response.body", "body": bytes(data)})

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


def app(options: RayOptions) -> Any:
    """Returns the application, for `serve run` or `ray.serve.run`.

    Raises:
        EdgedecError: A model is none.
    """
    models = [text for text in options.models.split(",") if text]
    find_offers(models)  # reports what is wrong with them before replicas start
    keys = () if options.api_keys is None else options.api_keys.split(",")
    settings = ServerSettings(api_keys=collected_keys(keys, ()))
    replicas = serve.deployment(
        Models,
        num_replicas=options.replicas,
        max_ongoing_requests=settings.max_open,
        ray_actor_options={"num_cpus": options.threads},
    )
    entrance = serve.deployment(
        Entrance,
        max_ongoing_requests=options.replicas * settings.max_open,
        ray_actor_options={"num_cpus": 0},
    )
    return entrance.bind(replicas.bind(models, options.threads, settings), settings)
