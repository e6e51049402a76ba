"""Grammar-aligned samples against the exact conditional distribution, by enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from edgedec import Engine
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.sampling.alignment import Alignment
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import choose

from ..conftest import Row

TEXTS = "aa|ab|ba|bb|c[ab]"
N_SEEDS = 3000


@pytest.fixture
def skewed(make_engine: Callable[..., Engine]) -> Engine:
    """An engine that mostly begins with ``a`` and then leaves the grammar: masks mislead."""
    letters: dict[str, int] = {}

    def rule(prefix: Sequence[int]) -> Row:
        row = np.full(engine.model.vocab_size, -30.0, np.float32)
        a, b, c, x = (letters[name] for name in "abcx")
        begun = list(prefix[n_prompt:])
        if not begun:
            row[[a, b, c, x]] = np.log([0.6, 0.2, 0.1, 0.1])
        elif begun == [a]:
            row[[a, b, x]] = np.log([0.01, 0.03, 0.96])
        elif begun == [b]:
            row[[a, b, x]] = np.log([0.5, 0.3, 0.2])
        else:
            row[[a, b]] = np.log([0.5, 0.5])
        return row

    engine = make_engine(rule)
    letters |= {name: engine.tokenizer.encode(name)[0] for name in "abcx"}
    n_prompt = len(engine.encode("Hi"))
    return engine


JOINT = {
    "aa": 0.6 * 0.01, "ab": 0.6 * 0.03, "ba": 0.2 * 0.5, "bb": 0.2 * 0.3,
    "ca": 0.1 * 0.5, "cb": 0.1 * 0.5,
}  # fmt: skip
TRUE = {text: share / sum(JOINT.values()) for text, share in JOINT.items()}
MASKED = {  # what the mask alone gives: each token among those allowed
    "aa": 0.6 / 0.9 * 0.25, "ab": 0.6 / 0.9 * 0.75, "ba": 0.2 / 0.9 * 0.625,
    "bb": 0.2 / 0.9 * 0.375, "ca": 0.1 / 0.9 * 0.5, "cb": 0.1 / 0.9 * 0.5,
}  # fmt: skip


def distance(found: Counter[str], law: dict[str, float]) -> float:
    """Returns the total variation between counts and a law."""
    n = found.total()
    return sum(abs(found[text] / n - law.get(text, 0.0)) for text in {*found, *law}) / 2


def config(**fields: object) -> GenerationConfig:
    sampling = SamplingConfig(temperature=1.0)
    return GenerationConfig(regex=TEXTS, sampling=sampling, max_new_tokens=4, **fields)  # type: ignore[arg-type]


ROWS = {  # what the model says of a, b, c and x
    (): [0.6, 0.2, 0.1, 0.1], (0,): [0.01, 0.03, 0, 0.96], (1,): [0.5, 0.3, 0, 0.2],
    (2,): [0.5, 0.5, 0, 0],
}  # fmt: skip


def tried(alignment: Alignment, seed: int) -> tuple[str, bool]:
    """Returns a text of two letters, and whether it is accepted."""
    alignment.begin()
    way: tuple[int, ...] = ()
    for _ in range(2):
        with np.errstate(divide="ignore"):
            row = np.log(np.array(ROWS[way])).astype(np.float32)
        allowed = np.array([True, True, not way, False])
        values = np.where(allowed, row, -np.inf).astype(np.float64)
        values = alignment.weighed((), row, allowed, values)
        token = choose(values, SamplingConfig(temperature=1.0), Noise(seed), len(way))
        alignment.chose((), token, float(row[token]))
        alignment.accept(token)
        way += (token,)
    is_exact = Noise(seed).uniform(7, 7) < alignment.end()
    return "".join("abcx"[token] for token in way), is_exact


def sampled(n_tries: int) -> Iterator[tuple[str, bool]]:
    for seed in range(N_SEEDS):
        alignment = Alignment(1.0)
        for i in range(n_tries):
            text, is_exact = tried(alignment, seed * 100 + i)
            if is_exact:
                break
        yield text, is_exact


@pytest.mark.slow
def test_more_tries_come_nearer_to_the_conditional() -> None:
    # Counts of N draws from k texts are off by about sqrt(k / (2 pi N)) on average.
    noise = 3 * np.sqrt(len(TRUE) / (2 * np.pi * N_SEEDS))
    distances = {}
    for n_tries in (1, 2, 3):
        found = list(sampled(n_tries))
        distances[n_tries] = distance(Counter(text for text, _ in found), TRUE)
        if n_tries == 1:
            assert distance(Counter(text for text, _ in found), MASKED) < noise
        exact = Counter(text for text, is_exact in found if is_exact)
        assert distance(exact, TRUE) < 3 * np.sqrt(len(TRUE) / (2 * np.pi * exact.total()))
    assert distances[1] > 0.5
    assert distances[1] > distances[2] + noise
    assert distances[2] > distances[3]
    assert distances[3] < noise


def test_the_bound_falls_to_the_probability_of_the_grammar(skewed: Engine) -> None:
    found = skewed.generate_aligned("Hi", 40, config())
    tries = [skewed.generate_aligned("Hi", n, config()) for n in (1, 5)]
    assert tries[0].text == skewed.generate("Hi", config()).text
    assert tries[0].bound <= 0.9 + 1e-9  # x is forbidden from the beginning
    assert all(one.bound >= sum(JOINT.values()) - 1e-6 for one in (found, *tries))
    assert found.is_exact
    assert found.to_dict()["n_tries"] == found.n_tries <= 40


def test_drafts_change_nothing(skewed: Engine) -> None:
    for seed in range(0, 500, 100):
        plain = skewed.generate_aligned("Hi", 6, config(seed=seed, method="plain"))
        drafted = skewed.generate_aligned("Hi", 6, config(seed=seed, method="lookup+grammar"))
        assert (plain.text, plain.n_tries, plain.is_exact) == (
            drafted.text, drafted.n_tries, drafted.is_exact
        )  # fmt: skip
        assert plain.bound == pytest.approx(drafted.bound)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regex": None}, "there is no grammar to align with"),
        ({"temperature": 0.0}, "temperature is 0"),
        ({"top_k": 3}, "leave out top_k"),
        ({"repetition_penalty": 1.1}, "leave out top_k"),
        ({"verifier": "typical"}, "need the default verifier"),
    ],
)
def test_what_would_bend_the_proportions(
    skewed: Engine, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        skewed.generate_aligned("Hi", 3, config(), **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="n_tries is 0"):
        skewed.generate_aligned("Hi", 0, config())
