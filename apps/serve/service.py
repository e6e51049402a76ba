"""Answering requests: from the body to the last piece, within limits, for clients that may go."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from edgedec.apps.serve.api.endpoint import AnswerHead, Endpoint, Framer, ParsedRequest
from edgedec.apps.serve.body_writer import TRANSPORT, BodyWriter
from edgedec.apps.serve.core import Answer, Event, PromptProgress, ServeError
from edgedec.apps.serve.loosened_notes import LoosenedNotes
from edgedec.apps.serve.metrics import Metrics
from edgedec.apps.serve.model_registry import ModelRegistry, Offer
from edgedec.apps.serve.open_requests import OpenRequests, ending
from edgedec.apps.serve.problems import client_errors
from edgedec.apps.serve.records import CLIENT_GONE, RECORD
from edgedec.apps.serve.responses import (
    ClientGoneError,
    Header,
    StreamSender,
    read_body,
    send_json,
    send_problem,
    while_there,
)
from edgedec.apps.serve.running import Runner, RunningRequest
from edgedec.apps.serve.settings import ServerSettings
from edgedec.apps.serve.waiting import finished
from edgedec.runtime.engine.engine import Engine

T = TypeVar("T")
_SHORT_BYTES = 16 << 10
"""A body that is read in less time than a change of threads takes."""

logger = logging.getLogger(__name__)


class Service:
    """What all addresses share: the models, who runs requests on them, and the settings."""

    def __init__(self, registry: ModelRegistry, settings: ServerSettings) -> None:
        self.registry = registry
        self.settings = settings
        self.runner = Runner(settings)
        self.requests = OpenRequests()
        self.metrics = Metrics([offer.name for offer in registry.offers])
        self.notes = LoosenedNotes()
        self.n_running = 0  # requests that models are answering

    @asynccontextmanager
    async def running(
        self,
        parsed: ParsedRequest,
        take: Callable[[Event], None],
        prepared: Callable[[int], None] = lambda n_prompt: None,
    ) -> AsyncIterator[RunningRequest]:
        """Runs a request until the block is left. take, prepared: as for `Runner.running`."""
        record = RECORD.get()

        def noting(event: Event) -> None:
            if not isinstance(event, PromptProgress):
                record.note_token()
            take(event)

        offer = self._offer_of(parsed.request.model)
        lent = self.registry.lent(offer, parsed.request.keep_alive_s)
        runner = self.runner
        async with lent as engine, runner.running(engine, parsed.request, noting, prepared) as run:
            yield run

    async def answer(self, scope: Scope, receive: Receive, send: Send, endpoint: Endpoint) -> None:
        """Answers one request at ``endpoint``."""
        try:
            data = await read_body(scope, receive, self.settings)
            reply = AnswerHead(secrets.token_hex(12), int(time.time()))
            parsed = await _read(endpoint, data, reply)
            more = await self.notes.headers(parsed.request)
            if parsed.framer is None:
                await self._send_whole(parsed, receive, send, more)
            else:
                transport = scope["extensions"][TRANSPORT]
                with BodyWriter(transport, scope["http_version"]) as body:
                    sender = StreamSender(send, endpoint.media_type, body, more)
                    beat = parsed.beat or (lambda: (endpoint.beat,))
                    beating = sender.beating(endpoint.beat, beat, self.settings.heartbeat_s)
                    await self._send_stream(parsed, parsed.framer, receive, sender, beating)
        except ServeError as problem:
            await send_problem(send, problem, endpoint.error)
        except ClientGoneError:
            RECORD.get().status = CLIENT_GONE
            logger.info("%s: the client went away", endpoint.path)

    async def worked(
        self,
        receive: Receive,
        model: str,
        work: Callable[[Engine, Callable[[], bool]], T],
        keep_alive_s: float | None = None,
    ) -> T:
        """Returns what ``work`` makes of an engine, in a thread.

        work: is given the engine, and what says whether the client went away.

        Raises:
            ServeError: There is no such model, it takes too long, or the request makes no sense.
            ClientGoneError: The client went away.
        """
        is_over = threading.Event()

        def reporting(engine: Engine) -> T:
            with client_errors():
                return work(engine, is_over.is_set)

        async def working() -> T:
            async with self._limited(), self.registry.lent(offer, keep_alive_s) as engine:
                task = asyncio.ensure_future(asyncio.to_thread(reporting, engine))
                try:
                    return await asyncio.shield(task)
                finally:
                    is_over.set()
                    await finished(asyncio.wait((task,)))  # the engine is lent until then

        offer = self._offer_of(model)
        return await while_there(receive, working())

    def _offer_of(self, model: str) -> Offer:
        """Returns the offered ``model``, and notes its name; a ServeError if there is none."""
        offer = self.registry.find(model)
        RECORD.get().model = offer.name
        return offer

    async def close(self) -> None:
        """Ends the threads, and unloads the models; requests have ended."""
        self.runner.close()
        await self.registry.close()

    async def _send_whole(
        self, parsed: ParsedRequest, receive: Receive, send: Send, more: Sequence[Header]
    ) -> None:
        events = await while_there(receive, self._events(parsed))
        document = parsed.whole(Answer.of(events, parsed.request.n_answers))
        await send_json(send, document, more=more)

    async def _events(self, parsed: ParsedRequest) -> list[Event]:
        events: list[Event] = []
        async with self._limited(), self.running(parsed, events.append) as run:
            await self._count(run)
        return events

    async def _send_stream(
        self,
        parsed: ParsedRequest,
        framer: Framer,
        receive: Receive,
        sender: StreamSender,
        beating: AbstractAsyncContextManager[None],
    ) -> None:
        try:
            async with beating:
                await while_there(receive, self._stream(framer, parsed, sender))
        except (ServeError, asyncio.CancelledError) as reason:
            if not sender.is_begun:
                raise
            problem = reason if isinstance(reason, ServeError) else ending()
            RECORD.get().status = problem.status
            await sender.end(framer.failed(problem))
        else:
            await sender.end(framer.end())

    async def _stream(self, framer: Framer, parsed: ParsedRequest, sender: StreamSender) -> None:
        def take(event: Event) -> None:
            sender.send_soon(partial(framer.of, event))

        first = b""

        def prepared(n_prompt: int) -> None:  # before any event: framers count what they make
            nonlocal first
            first = b"".join(framer.begin(n_prompt))

        async with self._limited(), self.running(parsed, take, prepared) as run:
            await sender.begin(first)
            await self._count(run)

    async def _count(self, run: RunningRequest) -> None:
        """Waits for the ends of all answers, and notes what they took."""
        async for done in run.ends():
            RECORD.get().add(done.counts)

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[None]:
        """Ends what is inside when it takes too long.

        Raises:
            ServeError: It did.
        """
        self.n_running += 1
        try:
            async with asyncio.timeout(self.settings.request_s):
                yield
        except TimeoutError:
            limit = f"{self.settings.request_s:g} s"
            raise ServeError(504, "timeout_error", f"the answer took more than {limit}") from None
        finally:
            self.n_running -= 1


async def _read(endpoint: Endpoint, data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for; a long one is read in a thread, so that others go on."""
    if len(data) <= _SHORT_BYTES:
        return endpoint.read(data, reply)
    return await asyncio.to_thread(endpoint.read, data, reply)
