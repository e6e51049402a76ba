"""Samplers besides top-k, top-p and min-p, against plain loops and other people's code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.sampling.breakers import Breakers
from edgedec.runtime.sampling.mirostat import cut
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.repeats import Repeats
from edgedec.runtime.sampling.sampling import (
    History,
    choose,
    choose_by_surprise,
    edit,
    pick,
    truncate,
)

Float64 = npt.NDArray[np.float64]


def row_of(rng: np.random.Generator, n: int = 200, spread: float = 2.0) -> npt.NDArray[Any]:
    return (spread * rng.standard_normal(n)).astype(np.float32)


def kept(values: npt.NDArray[Any], **fields: Any) -> list[int]:
    return truncate(values, SamplingConfig(temperature=1.0, **fields)).ids.tolist()


@pytest.mark.parametrize("mass", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("n", [50, 5000])
def test_typical_is_that_of_transformers(mass: float, n: int) -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation.logits_process import TypicalLogitsWarper

    rng = np.random.default_rng(n)
    for _ in range(20):
        row = row_of(rng, n).astype(np.float64)
        expected = TypicalLogitsWarper(mass)(torch.zeros(1, 1).long(), torch.tensor(row)[None])[
            0
        ].numpy()
        assert kept(row, typical_p=mass) == np.flatnonzero(np.isfinite(expected)).tolist()


def test_sigma_counts_from_the_largest_logit() -> None:
    rng = np.random.default_rng(3)
    for temperature in (0.5, 1.0, 3.0):
        row = row_of(rng)
        config = SamplingConfig(temperature=temperature, top_n_sigma=1.5)
        mean = sum(map(float, row)) / len(row)
        sigma = math.sqrt(sum((float(x) - mean) ** 2 for x in row) / len(row))
        expected = [i for i, x in enumerate(row) if x >= row.max() - 1.5 * sigma]
        assert truncate(row, config).ids.tolist() == expected
    masked = row_of(rng)
    masked[::2] = -np.inf
    assert all(i % 2 for i in kept(masked, top_n_sigma=2.0))


def test_min_p_is_relative_to_the_likeliest_that_typical_left() -> None:
    """The likeliest token is too little of a surprise, so that it goes first."""
    row = np.log(np.array([0.4, 0.11, 0.09, 0.1, 0.1, 0.1, 0.1]))
    assert kept(row, typical_p=0.2) == [1, 3]
    assert kept(row, typical_p=0.2, min_p=0.9) == [1, 3]
    assert kept(row, typical_p=0.2, min_p=0.95) == [1]


def test_exclude_top_choices() -> None:
    """All at 0.1 or more go but the least likely one, by a coin of the seed and position."""
    row = np.log(np.array([0.4, 0.05, 0.3, 0.15, 0.1]))
    config = SamplingConfig(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.12)
    drawn = {choose(row, config, Noise(seed), 5) for seed in range(300)}
    assert drawn == {1, 3, 4}
    half = SamplingConfig(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.12)
    n_top = sum(choose(row, half, Noise(seed), 5) in (0, 2) for seed in range(4000))
    assert abs(n_top / 4000 - 0.5 * 0.7) < 4 * math.sqrt(0.35 * 0.65 / 4000)
    alone = SamplingConfig(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.35)
    assert {choose(row, alone, Noise(seed), 5) for seed in range(300)} == {0, 1, 2, 3, 4}


def test_a_temperature_that_comes_last_changes_what_is_left_alone() -> None:
    probs = np.array([0.4, 0.05, 0.3, 0.15, 0.1])
    fields = {"temperature": 0.5, "xtc_probability": 1.0, "xtc_threshold": 0.12}
    assert {choose(np.log(probs), SamplingConfig(**fields), Noise(i), 5) for i in range(300)} == {
        1, 2, 3, 4,
    }  # fmt: skip
    last = SamplingConfig(**fields, temperature_last=True)
    left = np.where(np.isin(np.arange(5), [1, 3, 4]), probs**2, 0.0)  # 3 is the least above 0.12
    left /= left.sum()
    drawn = np.bincount([choose(np.log(probs), last, Noise(i), 5) for i in range(4000)], None, 5)
    assert (abs(drawn / 4000 - left) <= 4 * np.sqrt(left * (1 - left) / 4000)).all()
    typical = {"typical_p": 0.6, "min_p": 0.3}
    at_one = truncate(np.log(probs), SamplingConfig(temperature=1.0, **typical))
    found = truncate(
        np.log(probs), SamplingConfig(temperature=0.5, **typical, temperature_last=True)
    )
    assert found.ids.tolist() == at_one.ids.tolist()
    np.testing.assert_allclose(found.probs(), probs[found.ids] ** 2 / sum(probs[found.ids] ** 2))


def dry_by_loops(text: list[int], breakers: frozenset[int], least: int) -> dict[int, int]:
    """Returns token -> longest match, by comparing every end with every place."""
    found: dict[int, int] = {}
    for i in range(1, len(text)):
        length = 0
        while (
            length < i
            and text[i - 1 - length] == text[len(text) - 1 - length]
            and text[i - 1 - length] not in breakers
        ):
            length += 1
        if length >= least and text[i] not in breakers:
            found[text[i]] = max(length, found.get(text[i], 0))
    return found


@given(
    st.lists(st.integers(0, 4), max_size=40),
    st.frozensets(st.integers(0, 4), max_size=2),
    st.integers(0, 12),
)
def test_repeats_are_those_of_plain_loops(
    text: list[int], breakers: frozenset[int], n_walked: int
) -> None:
    """Also after tokens were added and taken back."""
    repeats = Repeats(text[: len(text) // 2], breakers)
    for token in text[len(text) // 2 :]:
        repeats.add(token)
    for token in range(n_walked):
        repeats.add(token % 5)
    for _ in range(n_walked):
        repeats.remove()
    tokens, lengths = repeats.following()
    assert dict(zip(tokens.tolist(), lengths.tolist(), strict=True)) == dry_by_loops(
        text, breakers, 1
    )


def test_long_texts_have_room() -> None:
    repeats = Repeats([1, 2])
    for _ in range(3000):
        repeats.add(1)
        repeats.add(2)
    tokens, lengths = repeats.following()
    assert (tokens.tolist(), lengths.tolist()) == ([1], [128])


def test_dry_penalizes_what_would_repeat() -> None:
    text = [1, 2, 3, 4, 1, 2, 3]  # 4 would repeat three tokens
    config = SamplingConfig(dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=2)
    row = np.zeros(6)
    edited = edit(row, config, History(text, Repeats(text)))
    assert edited.tolist() == pytest.approx([0, 0, 0, 0, -0.8 * 1.75, 0])
    broken = edit(row, config, History(text, Repeats(text, frozenset({2}))))
    assert broken.tolist() == [0] * 6
    endless = [7] * 2000
    huge = SamplingConfig(dry_multiplier=1.0, dry_base=100.0)
    assert np.isfinite(edit(np.zeros(9), huge, History(endless, Repeats(endless)))).all()
    with pytest.raises(SessionError):
        edit(row, config, History(text))


def test_momentum_is_that_of_the_paper() -> None:
    """A copy of the rule by loops: top 5, p - alpha * R(l), l the longest n-gram with the token."""
    rng = np.random.default_rng(8)
    config = SamplingConfig(momentum=0.2)
    for _ in range(200):
        text = rng.integers(0, 6, 30).tolist()
        row = row_of(rng, 12, 1.0).astype(np.float64)
        probs = np.exp(row) / np.exp(row).sum()
        best, best_score = -1, -math.inf
        for v in sorted(range(12), key=lambda i: (-row[i], i))[:5]:
            resistance = 0
            if v in text:
                resistance = 1
                for n in range(2, 6):
                    gram = [*text[len(text) - n + 1 :], v]
                    if any(text[i : i + n] == gram for i in range(len(text) - n + 1)):
                        resistance = n
            score = probs[v] - 0.2 * resistance
            if score > best_score or (score == best_score and v < best):
                best, best_score = v, score
        assert pick(row, config, History(text, Repeats(text)), Noise(0), 30) == best


def test_momentum_breaks_a_loop() -> None:
    """A model that always goes on with a, b, c leaves the loop within five turns."""
    text = [0, 1, 2, 0, 1, 2]
    repeats = History(text, Repeats(text))
    for _ in range(15):
        row = np.full(8, -4.0)
        row[(text[-1] + 1) % 3] = 0.0
        token = pick(row, SamplingConfig(momentum=0.2), repeats, Noise(0), len(text))
        text.append(token)
        repeats.add(token)
        if token > 2:
            break
    assert text[-1] > 2


def reference_v1(probs: Float64, mu: float) -> int:
    """The authors' algorithm 1, by loops over their formulas."""
    ranked = sorted(probs, reverse=True)
    top = ranked[:101]
    b = [math.log(top[i] / top[i + 1]) for i in range(len(top) - 1)]
    t = [math.log((i + 2) / (i + 1)) for i in range(len(top) - 1)]
    s = sum(x * y for x, y in zip(t, b, strict=True)) / sum(x * x for x in t)
    eps = s - 1
    k = ((eps * 2**mu) / (1 - len(probs) ** -eps)) ** (1 / s)
    return min(max(round(k), 1), len(probs))


