"""What a model says to prompts, for trainings."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from edgedec.models.manifest import read_manifest

pytest.importorskip("torch", reason="needs the extra train")

from edgedec.apps.training.own_answers import OwnAnswers

PROMPTS = [[1, 4093, 198], [1, 9690, 198, 2683]]


@pytest.mark.e2e
def test_a_temperature_of_0_takes_the_likeliest_whatever_the_seed(smollm2_bundle: Path) -> None:
    manifest = read_manifest(smollm2_bundle)

    def texts(temperature: float, seed: int) -> list[list[int]]:
        n_steps = itertools.count(1)
        answers = OwnAnswers(
            smollm2_bundle,
            manifest,
            temperature,
            2,
            lambda what, done, total: None,
            lambda: next(n_steps) == 6,
        )
        return answers(PROMPTS, seed)

    likeliest = texts(0.0, 0)
    assert [len(text) for text in likeliest] == [9, 10]
    assert [text[: len(PROMPTS[i])] for i, text in enumerate(likeliest)] == PROMPTS
    assert texts(0.0, 1) == likeliest
    assert texts(1.5, 1) not in (likeliest, texts(1.5, 2))
