"""The requests in progress, and their end when the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgedec.apps.serve.core import ServeError

END_S = 3
"""How long requests have to end before their connections are dropped."""


class OpenRequests:
    """The tasks that handle requests. is_ending: the server is shutting down."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_ending = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The current task handles a request inside the block.

        Raises:
            ServeError: The server is ending, or ends meanwhile.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.is_ending:
                raise ending()
            yield
        except asyncio.CancelledError:
            raise ending() from None
        finally:
            self._tasks.discard(task)

    async def end(self) -> None:
        """Cancels all requests, and waits a bounded time for them to end."""
        self.is_ending = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)


def ending() -> ServeError:
    """Returns the problem that the server is ending."""
    return ServeError(503, "unavailable_error", "the server is ending: try again later")
