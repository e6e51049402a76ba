"""Requests on engines: each answer has a thread that waits for its end."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from edgedec.apps.serve.answering import AnswerJob, Writer
from edgedec.apps.serve.core import CoreRequest, Done, Event, ServeError, invalid
from edgedec.apps.serve.problems import client_errors
from edgedec.apps.serve.prompts import prepare
from edgedec.apps.serve.records import PREFIX_GROUP
from edgedec.apps.serve.sampler_chain import SamplerChain
from edgedec.apps.serve.settings import ServerSettings
from edgedec.apps.serve.waiting import finished
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine


class RunningRequest:
    """One request in progress: iterate its ends, and `close` it, whatever happened."""

    def __init__(self, engine: Engine, take: Callable[[Event], None]) -> None:
        """take: is given each event, in whichever thread does the step, one at a time."""
        self._engine = engine
        self._take_event = take
        self._taking = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._ends: asyncio.Queue[Done | ServeError] = asyncio.Queue()
        self._writers: list[Writer] = []
        self._futures: list[Future[None]] = []
        self.n_prompt = 0  # tokens

    def take(self, jobs: Sequence[AnswerJob]) -> None:
        """Has the engine check the first answer; the others differ in their seed or prompt alone.

        Raises:
            ServeError: The request makes no sense.
        """
        self._writers = [Writer(self._engine, job, self._tell) for job in jobs]
        self.n_prompt = sum(len(job.prepared.tokens) for job in jobs)
        if self._writers:
            self._writers[0].open()

    def begin(self, pool: ThreadPoolExecutor) -> None:
        """Has threads write the answers."""
        self._futures = [pool.submit(self._write, writer) for writer in self._writers]

    async def ends(self) -> AsyncIterator[Done]:
        """Yields the end of each answer; all that happened before has been taken then.

        Raises:
            ServeError: An answer cannot go on.
        """
        for _ in self._writers:
            end = await self._ends.get()
            if isinstance(end, ServeError):
                raise end
            yield end

    async def close(self) -> None:
        """Ends the answers that are not complete; returns when no thread computes them any more."""
        for future in self._futures:
            future.cancel()  # those that wait for a thread
        await finished(self._end())

    async def _end(self) -> None:
        if not self._is_complete:
            await asyncio.to_thread(self._stop)
        await asyncio.gather(*map(asyncio.wrap_future, self._futures), return_exceptions=True)

    @property
    def _is_complete(self) -> bool:
        are_begun = len(self._futures) == len(self._writers)
        return are_begun and all(
            future.done() and not future.cancelled() for future in self._futures
        )

    def _stop(self) -> None:
        for writer in self._writers:
            writer.stop()

    def _write(self, writer: Writer) -> None:
        if (problem := writer.write()) is not None:
            self._loop.call_soon_threadsafe(self._ends.put_nowait, problem)

    def _tell(self, event: Event) -> None:
        with self._taking:
            self._take_event(event)
        if isinstance(event, Done):
            self._loop.call_soon_threadsafe(self._ends.put_nowait, event)


class Runner:
    """Starts requests on engines, within the limits of the settings."""

    def __init__(self, settings: ServerSettings) -> None:
        self._pool = ThreadPoolExecutor(settings.max_parallel, "answer")
        self._settings = settings

    @asynccontextmanager
    async def running(
        self,
        engine: Engine,
        request: CoreRequest,
        take: Callable[[Event], None],
        prepared: Callable[[int], None] = lambda n_prompt: None,
    ) -> AsyncIterator[RunningRequest]:
        """Runs ``request`` until the block is left.

        take: as for `RunningRequest`. prepared: called with the tokens of the prompts, before any
            event.

        Raises:
            ServeError: The request makes no sense, or does not fit the context.
        """
        run = RunningRequest(engine, take)
        try:
            await finished(asyncio.to_thread(self._prepare, run, engine, request))
            prepared(run.n_prompt)
            run.begin(self._pool)
            yield run
        finally:
            await run.close()

    def close(self) -> None:
        """Ends the threads; all requests have ended."""
        self._pool.shutdown(cancel_futures=True)

    def _prepare(self, run: RunningRequest, engine: Engine, request: CoreRequest) -> None:
        with client_errors():
            jobs = self._jobs(engine, request)
        run.take(jobs)

    def _jobs(self, engine: Engine, request: CoreRequest) -> list[AnswerJob]:
        settings = {"seed": secrets.randbelow(2**31), **request.settings}
        jobs: list[AnswerJob] = []
        for prepared in [prepare(engine, prompt, request.settings) for prompt in request.prompts]:
            config = self._config(engine, {**settings, **prepared.settings}, len(prepared.tokens))
            for i in range(request.n):
                seeded = replace(config, seed=config.seed + i)
                jobs.append(
                    AnswerJob(
                        len(jobs),
                        prepared,
                        seeded,
                        request.echo,
                        request.is_silent,
                        request.with_origins,
                        request.with_progress,
                        request.lines,
                    )
                )
        return jobs

    def _config(
        self, engine: Engine, settings: Mapping[str, Any], n_prompt: int
    ) -> GenerationConfig:
        n_room = max(1, engine.context + 1 - n_prompt)
        n_most = min(settings.get("max_new_tokens", n_room), self._settings.max_new_tokens)
        fixed = {"max_new_tokens": n_most, "prefix_group": PREFIX_GROUP.get()}
        values = {**settings, **fixed}
        chain: SamplerChain = values.pop("chain", SamplerChain())
        config = GenerationConfig.from_dict(values)
        self._check_constraint(config)
        sampling = replace(engine.defaults.sampling, **settings.get("sampling", {}))
        return replace(config, sampling=chain.applied(sampling, n_prompt + n_most))

    def _check_constraint(self, config: GenerationConfig) -> None:
        if config.constraint is None:
            return
        kind, text = config.constraint
        n_bytes, most = len(text.encode("utf-8", "replace")), self._settings.max_constraint_bytes
        if n_bytes > most:
            raise invalid(f"{kind} has {n_bytes} bytes, expected at most {most}: make it smaller")
