"""What a model says to prompts, for trainings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.training.features import own_answers
from edgedec.training.features.feature_file import SELF, FeatureFile
from edgedec.training.features.feature_reader import FeatureReader
from edgedec.training.features.own_answers import OwnAnswers

pytestmark = pytest.mark.e2e

PROMPTS = [[1, 4093, 198], [1, 9690, 198, 2683], [1, 504, 2365, 6354], [1, 1604, 198]]
LAYERS = (30,)


@pytest.fixture
def engine(smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """SmolLM2, whose answers are short."""
    monkeypatch.setattr(own_answers, "_WRITTEN", 6)
    with load(smollm2_bundle) as engine:
        yield engine


def texts(engine: Engine, temperature: float, n_at_once: int, first: int = 0) -> list[list[int]]:
    return list(OwnAnswers(engine, temperature, n_at_once, lambda: False)(PROMPTS, first))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_that_of_the_engine_alone_however_many_are_written_at_once(
    engine: Engine, temperature: float
) -> None:
    expected = []
    for seed, prompt in enumerate(PROMPTS, 7):
        sampling = SamplingConfig(temperature=temperature)
        config = GenerationConfig(max_new_tokens=6, sampling=sampling, seed=seed, method="plain")
        expected.append([*prompt, *engine.generate(prompt, config).token_ids])
    assert texts(engine, temperature, 1, first=7) == expected
    assert texts(engine, temperature, 3, first=7) == expected


def test_a_temperature_of_0_takes_the_likeliest_whatever_the_number(engine: Engine) -> None:
    assert texts(engine, 0.0, 2, first=0) == texts(engine, 0.0, 2, first=9)
    assert texts(engine, 1.5, 2, first=0) != texts(engine, 1.5, 2, first=9)


def test_long_prompts_lose_their_beginning(engine: Engine) -> None:
    prompt = list(range(1000, 1600))
    (text,) = OwnAnswers(engine, 0.0, 2, lambda: False)([prompt])
    assert text[: 512 - 6] == prompt[6 - 512 :]
    assert len(text) == 512


def test_what_is_no_longer_wanted_is_not_written(engine: Engine) -> None:
    asked = []

    def prompts() -> Iterator[list[int]]:
        for prompt in itertools.cycle(PROMPTS):
            asked.append(prompt)
            yield prompt

    found = OwnAnswers(engine, 0.0, 2, lambda: False)(prompts())
    next(found)
    found.close()
    assert len(asked) == 4
    engine.close()  # no stream goes on, or this is an error


def test_answers_end_where_they_are(engine: Engine) -> None:
    (text,) = OwnAnswers(engine, 0.0, 1, lambda: True)(PROMPTS[:1])
    assert len(text) < len(PROMPTS[0]) + 6


def test_a_file_holds_what_reading_the_answers_shows(engine: Engine, tmp_path: Path) -> None:
    def reader(folder: str) -> tuple[FeatureReader, FeatureFile]:
        file = FeatureFile(tmp_path / folder, (), len(LAYERS) * 576)
        own = FeatureReader(engine, LAYERS, 1e-5, file, lambda *call: None, lambda: False)
        return own, file

    expected = texts(engine, 0.7, 1)
    (writing, written), (reading, read) = reader("written"), reader("read")
    n_tokens = sum(map(len, expected[:2]))
    writing.write(PROMPTS, n_tokens, OwnAnswers(engine, 0.7, 1, lambda: False))
    # What is missing is written later, with other texts beside it.
    writing.write(PROMPTS, n_tokens + 1, OwnAnswers(engine, 0.7, 3, lambda: False))
    assert [text.tokens.tolist() for text in written.texts()] == expected[:3]
    assert set(written.kinds) == {SELF}
    # Windows of less than 16 tokens are not read; what comes later changes no row.
    reading.read([("", [*text, *[1] * 16]) for text in expected[:3]], 10_000)
    for text, whole in zip(written.texts(), read.texts(), strict=True):
        same = whole.piece(0, len(text.tokens))
        np.testing.assert_array_equal(text.hidden, same.hidden)
        np.testing.assert_array_equal(text.top_ids, same.top_ids)
        np.testing.assert_array_equal(text.top_probs, same.top_probs)
