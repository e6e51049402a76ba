"""What `edgedec train` ends with: speeds on texts that were held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec.training.features.feature_file import TextFeatures
from edgedec.training.speed_check import Speeds, measured_speeds


@pytest.mark.parametrize(
    ("after", "outcome", "words"),
    [
        ((20.0, 24.0, 22.0, 21.0), "faster", "2.15 times as fast as before"),
        ((10.1, 9.9, 10.0, 10.2), "same", "no clear difference, 1.00 times the speed of before"),
        ((30.0, 9.0, 30.0, 9.0), "same", "no clear difference"),
        ((8.0, 9.0, 7.0, 8.0), "slower", "slower, 0.80 times the speed of before"),
    ],
)
def test_the_verdict_needs_most_texts(after: tuple[float, ...], outcome: str, words: str) -> None:
    speeds = Speeds(after, (10.0,) * 4, (9.0,) * 4)
    assert speeds.outcome == outcome
    text = speeds.text(Path("old.edgedec"))
    assert f"verdict on 4 pieces of other texts: {words}" in text
    assert "before 10.0, without any drafts 9.0" in text
    assert ("old.edgedec is as it was" in text) == (outcome != "faster")
    assert speeds.to_dict()["outcome"] == outcome


def text_of(length: int, seed: int) -> TextFeatures:
    tokens = np.random.default_rng(seed).integers(100, 200, length).astype(np.int32)
    half = np.zeros((length, 0), np.float16)
    return TextFeatures(".txt", tokens, half, tokens[:, None], half)


@pytest.mark.e2e
def test_bundles_are_measured_on_each_piece_but_the_first(small_bundle: Path) -> None:
    texts = [text_of(12, 1), text_of(300, 2)]  # pieces of 12, 128, 128 and 44 tokens
    found = measured_speeds(small_bundle, small_bundle, texts, 1, lambda: False)
    assert found is not None
    assert len(found.after) == len(found.before) == len(found.plain) == 3
    assert min(*found.after, *found.before, *found.plain) > 0
    assert measured_speeds(small_bundle, small_bundle, texts[:1], 1, lambda: False) is None
    assert measured_speeds(small_bundle, small_bundle, texts, 1, lambda: True) is None
