"""Several requests at once, and requests of programs that await."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial

from edgedec.runtime.config.checks import check_callable
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Piece, Stream

OnResult = Callable[[int, GenerationResult], None]
"""Called with the place of a prompt among all, and its result."""

OpenStream = Callable[[], Stream]


def generate_many(
    openers: Sequence[OpenStream],
    n_at_once: int,
    on_progress: OnResult | None,
    first: int = 0,
    order: Sequence[int] | None = None,
) -> list[GenerationResult]:
    """Returns the results of streams in order; each is iterated in a thread of its own.

    openers: open the streams. n_at_once: most that are open.
    on_progress: see `Engine.generate_many`; the first stream's place is ``first``.
    order: the streams' places, in the order in which they are opened; their own by default.
    """
    if on_progress is not None:
        check_callable("on_progress", on_progress)
    with _writers(max(1, min(len(openers), n_at_once))) as begin:
        places = {begin(openers[place]): place for place in order or range(len(openers))}
        for done in as_completed(places):
            result = done.result()
            if on_progress is not None:
                on_progress(first + places[done], result)
        return [done.result() for done in sorted(places, key=places.__getitem__)]


def in_order(
    openers: Iterable[OpenStream], n_at_once: int, is_over: Callable[[], bool] = lambda: False
) -> Generator[GenerationResult, None, None]:
    """Yields the results of streams in order, which may be endless; closing it stops the others.

    openers: open the streams; at most twice ``n_at_once`` are written ahead. is_over: asked after
    each piece whether all streams end where they are.
    """
    with _writers(n_at_once, is_over) as begin:
        waiting: deque[Future[GenerationResult]] = deque()
        for open_stream in openers:
            waiting.append(begin(open_stream))
            if len(waiting) == 2 * n_at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _writers(
    n_at_once: int, is_over: Callable[[], bool] | None = None
) -> Iterator[Callable[[OpenStream], Future[GenerationResult]]]:
    """Lends what begins to write a stream in a thread; all streams end with the block."""
    streams: set[Stream] = set()
    is_left = False

    def take(stream: Stream, piece: Piece) -> None:
        if is_over is not None and is_over():
            stream.stop()

    def write(open_stream: OpenStream) -> GenerationResult:
        stream = open_stream()
        streams.add(stream)
        if is_left:
            stream.stop()
        try:
            return stream.write(partial(take, stream)) if is_over else stream.write()
        finally:
            streams.discard(stream)

    with ThreadPoolExecutor(n_at_once) as pool:
        try:
            yield lambda open_stream: pool.submit(write, open_stream)
        finally:
            is_left = True
            pool.shutdown(wait=False, cancel_futures=True)
            for stream in tuple(streams):
                stream.stop()


async def in_threads(open_stream: OpenStream) -> AsyncIterator[str]:
    """Yields the pieces of a stream, each computed in a thread; stops it at the end."""
    stream = await asyncio.to_thread(open_stream)
    try:
        while (piece := await asyncio.to_thread(next, stream, None)) is not None:
            yield piece
    finally:
        stream.stop()
