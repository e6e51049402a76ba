"""What a model says to prompts, for trainings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.verifying.verify import log_softmax
from edgedec.models.hidden_states import normed
from edgedec.models.manifest import read_manifest
from edgedec.models.reference import ReferenceModel
from edgedec.models.weights import WeightSource
from edgedec.runtime.opening.load import load

pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features import own_answers
from edgedec.training.features.feature_file import FeatureFile, TextFeatures
from edgedec.training.features.feature_reader import FeatureReader
from edgedec.training.features.own_answers import OwnAnswers

PROMPTS = [[1, 4093, 198], [1, 9690, 198, 2683]]
LAYERS = (30,)


@pytest.fixture
def answer(smollm2_bundle: Path) -> Callable[[float, int], list[TextFeatures]]:
    """What SmolLM2 says to the prompts, five tokens of each, at a temperature and with a seed."""
    manifest = read_manifest(smollm2_bundle)

    def answer(temperature: float, seed: int) -> list[TextFeatures]:
        n_asked = itertools.count(1)
        answers = OwnAnswers(
            smollm2_bundle,
            manifest,
            LAYERS,
            temperature,
            2,
            lambda: next(n_asked) == 6,
        )
        return list(answers([PROMPTS], seed))

    return answer


@pytest.mark.e2e
def test_a_temperature_of_0_takes_the_likeliest_whatever_the_seed(
    answer: Callable[[float, int], list[TextFeatures]],
) -> None:
    def texts(temperature: float, seed: int) -> list[list[int]]:
        return [text.tokens.tolist() for text in answer(temperature, seed)]

    likeliest = texts(0.0, 0)
    assert [len(text) for text in likeliest] == [8, 9]
    assert [text[: len(PROMPTS[i])] for i, text in enumerate(likeliest)] == PROMPTS
    assert texts(0.0, 1) == likeliest
    assert texts(1.5, 1) not in (likeliest, texts(1.5, 2))


@pytest.mark.e2e
def test_what_was_seen_while_writing_is_as_near_to_the_floats_as_what_reading_sees(
    answer: Callable[[float, int], list[TextFeatures]],
    smollm2_bundle: Path,
    smollm2_gguf: Path,
    tmp_path: Path,
) -> None:
    written = answer(0.0, 0)
    file = FeatureFile(tmp_path, (), len(LAYERS) * 576)
    with load(smollm2_bundle) as engine:
        reader = FeatureReader(
            engine, LAYERS, 1e-5, file, lambda what, done, total: None, lambda: False
        )
        # Windows of less than 16 tokens are not read.
        reader.read([("", [*text.tokens.tolist(), *[1] * 16]) for text in written], 100)
    read = [w.piece(0, len(t.tokens)) for t, w in zip(written, file.texts(), strict=True)]
    for text, same in zip(written, read, strict=True):
        assert (text.top_ids[:, 0] == same.top_ids[:, 0]).all()
    # Both round rows to eight bits for products, and not where the other does: how far that leads
    # from the floats depends on the last bits of torch's sums, and so on the processor.
    source = open_checkpoint(str(smollm2_gguf))
    hidden, probability = errors(written, source)
    read_hidden, read_probability = errors(read, source)
    assert hidden < 1.2 * read_hidden < 0.03
    assert probability < 2 * read_probability < 0.04


def errors(texts: list[TextFeatures], source: WeightSource) -> tuple[float, float]:
    """Returns how far hidden states and the likeliest tokens' probabilities are from the floats'.

    Roots of mean squares over all tokens; the first is relative to the length of the hidden state.
    """
    hidden, probability = [], []
    for text in texts:
        exact = ReferenceModel(source).forward(text.tokens.tolist())
        states = normed(exact.hidden[LAYERS[0]], 1e-5)
        distance = np.linalg.norm(text.hidden - states, axis=1)
        hidden.append(distance / np.linalg.norm(states, axis=1))
        top = np.take_along_axis(np.exp(log_softmax(exact.logits)), text.top_ids[:, :1], axis=1)
        probability.append(text.top_probs[:, :1].astype(float) - top)
    return rms(hidden), rms(probability)


def rms(parts: list[npt.NDArray[np.float64]]) -> float:
    return float(np.sqrt(np.mean(np.square(np.concatenate(parts)))))


@pytest.mark.e2e
def test_groups_come_in_their_turn_and_are_the_same_however_many_are_answered_at_once(
    smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_answers, "_WRITTEN", 4)
    manifest, groups = read_manifest(smollm2_bundle), [PROMPTS[:1], PROMPTS[1:], PROMPTS, PROMPTS]

    def texts(n_threads: int) -> list[list[int]]:
        answers = OwnAnswers(smollm2_bundle, manifest, (), 1.0, n_threads, lambda: False)
        told: list[int] = []
        found = [text.tokens.tolist() for text in answers(groups, 7, told.append)]
        assert told == sorted(told)
        assert told[-1] == sum(map(len, found)) + len(found)
        return found

    one = texts(1)
    assert [text[:3] for text in one] == [prompt[:3] for group in groups for prompt in group]
    assert one[2:4] != one[4:]
    assert texts(3) == one


@pytest.mark.e2e
def test_what_is_no_longer_wanted_is_not_written(
    smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_answers, "_WRITTEN", n_new := 8)
    answers = OwnAnswers(smollm2_bundle, read_manifest(smollm2_bundle), (), 0.0, 2, lambda: False)
    told: list[int] = []
    texts = answers(itertools.repeat(PROMPTS), 0, told.append)
    next(texts)
    texts.close()
    assert told[-1] <= 3 * sum(len(prompt) + n_new for prompt in PROMPTS)
