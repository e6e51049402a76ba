"""What a result looks like in a notebook: one short line."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec

pytestmark = pytest.mark.slow


def test_a_result_in_short(small_bundle: Path) -> None:
    with edgedec.load(small_bundle) as engine:
        found = engine.generate("Once upon a time", max_new_tokens=40, ignore_eos=True)
    assert repr(found).startswith("GenerationResult(")
    assert repr(found).endswith(" 40 new tokens, length)")
    assert len(repr(found)) < 320


def test_a_prompt_that_is_too_long_has_an_error_of_its_own(small_bundle: Path) -> None:
    with (
        edgedec.load(small_bundle, edgedec.EngineOptions(context=16)) as engine,
        pytest.raises(edgedec.PromptTooLongError) as caught,
    ):
        engine.generate("word " * 40)
    assert caught.value.n_tokens > caught.value.context
