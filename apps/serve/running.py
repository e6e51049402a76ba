"""Requests on engines: each answer is written by a thread of its own, and told as events."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from edgedec.apps.serve.core import (
    ChatPrompt,
    CoreRequest,
    Counts,
    Done,
    EndReason,
    Event,
    ServeError,
    TextDelta,
    invalid,
)
from edgedec.models.errors import ConfigError, EdgedecError, PromptTooLongError, SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine import Engine
from edgedec.runtime.requests.result import GenerationResult
from edgedec.runtime.requests.stream import Stream

_REASONS: Mapping[str, EndReason] = {"stop": "stop", "length": "length", "context": "length"}


class Run:
    """One request in progress: iterate its events, and `close` it, whatever happened."""

    def __init__(self, streams: Sequence[Stream], pool: ThreadPoolExecutor) -> None:
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | ServeError] = asyncio.Queue()
        self._is_cancelled = False
        self._jobs = [
            self._loop.run_in_executor(pool, self._write, index, stream)
            for index, stream in enumerate(streams)
        ]

    async def events(self) -> AsyncIterator[Event]:
        """Yields what happens until all answers are complete.

        Raises:
            ServeError: An answer cannot go on.
        """
        n_left = len(self._streams)
        while n_left:
            event = await self._queue.get()
            if isinstance(event, ServeError):
                raise event
            yield event
            n_left -= isinstance(event, Done)

    async def close(self) -> None:
        """Ends the answers that are not complete; returns when no thread computes them any more."""
        self._is_cancelled = True
        for stream in self._streams:
            if not stream.is_finished:
                await asyncio.to_thread(stream.stop)
        await asyncio.gather(*self._jobs)

    def _write(self, index: int, stream: Stream) -> None:
        """Writes an answer, in a thread of its own."""
        try:
            while not self._is_cancelled and (text := next(stream, None)) is not None:
                if text:
                    self._tell(TextDelta(index, text))
            if stream.is_finished and stream.result.finish_reason in _REASONS:
                self._tell(_done(index, stream.result))
        except EdgedecError as error:
            self._tell(ServeError(500, "server_error", str(error)))
        except Exception as error:  # a client must not wait for an answer that nobody writes
            self._tell(ServeError(500, "server_error", f"unexpected {type(error).__name__}"))

    def _tell(self, event: Event | ServeError) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)


def _done(index: int, result: GenerationResult) -> Done:
    stats = result.stats
    counts = Counts(
        n_prompt=result.n_prompt_tokens,
        n_cached=stats.n_reused_tokens,
        n_new=result.n_new_tokens,
        prompt_ms=result.ttft_ms,
        decode_ms=result.tpot_ms * max(0, result.n_new_tokens - 1),
        n_drafted=stats.n_evaluated,
        n_accepted=stats.n_accepted,
        method=result.method,
        lossless=result.lossless,
    )
    return Done(index, _REASONS[result.finish_reason], counts)


class Runner:
    """Starts requests on engines. n_threads: answers that are written at once."""

    def __init__(self, n_threads: int, max_new_tokens: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, "answer")
        self._max_new_tokens = max_new_tokens

    async def start(self, engine: Engine, request: CoreRequest) -> Run:
        """Returns ``request`` in progress.

        Raises:
            ServeError: The request makes no sense, or does not fit the context.
        """
        streams = await asyncio.to_thread(self._streams, engine, request)
        return Run(streams, self._pool)

    def close(self) -> None:
        """Ends the threads; all requests have ended."""
        self._pool.shutdown(cancel_futures=True)

    def _streams(self, engine: Engine, request: CoreRequest) -> list[Stream]:
        try:
            tokens = encode(engine, request)
            config = self._config(engine, request, len(tokens))
            seeds = [config.seed + index for index in range(request.n)]
            return [engine.stream(tokens, replace(config, seed=seed)) for seed in seeds]
        except PromptTooLongError as error:
            raise too_long(error) from None
        except (ConfigError, SessionError) as error:
            raise invalid(str(error)) from None

    def _config(self, engine: Engine, request: CoreRequest, n_prompt: int) -> GenerationConfig:
        n_room = max(1, engine.context + 1 - n_prompt)
        settings: dict[str, Any] = {
            "seed": secrets.randbelow(2**31),
            "max_new_tokens": min(n_room, self._max_new_tokens),
            **request.settings,
        }
        settings["max_new_tokens"] = min(settings["max_new_tokens"], self._max_new_tokens)
        stated = GenerationConfig.from_dict(settings)
        sampling = replace(engine.defaults.sampling, **request.settings.get("sampling", {}))
        return replace(stated, sampling=sampling)


def encode(engine: Engine, request: CoreRequest) -> list[int]:
    """Returns the token ids of a request's prompt.

    Raises:
        SessionError: It is empty, refused by the chat template, or too long.
    """
    prompt = request.prompt
    tokens = engine.encode(list(prompt.messages) if isinstance(prompt, ChatPrompt) else prompt.text)
    if len(tokens) > engine.context:
        raise PromptTooLongError(len(tokens), engine.context)
    return tokens


def too_long(error: PromptTooLongError) -> ServeError:
    """Returns the problem in the words that clients of llama-server match on."""
    return ServeError(
        400,
        "exceed_context_size_error",
        str(error),
        n_prompt_tokens=error.n_tokens,
        n_ctx=error.context,
    )
