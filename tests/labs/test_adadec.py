"""AdaDec against its definition, its learned threshold, and the rule that ends completions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edgedec.labs.methods.adadec import AdaDec
from edgedec.labs.methods.pause_threshold import _fit, learn_threshold
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.decoding.switching.stop_rule import StopRule
from edgedec.runtime.engine.result import GenerationResult

from ..runtime.conftest import ToySession
from ..runtime.decoding.switching.switch_toys import rule, target_toy
from ..runtime.draft_toys import PROMPT, VOCAB, generate, open_stream

GREEDY = GenerationConfig(max_new_tokens=50)


def log_probs(tokens: Sequence[int]) -> np.ndarray:
    row = rule(VOCAB, 0.0)(tokens).astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def by_definition(threshold: float, n_tokens: int, n_candidates: int, n_ahead: int) -> list[int]:
    """Returns the output of AdaDec, every look-ahead computed from the beginning."""
    text = list(PROMPT)
    while len(text) < len(PROMPT) + n_tokens:
        scores = log_probs(text)
        entropy = -(np.exp(scores) * scores).sum() / math.log(2)
        ahead = min(n_ahead, len(PROMPT) + n_tokens - len(text) - 1)
        best, best_score = int(scores.argmax()), -math.inf
        if entropy >= threshold and ahead > 0:
            for candidate in np.argsort(-scores)[:n_candidates].tolist():
                found, branch = [scores[candidate]], [*text, candidate]
                for _ in range(ahead):
                    following = log_probs(branch)
                    found.append(following.max())
                    branch.append(int(following.argmax()))
                if np.mean(found) > best_score:
                    best, best_score = candidate, float(np.mean(found))
        text.append(best)
    return text[len(PROMPT) :]


def adadec(threshold: float, n_candidates: int = 3, n_ahead: int = 5) -> AdaDec:
    return AdaDec(SwitchConfig(policy="adadec", threshold=threshold), n_candidates, n_ahead)


def run(
    strategy: AdaDec, config: GenerationConfig = GREEDY, context: int = 256
) -> GenerationResult:
    session = target_toy(context)
    result = generate(session, PROMPT, config, strategy)
    assert list(session.tokens) == [*PROMPT, *result.token_ids][: session.n_tokens]
    assert result.stats.n_passes == session.n_passes - 1
    assert result.stats.n_pass_tokens == len(result.token_ids) - 1
    return result


@pytest.mark.parametrize("threshold", [1.5, 2.2, 3.0])
@pytest.mark.parametrize(("n_candidates", "n_ahead"), [(3, 5), (2, 1), (8, 3)])
def test_text_equals_the_definition(threshold: float, n_candidates: int, n_ahead: int) -> None:
    """The definition shortens the look-ahead only at the end of the output, as the method does."""
    result = run(adadec(threshold, n_candidates, n_ahead))
    assert list(result.token_ids) == by_definition(threshold, 50, n_candidates, n_ahead)
    reported = result.switch
    texts = [[*PROMPT, *result.token_ids[:i]] for i in range(50)]
    likeliest = [int(log_probs(text).argmax()) for text in texts]
    n_changed = sum(a != b for a, b in zip(likeliest, result.token_ids, strict=True))
    assert 0 < reported["n_changed"] == n_changed <= reported["n_pauses"]
    assert reported["n_ahead_passes"] <= n_ahead * reported["n_pauses"]
    assert "look-ahead" in result.origins
    assert set(result.origins) <= {"target", "look-ahead"}
    assert not result.lossless


@pytest.mark.parametrize(("threshold", "n_ahead"), [(math.inf, 5), (-1.0, 0), (0.0, 0)])
def test_without_pause_or_look_ahead_it_is_greedy(threshold: float, n_ahead: int) -> None:
    result = run(adadec(threshold, 3, n_ahead))
    assert result.token_ids == generate(target_toy(), PROMPT, GREEDY).token_ids
    assert result.switch["n_ahead_passes"] == 0


def test_sure_look_ahead_is_kept() -> None:
    result = run(adadec(2.2))
    n_steps = sum(origin == "target" for origin in result.origins) + result.switch["n_pauses"]
    assert n_steps < len(result.token_ids)


@pytest.mark.parametrize("context", [8, 11, 16, 24])
def test_short_contexts(context: int) -> None:
    result = run(adadec(0.0), context=context)
    assert result.finish_reason == "context"
    assert len(PROMPT) + len(result.token_ids) == context + 1


def test_stop_tokens_end_branches() -> None:
    stops = tuple(range(0, VOCAB, 3))
    config = GenerationConfig(max_new_tokens=50, stop_token_ids=stops)
    result = run(adadec(0.0), config)
    assert result.finish_reason == "stop"
    assert all(token not in stops for token in result.token_ids[:-1])


def test_cancelling_and_sampling() -> None:
    session = target_toy()
    stream = open_stream(session, PROMPT, GREEDY, adadec(0.5))
    for _ in range(4):
        next(stream)
    stream.stop()
    assert list(session.tokens) == [*PROMPT, *stream.result.token_ids][: session.n_tokens]
    for sampling in (SamplingConfig(temperature=1.0), SamplingConfig(frequency_penalty=1.0)):
        config = GenerationConfig(max_new_tokens=5, sampling=sampling)
        with pytest.raises(ConfigError, match="use temperature 0"):
            list(open_stream(ToySession(VOCAB), PROMPT, config, adadec(1.0)))
    with pytest.raises(ConfigError, match="adadec has one model only"):
        SwitchConfig(policy="adadec", mode="verify")


@pytest.mark.parametrize(("slope", "offset"), [(-2.0, 3.0), (-0.7, 1.4)])
def test_threshold_of_a_known_law(slope: float, offset: float) -> None:
    """Right with probability sigmoid(slope x entropy + offset), as many right as wrong: the best
    cut is where both kinds are equally dense."""
    rng = np.random.default_rng(0)
    entropies = rng.uniform(0, 6, 40_000)
    is_right = rng.random(40_000) < 1 / (1 + np.exp(-(slope * entropies + offset)))
    # Of balanced classes the odds are those of all, divided by the odds of being right at all.
    share = is_right.mean()
    best = (math.log(share / (1 - share)) - offset) / slope
    assert learn_threshold(entropies, is_right) == pytest.approx(best, abs=0.35)


@pytest.mark.parametrize("n", [5, 400])
def test_the_fit_is_where_the_penalised_likelihood_is_level(n: int) -> None:
    """The slope is held back by 0.001 of itself, the offset by a millionth."""
    entropies = np.linspace(0, 4, n)
    is_right = entropies < 1.5  # one entropy separates them
    slope, offset = _fit(entropies, is_right)
    miss = is_right - 1 / (1 + np.exp(-(slope * entropies + offset)))
    assert (miss * entropies).sum() == pytest.approx(1e-3 * slope, rel=1e-4)
    assert miss.sum() == pytest.approx(1e-6 * offset, abs=1e-7)


def test_threshold_of_separable_and_of_useless_texts() -> None:
    entropies = np.linspace(0, 4, 200)
    assert learn_threshold(entropies, entropies < 1.5) == pytest.approx(1.5, abs=0.3)
    with pytest.raises(ConfigError, match="9 positions of the rarer kind"):
        learn_threshold(entropies, np.arange(200) >= 9)
    with pytest.raises(ConfigError, match="says nothing about its mistakes"):
        learn_threshold(entropies, entropies > 1.5)


def signal(top_prob: float, entropy: float = 0.0) -> Signal:
    return Signal(entropy, 0.0, top_prob)


def test_stop_rule() -> None:
    rule = StopRule(max_entropy=2.0)
    assert [rule.should_stop(signal(1.0, bits)) for bits in (0.0, 2.0, 2.1)] == [False, False, True]
    rule = StopRule(min_log_prob=math.log(0.5), window=2)
    probs = [0.4, 0.9, 0.3, 0.3]
    # Means over two: ln 0.4; ln(0.4 x 0.9) / 2 = ln 0.6; ln(0.27) / 2 = ln 0.52; ln 0.3.
    assert [rule.should_stop(signal(p)) for p in probs] == [True, False, False, True]
    rule.begin()
    assert not rule.should_stop(signal(0.6))
    assert rule.should_stop(signal(0.0))
    assert not StopRule().should_stop(signal(1e-9, 17.0))
    for given in ({"max_entropy": math.nan}, {"min_log_prob": math.nan}, {"window": 0}):
        with pytest.raises(ConfigError, match="stop rule has"):
            StopRule(**given)  # type: ignore[arg-type]
