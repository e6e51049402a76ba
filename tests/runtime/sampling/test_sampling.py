"""Sampling against a plain float64 reference, and the distribution of its draw."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import (
    History,
    Survivors,
    draw,
    draw_whole,
    edit,
    greedy,
    pick,
    top_k,
    truncate,
)

Float64 = npt.NDArray[np.float64]
NOISE = Noise(0)


def reference_probs(
    row: npt.NDArray[np.float32], config: SamplingConfig, prompt: list[int], output: list[int]
) -> Float64:
    """Returns the probability of every token, by whole sorts and loops."""
    z = [float(value) for value in row]
    for token, bias in config.logit_bias.items():
        z[token] += bias
    for token in set(prompt) | set(output):
        r = config.repetition_penalty
        z[token] = z[token] * r if z[token] < 0 else z[token] / r
    for token, count in Counter(output).items():
        z[token] -= config.frequency_penalty * count + config.presence_penalty
    largest = max(z)
    tempered = [np.exp((value - largest) / config.temperature) for value in z]
    seen = [np.exp(value - largest) for value in z] if config.temperature_last else tempered
    weights = np.array(seen)
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    kept = order[: config.top_k or len(z)]
    if config.top_p < 1:
        mass = np.cumsum(weights[kept]) / weights[kept].sum()
        kept = kept[: 1 + next(i for i, m in enumerate(mass) if m >= config.top_p - 1e-12)]
    kept = [i for i in kept if weights[i] >= config.min_p * weights[order[0]] * (1 - 1e-12)]
    probs = np.zeros(len(z))
    probs[kept] = np.array(tempered)[kept]
    return probs / probs.sum()


def sampled_probs(
    row: npt.NDArray[np.float32], config: SamplingConfig, prompt: list[int], output: list[int]
) -> Float64:
    history = History(prompt)
    for token in output:
        history.add(token)
    survivors = truncate(edit(row, config, history), config)
    assert (np.diff(survivors.ids) > 0).all()
    probs = np.zeros(len(row))
    probs[survivors.ids] = survivors.probs()
    return probs


CONFIGS = [
    SamplingConfig(temperature=1.0),
    SamplingConfig(temperature=0.3, top_k=5),
    SamplingConfig(temperature=2.0, top_p=0.7),
    SamplingConfig(temperature=0.9, min_p=0.1),
    SamplingConfig(temperature=1.3, top_k=20, top_p=0.9, min_p=0.05),
    SamplingConfig(temperature=0.4, top_p=0.9, temperature_last=True),
    SamplingConfig(temperature=1.8, top_k=30, top_p=0.7, min_p=0.1, temperature_last=True),
    SamplingConfig(temperature=0.6, min_p=0.2, temperature_last=True),
    SamplingConfig(temperature=1.0, top_k=1),
    SamplingConfig(temperature=1.0, top_p=1e-9),
    SamplingConfig(temperature=1.0, min_p=1.0),
    SamplingConfig(temperature=0.8, repetition_penalty=1.3, top_k=12),
    SamplingConfig(temperature=0.8, presence_penalty=0.7, frequency_penalty=0.4, top_p=0.8),
    SamplingConfig(temperature=1.0, logit_bias={3: 6.0, 5: float("-inf")}, top_k=4),
]


def random_row(rng: np.random.Generator, kind: str, n: int) -> npt.NDArray[np.float32]:
    row = (3 * rng.standard_normal(n)).astype(np.float32)
    if kind == "ties":
        row = np.round(row)
    elif kind == "holes":
        row[rng.random(n) < 0.5] = -np.inf
        row[7] = 1.0
    elif kind == "flat":
        row[:] = 0.25
    return row


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "ties", "holes", "flat"])
def test_probabilities_equal_reference(config: SamplingConfig, kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(25):
        row = random_row(rng, kind, 60)
        prompt, output = rng.integers(0, 60, 9).tolist(), rng.integers(0, 60, 7).tolist()
        expected = reference_probs(row, config, prompt, output)
        np.testing.assert_allclose(
            sampled_probs(row, config, prompt, output), expected, rtol=1e-9, atol=1e-15
        )


@pytest.mark.parametrize("config", CONFIGS[2:8], ids=str)
def test_large_vocabulary_equals_reference(config: SamplingConfig) -> None:
    rng = np.random.default_rng(2)
    for spread, step in ((0.01, 0), (1.0, 0), (8.0, 0), (1.0, 0.25)):
        row = (spread * rng.standard_normal(20_000)).astype(np.float32)
        row = np.round(row / step) * np.float32(step) if step else row  # with equals
        expected = reference_probs(row, config, [], [])
        np.testing.assert_allclose(sampled_probs(row, config, [], []), expected, rtol=1e-9)


def test_boundary_ties_keep_lowest_ids() -> None:
    assert top_k(np.array([1, 5, 3, 3, 5, 3], np.float32), 3).tolist() == [1, 2, 4]
    flat = truncate(np.zeros(10), SamplingConfig(temperature=1.0, top_p=0.5))
    assert flat.ids.tolist() == [0, 1, 2, 3, 4]


def test_scores_may_be_as_large_as_numbers_are() -> None:
    for offset in (0.0, 1e4, -1e4):
        survivors = Survivors(np.arange(2), np.array([offset, offset - np.log(3)]))
        assert survivors.probs() == pytest.approx([0.75, 0.25])


def test_one_survivor_is_always_drawn() -> None:
    row = np.full(50, -np.inf, np.float32)
    row[33] = -5.0
    for config in CONFIGS[:11]:
        assert pick(row, config, History(), NOISE, 0) == 33


def test_greedy_takes_the_lowest_of_equals() -> None:
    row = np.array([0, 4, 4, 1], np.float32)
    assert pick(row, SamplingConfig(), History(), NOISE, 0) == 1
    assert pick(row, SamplingConfig(temperature=9e-6), History(), NOISE, 0) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_are_an_error(bad: float) -> None:
    row = np.array([0, bad, 1], np.float32)
    with pytest.raises(SessionError, match="largest logit"):
        greedy(row)
    with pytest.raises(SessionError, match="largest logit"):
        truncate(row, SamplingConfig(temperature=1.0))


def test_no_token_left_is_an_error() -> None:
    bias = dict.fromkeys(range(4), float("-inf"))
    with pytest.raises(SessionError, match="no token"):
        pick(np.zeros(4, np.float32), SamplingConfig(logit_bias=bias), History(), NOISE, 0)


def test_repetition_counts_the_prompt_and_the_others_do_not() -> None:
    row = np.array([2.0, 2.0, 2.0], np.float32)
    history = History([0])
    history.add(1)
    assert edit(row, SamplingConfig(repetition_penalty=2.0), history).tolist() == [1, 1, 2]
    assert edit(row, SamplingConfig(presence_penalty=1.0), history).tolist() == [2, 1, 2]
    history.add(1)
    assert edit(row, SamplingConfig(frequency_penalty=0.5), history).tolist() == [2, 1, 2]
    history.remove(1)
    history.remove(1)
    assert edit(row, SamplingConfig(presence_penalty=1.0), history).tolist() == [2, 2, 2]
    assert row.tolist() == [2, 2, 2]


@pytest.mark.parametrize("seed", range(5))
def test_draw_has_the_law_of_the_scores(seed: int) -> None:
    probs = np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    survivors = Survivors(np.array([3, 8, 50, 51, 900, 1000]), np.log(probs) + 3)
    noise, n = Noise(seed), 20_000
    drawn = Counter(draw(survivors, noise, position) for position in range(n))
    counts = np.array([drawn[i] for i in survivors.ids.tolist()])
    statistic = float(((counts - n * probs) ** 2 / (n * probs)).sum())
    assert statistic < 20.5  # chi-square, 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_whole_draw_equals_noise_for_every_token(spread: float, temperature: float) -> None:
    rng = np.random.default_rng(3)
    config = SamplingConfig(temperature=temperature)
    for position in range(25):
        values = (spread * rng.standard_normal(20_000)).astype(np.float32)
        values[rng.integers(0, 20_000, 50)] = -np.inf
        whole = truncate(values, config)
        noisy = whole.scores + NOISE.gumbel(position, whole.ids)
        expected = whole.ids[noisy.argmax()]
        assert draw_whole(values, temperature, NOISE, position) == expected
        assert draw(whole, NOISE, position) == expected


def test_draw_does_not_depend_on_how_the_row_is_truncated_below_the_winner() -> None:
    rng = np.random.default_rng(4)
    for position in range(30):
        row = (5 * rng.standard_normal(300)).astype(np.float32)
        wide = pick(row, SamplingConfig(temperature=1.0, top_k=200), History(), NOISE, position)
        narrow = truncate(row, SamplingConfig(temperature=1.0, top_k=100))
        if wide in narrow.ids:
            assert draw(narrow, NOISE, position) == wide


@pytest.mark.parametrize("n", [8, 4096])
def test_min_p_comes_behind_top_p_in_rows_of_any_length(n: int) -> None:
    row = np.full(n, -np.inf, np.float32)
    row[:6] = np.log([0.50, 0.36, 0.05, 0.043, 0.013, 0.034])
    row[5] = -np.inf
    row[6] = np.log(0.004)
    config = SamplingConfig(temperature=1.0, top_p=0.985, min_p=0.02)
    weights = np.exp(row[:8].astype(np.float64)) / np.exp(row[:8].astype(np.float64)).sum()
    order = np.argsort(-weights)
    n_kept = int(np.searchsorted(np.cumsum(weights[order]), 0.985)) + 1
    expected = [i for i in sorted(order[:n_kept]) if weights[i] >= 0.02 * weights.max()]
    assert truncate(row, config).ids.tolist() == expected
