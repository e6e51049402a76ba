"""Several requests at once, and requests of programs that await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from edgedec.runtime.config.checks import check_callable
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream

OnResult = Callable[[int, GenerationResult], None]
"""Called with the place of a prompt among all, and its result."""


def generate_many(
    openers: Sequence[Callable[[], Stream]],
    n_at_once: int,
    on_progress: OnResult | None,
    first: int = 0,
) -> list[GenerationResult]:
    """Returns the results of streams in order; each is iterated in a thread of its own.

    openers: open the streams. n_at_once: most that are open.
    on_progress: see `Engine.generate_many`; the first stream's place is ``first``.
    """
    if on_progress is not None:
        check_callable("on_progress", on_progress)
    found: dict[int, GenerationResult] = {}
    streams: list[Stream] = []
    is_over = False

    def generate(place: int) -> int:
        if not is_over:
            stream = openers[place]()
            streams.append(stream)
            found[place] = stream.write()
        return place

    with ThreadPoolExecutor(max(1, min(len(openers), n_at_once))) as pool:
        try:
            for done in as_completed([pool.submit(generate, i) for i in range(len(openers))]):
                place = done.result()
                if on_progress is not None:
                    on_progress(first + place, found[place])
        finally:
            is_over = True
            for stream in streams:
                stream.stop()
    return [found[i] for i in range(len(openers))]


async def in_threads(open_stream: Callable[[], Stream]) -> AsyncIterator[str]:
    """Yields the pieces of a stream, each computed in a thread; stops it at the end."""
    stream = await asyncio.to_thread(open_stream)
    try:
        while (piece := await asyncio.to_thread(next, stream, None)) is not None:
            yield piece
    finally:
        stream.stop()
