"""How much code a plain token runs: a pass empties the caches, so that each function costs time."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from edgedec.runtime.config.generation import GenerationConfig
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

MAX_FUNCTIONS = 70
"""Ours, and those of the standard library. It was 110 of ours when this was written."""


def test_a_plain_token_enters_few_functions(smollm2_bundle: Path) -> None:
    entered: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code)

    config = GenerationConfig(max_new_tokens=16, method="plain", ignore_eos=True)
    with load(smollm2_bundle, EngineOptions(threads=2)) as engine:
        stream = engine.stream("Why is the sky blue?", config)
        for _ in range(8):
            next(stream)
        sys.setprofile(note)
        try:
            next(stream)
        finally:
            sys.setprofile(None)
    names = sorted(f"{Path(code.co_filename).name}: {code.co_name}" for code in entered)
    assert len(names) <= MAX_FUNCTIONS, "\n".join(names)
