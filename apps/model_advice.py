"""Which named models suit this machine: their estimated speed, and one model for each use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edgedec.kernels import limits
from edgedec.system.machine import last_caches
from edgedec.system.memory import memory_bytes
from edgedec.system.processors import physical_cores

MIN_TOKENS_PER_S: Mapping[str, float] = {"chat": 8.0, "code": 25.0}
"""Slower models are not suggested: people read faster, or have typed on by then."""

_MEASURED_S = 0.1
_MIN_BYTES, _MAX_BYTES = 1 << 26, 1 << 29
_UNKNOWN_RATE = 10e9
"""Bytes per second, where the kernels cannot measure."""


def measured_read_rate() -> float:
    """Returns how fast this machine reads memory now. Units: bytes per second."""
    total, available = memory_bytes()
    cached = max((cache.size_bytes for cache in last_caches()), default=0)
    n_bytes = min(max(_MIN_BYTES, 4 * cached), _MAX_BYTES, (available or total) // 8)
    try:
        return limits.read_rate(np.ones(n_bytes, np.uint8), physical_cores(), _MEASURED_S)
    except (RuntimeError, OSError, MemoryError):
        return _UNKNOWN_RATE


def tokens_per_s(n_bytes: int, read_rate: float) -> float:
    """Returns the estimated speed of plain decoding, which reads every weight once per token.

    n_bytes: weights that a token reads. read_rate: bytes per second.
    """
    return read_rate / max(1, n_bytes)


def suggested_names(models: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the name of one model for each use: the largest that fits and is fast enough.

    If none is fast enough, it is the fastest one that fits.
    """
    suggested: dict[str, str] = {}
    listed = [model for model in models if model.get("fits") and model.get("kind")]
    for kind, least in MIN_TOKENS_PER_S.items():
        fitting = [model for model in listed if model["kind"] == kind]
        fast = [model for model in fitting if model["tokens_per_s"] >= least]
        if fast:
            suggested[kind] = max(fast, key=lambda model: (model["n_bytes"], model["name"]))["name"]
        elif fitting:
            suggested[kind] = max(fitting, key=lambda model: model["tokens_per_s"])["name"]
    return suggested
