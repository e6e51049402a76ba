"""Waiting for work that no cancellation may leave half done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of ``work``, which goes on to its end even if the caller is cancelled.

    Threads cannot be cancelled, and what they use must not be given to others before they end.

    Raises:
        CancelledError: The caller was cancelled; ``work`` has ended nevertheless.
    """
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            is_cancelled = True
    result = task.result()
    if is_cancelled:
        raise asyncio.CancelledError
    return result
