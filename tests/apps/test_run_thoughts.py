"""Thoughts beside an answer: on standard error, while standard output has the answer alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.stream_text import ShowOptions, write_stream

from .serve.test_thoughts import ASK, REASONING, TEXT, Thinker

pytest.importorskip("uvicorn")


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_thought_is_written_apart(
    smollm2_bundle: Path, capsys: pytest.CaptureFixture[str], is_silent: bool
) -> None:
    with Thinker(smollm2_bundle).load(smollm2_bundle) as engine:
        stream = engine.stream(ASK, max_new_tokens=64)
        with ProgressBars(count_amount) as bars:
            write_stream(stream, bars, ShowOptions(), is_silent)
    written = capsys.readouterr()
    assert written.out == ("" if is_silent else f"{TEXT}\n")
    assert (REASONING in written.err) == (not is_silent)
