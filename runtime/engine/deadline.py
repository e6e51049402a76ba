"""Outputs that end when their time is over."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.many import in_order
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


def generate_many_until(
    engine: Engine,
    prompts: Iterable[Sequence[int]],
    request: GenerationConfig,
    deadline_s: float,
    n_at_once: int,
) -> list[GenerationResult]:
    """Returns the outputs in order, cut short where the monotonic clock passes ``deadline_s``.

    n_at_once: how many are written side by side; each is as it would be alone.
    """
    openers = (partial(engine.stream, list(prompt), request) for prompt in prompts)
    return list(in_order(openers, n_at_once, lambda: time.monotonic() > deadline_s))
