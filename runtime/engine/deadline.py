"""Outputs that end when their time is over."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult


def generate_until(
    engine: Engine, prompt: Sequence[int], request: GenerationConfig, deadline_s: float
) -> GenerationResult:
    """Returns the output, cut short where the monotonic clock passes ``deadline_s``."""
    stream = engine.stream(list(prompt), request)
    for _ in stream:
        if time.monotonic() > deadline_s:
            stream.stop()
    return stream.result
