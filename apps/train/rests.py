"""Rests between the steps of a training, for a share of the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edgedec.models.errors import ConfigError

if TYPE_CHECKING:
    from edgedec.training.loop import OnProgress


def resting(report: OnProgress, share: float) -> OnProgress:
    """Returns ``report``, which then waits for so long that work takes a ``share`` of the time.

    Raises:
        ConfigError: ``share`` is 0.
    """
    if share <= 0:
        raise ConfigError("--max-cpu is 0, so nothing would ever be learned: expected more")
    began_s = time.monotonic()

    def rest(phase: str, done: int, total: int, detail: str = "") -> None:
        nonlocal began_s
        report(phase, done, total, detail)
        time.sleep((time.monotonic() - began_s) * (1 / share - 1))
        began_s = time.monotonic()

    return rest
