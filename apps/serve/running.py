"""Requests on engines: each answer is written by a thread of its own, and told as events."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from edgedec.apps.serve.core import (
    CoreRequest,
    Counts,
    Done,
    EndReason,
    Event,
    Likely,
    ServeError,
    TokenInfo,
    invalid,
)
from edgedec.apps.serve.parsing import OutputParser
from edgedec.apps.serve.prompts import Prepared, prepare
from edgedec.apps.serve.responses import log_unexpected
from edgedec.apps.serve.settings import ServerSettings
from edgedec.apps.serve.waiting import finished
from edgedec.models.errors import ConfigError, EdgedecError, PromptTooLongError, SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.sampling.logprobs import TokenLogprob
from edgedec.runtime.text.tokenizer import Codec

_LEAST = -9999.0
"""Told in place of log-probabilities below it: JSON has no infinity."""

_REASONS: Mapping[str, EndReason] = {"stop": "stop", "length": "length", "context": "length"}


class Run:
    """One request in progress: iterate its events, and `close` it, whatever happened."""

    def __init__(
        self,
        streams: Sequence[Stream],
        prepared: Prepared,
        codec: Codec,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._streams = streams
        self._prepared = prepared
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | ServeError] = asyncio.Queue()
        self._is_cancelled = False
        self._jobs = [
            pool.submit(self._write, index, stream) for index, stream in enumerate(streams)
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
        for job in self._jobs:
            job.cancel()  # those that wait for a thread
        await finished(self._end())

    async def _end(self) -> None:
        for stream in self._streams:
            if not stream.is_finished:
                await asyncio.to_thread(stream.stop)
        await asyncio.gather(*map(asyncio.wrap_future, self._jobs), return_exceptions=True)

    def _write(self, index: int, stream: Stream) -> None:
        """Writes an answer, in a thread of its own."""
        found = self._prepared
        parser = OutputParser(index, found.has_calls, found.is_thinking)
        n_told = 0
        try:
            while not self._is_cancelled and (text := next(stream, None)) is not None:
                tokens = stream.logprobs[n_told:]
                n_told += len(tokens)
                self._tell_all(parser.push(text, self._infos(tokens)))
            if stream.is_finished and stream.result.finish_reason in _REASONS:
                self._tell_all(parser.push("", self._infos(stream.logprobs[n_told:])))
                self._tell_all(parser.flush())
                self._tell(_done(index, stream.result, parser.n_calls > 0))
        except EdgedecError as error:
            self._tell(ServeError(500, "server_error", str(error)))
        except Exception as error:  # a client must not wait for an answer that nobody writes
            log_unexpected(error)
            self._tell(ServeError(500, "server_error", f"unexpected {type(error).__name__}"))

    def _infos(self, tokens: Sequence[TokenLogprob]) -> list[TokenInfo]:
        def likely(token: int, logprob: float) -> Likely:
            return Likely(self._codec.decode([token]), token, max(logprob, _LEAST))

        return [
            TokenInfo(likely(one.token, one.logprob), [likely(*pair) for pair in one.top])
            for one in tokens
        ]

    def _tell_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self._tell(event)

    def _tell(self, event: Event | ServeError) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)


def _done(index: int, result: GenerationResult, has_calls: bool) -> Done:
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
    reason = _REASONS[result.finish_reason]
    return Done(index, "tool_calls" if has_calls and reason == "stop" else reason, counts)


class Runner:
    """Starts requests on engines, within the limits of the settings."""

    def __init__(self, settings: ServerSettings) -> None:
        self._pool = ThreadPoolExecutor(settings.max_parallel, "answer")
        self._settings = settings

    async def start(self, engine: Engine, request: CoreRequest) -> Run:
        """Returns ``request`` in progress.

        Raises:
            ServeError: The request makes no sense, or does not fit the context.
        """
        streams, prepared = await finished(asyncio.to_thread(self._streams, engine, request))
        return Run(streams, prepared, engine.tokenizer, self._pool)

    def close(self) -> None:
        """Ends the threads; all requests have ended."""
        self._pool.shutdown(cancel_futures=True)

    def _streams(self, engine: Engine, request: CoreRequest) -> tuple[list[Stream], Prepared]:
        with told_problems():
            prepared = prepare(engine, request.prompt)
            tokens = prepared.tokens
            config = self._config(engine, {**request.settings, **prepared.settings}, len(tokens))
            seeds = [config.seed + index for index in range(request.n)]
            return [engine.stream(tokens, replace(config, seed=seed)) for seed in seeds], prepared

    def _config(self, engine: Engine, stated: Mapping[str, Any], n_prompt: int) -> GenerationConfig:
        n_room = max(1, engine.context + 1 - n_prompt)
        settings: dict[str, Any] = {
            "seed": secrets.randbelow(2**31),
            "max_new_tokens": n_room,
            **stated,
        }
        n_most = min(settings["max_new_tokens"], self._settings.max_new_tokens)
        config = GenerationConfig.from_dict({**settings, "max_new_tokens": n_most})
        self._check_constraint(config)
        sampling = replace(engine.defaults.sampling, **stated.get("sampling", {}))
        return replace(config, sampling=sampling)

    def _check_constraint(self, config: GenerationConfig) -> None:
        if config.constraint is None:
            return
        kind, text = config.constraint
        n_bytes, most = len(text.encode("utf-8", "replace")), self._settings.max_constraint_bytes
        if n_bytes > most:
            raise invalid(f"{kind} has {n_bytes} bytes, expected at most {most}: make it smaller")


@contextmanager
def told_problems() -> Iterator[None]:
    """Turns what is wrong with a request into words of clients.

    Raises:
        ServeError: Something is.
    """
    try:
        yield
    except PromptTooLongError as error:
        # The type and the two numbers are what clients of llama-server match on.
        numbers = {"n_prompt_tokens": error.n_tokens, "n_ctx": error.context}
        raise ServeError(400, "exceed_context_size_error", str(error), **numbers) from None
    except (ConfigError, SessionError) as error:
        raise invalid(str(error)) from None
