"""Who chose the sampling is said where it was not the user."""

from __future__ import annotations

import pytest

from edgedec.apps.options.common import tell_if_recommended
from edgedec.runtime.config import GenerationConfig, SamplingConfig

GREEDY = GenerationConfig()
RECOMMENDED = GenerationConfig(sampling=SamplingConfig(temperature=0.7, top_k=20))


def test_a_recommendation_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tell_if_recommended(RECOMMENDED, RECOMMENDED)
    reported = " ".join(capsys.readouterr().err.split())
    assert "publisher recommends: temperature 0.7, top_k 20 (--temperature 0: greedy)" in reported


def test_what_was_asked_for_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    own = GenerationConfig(sampling=SamplingConfig(temperature=0.0, top_k=20))
    tell_if_recommended(own, RECOMMENDED)
    tell_if_recommended(GREEDY, GREEDY)
    assert capsys.readouterr() == ("", "")