@pytest.mark.parametrize("mu", [0.5, 2.0, 5.0, 9.0])
def test_mirostat_cuts_where_the_papers_formula_does(mu: float) -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        row = row_of(rng, 300).astype(np.float64)
        probs = np.exp(row) / np.exp(row).sum()
        found = cut(row, 1, mu)
        assert len(found.kept) == reference_v1(probs, mu)
        assert set(found.kept) == set(np.argsort(-row, kind="stable")[: len(found.kept)])
        chosen = int(found.kept[0])
        assert found.surprise(chosen, 1) == pytest.approx(-math.log2(probs[chosen]))
        second = cut(row, 2, mu)
        expected = [i for i in range(300) if -math.log2(probs[i]) <= mu] or [int(row.argmax())]
        assert second.kept.tolist() == expected
        inside = sum(probs[i] for i in expected)
        assert second.surprise(expected[0], 2) == pytest.approx(
            -math.log2(probs[expected[0]] / inside)
        )


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("row", [[0.0], [0.0, 0.0, 0.0], [5.0, -math.inf, -math.inf]])
def test_mirostat_of_rows_without_a_slope(version: int, row: list[float]) -> None:
    found = cut(np.array([x for x in row if x > -math.inf]), version, 0.0)
    assert len(found.kept) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [3.0, 4.0])
