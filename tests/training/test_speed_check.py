"""What `edgedec train` ends with: speeds on texts that were held out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from edgedec.training import speed_check
from edgedec.training.features.feature_file import TextFeatures
from edgedec.training.kv_maps.kv_check import MapsCheck, PromptTimes, held_out_prompts
from edgedec.training.kv_maps.kv_progress import HELD_OUT
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
def test_bundles_are_measured_on_each_piece_but_the_first(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_check, "_BUDGET_S", math.inf)  # whatever else the machine does
    texts = [text_of(12, 1), text_of(300, 2)]  # pieces of 12, 128, 128 and 44 tokens
    found = measured_speeds(small_bundle, small_bundle, texts, 1, lambda: False)
    assert found is not None
    assert len(found.after) == len(found.before) == len(found.plain) == 3
    assert min(*found.after, *found.before, *found.plain) > 0
    assert measured_speeds(small_bundle, small_bundle, texts[:1], 1, lambda: False) is None
    assert measured_speeds(small_bundle, small_bundle, texts, 1, lambda: True) is None


def times_of(first: float, whole: float) -> PromptTimes:
    return PromptTimes(first, 100.0, whole, 400.0, n_shown=8, n_kept=6)


@pytest.mark.parametrize(("ratio", "is_gain"), [(0.5, True), (0.99, False), (1.4, False)])
def test_the_verdict_on_kv_maps_has_times_of_both_ways(ratio: float, is_gain: bool) -> None:
    check = MapsCheck(512, tuple(times_of(100 * ratio, 400 * ratio) for _ in range(3)))
    own, draft = check.own_text(), check.draft_text()
    assert f"takes {100 * ratio:.0f} ms, an exact first token 100 ms ({ratio:.2f} of" in own
    assert "18 of 24 provisional tokens were right" in own
    assert f"take {400 * ratio:.0f} ms, before 400 ms ({ratio:.2f} of the time)" in draft
    for text, advice in ((own, "No gain"), (draft, "No clear gain")):
        assert text.startswith("verdict on 3 prompts of 512 tokens from other texts")
        assert (advice in text) == (not is_gain)
    assert check.to_dict()["first_ratio"] == ratio


@pytest.mark.parametrize(
    ("lengths", "n_prompts", "n_tokens"),
    [([1024] * 10, 4, 512), ([1024] * 3, 4, 256), ([200] * 40, 0, 0), ([1024], 0, 0)],
)
def test_prompts_are_of_windows_that_maps_were_not_fitted_on(
    lengths: list[int], n_prompts: int, n_tokens: int
) -> None:
    prompts = held_out_prompts([i] * length for i, length in enumerate(lengths))
    assert [len(prompt) for prompt in prompts] == [n_tokens] * n_prompts
    assert {token % HELD_OUT for prompt in prompts for token in prompt} <= {1}