def test_mirostat_keeps_the_average_surprise(version: int, tau: float) -> None:
    """Within 2 % of tau over 5,000 tokens of rows whose own entropy differs from row to row."""
    rng = np.random.default_rng(11)
    config = SamplingConfig(temperature=1.0, mirostat=version, mirostat_tau=tau, mirostat_eta=0.1)
    mu, noise, surprises = 2 * tau, Noise(7), []
    for position in range(5000):
        row = -rng.uniform(1.0, 1.5) * np.log(np.arange(1, 3001)) + rng.normal(0, 0.3, 3000)
        _, after = choose_by_surprise(row, config, mu, noise, position)
        surprises.append(tau + (mu - after) / config.mirostat_eta)
        mu = after
    assert np.mean(surprises) == pytest.approx(tau, rel=0.02)


class Spelt:
    """A tokenizer of which spellings alone are asked for."""

    def spellings(self) -> dict[int, bytes | str]:
        return {0: b"a", 1: b":\n", 2: "<end:>", 3: b" \n\n", 4: "é".encode()}


def test_tokens_with_a_breaker_in_their_text_break() -> None:
    find: Callable[[SamplingConfig], frozenset[int]] = Breakers(Spelt()).of  # type: ignore[arg-type]
    assert find(SamplingConfig(dry_multiplier=1.0)) == {1, 3}
    assert find(SamplingConfig(dry_multiplier=1.0, dry_sequence_breakers=("é",))) == {4}
    assert find(SamplingConfig()) == frozenset()


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"typical_p": 0}, "typical_p is 0"),
        ({"typical_p": 1.1}, "typical_p"),
        ({"top_n_sigma": -1}, "top_n_sigma"),
        ({"xtc_probability": 2}, "xtc_probability"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"mirostat": 3, "temperature": 1}, "mirostat is 3, expected 0, 1 or 2"),
        ({"mirostat": 2}, "greedy: ask for a temperature"),
        ({"momentum": 0.2, "temperature": 0.7}, "momentum is for greedy decoding"),
        ({"mirostat_tau": float("nan"), "mirostat": 2, "temperature": 1}, "mirostat_tau"),
    ],
)
def test_values_that_make_no_sense(fields: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        SamplingConfig(**fields)


def test_verifiers_that_draw_otherwise_are_refused() -> None:
    for fields in ({"mirostat": 2}, {"xtc_probability": 0.5}):
        sampling = SamplingConfig(temperature=1.0, **fields)
        with pytest.raises(ConfigError, match="default verifier"):
            GenerationConfig(sampling=sampling, verifier="deterministic")
