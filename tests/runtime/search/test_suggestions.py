"""Suggestions as text: what they continue, how they are spelt, why they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.suggestion import SuggestConfig
from edgedec.runtime.engine.engine import Engine

from ..conftest import Row, ToyModel

MakeEngine = Callable[..., Engine]
CERTAIN, DOUBTFUL = 20, 21


def doubting(prefix: Sequence[int]) -> Row:
    """Is sure of CERTAIN until there are three of them, then torn between all tokens."""
    row = np.zeros(330, np.float32)
    if list(prefix[-3:]) != [CERTAIN] * 3:
        row[CERTAIN], row[DOUBTFUL] = 30.0, 29.0
    return row


def toy(engine: Engine) -> ToyModel:
    assert isinstance(engine.model, ToyModel)
    return engine.model


def test_text_and_probabilities_are_the_models(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = engine.encode("The quick brown fox")
    for found in engine.suggest("The quick brown fox", SuggestConfig(k=4, n_tokens=6)):
        text: list[int] = list(prompt)
        for token, probability in zip(found.token_ids, found.token_probs, strict=True):
            row = toy(engine).rule(text).astype(np.float64)
            distribution = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
            assert probability == pytest.approx(distribution[token], rel=1e-5)
            text.append(token)
        assert found.probability == pytest.approx(math.prod(found.token_probs))
        before = engine.tokenizer.decode(prompt)
        assert before + found.text == engine.tokenizer.decode(text)


def test_they_end_where_the_model_doubts(make_engine: MakeEngine) -> None:
    engine = make_engine(doubting)

    def ends(**fields: float) -> set[tuple[int, str]]:
        config = SuggestConfig(k=1, n_tokens=6, **fields)  # type: ignore[arg-type]
        return {(len(one.token_ids), one.end) for one in engine.suggest("fox", config)}

    assert ends() == {(6, "length")}
    assert ends(max_entropy=2.0) == {(3, "unsure")}
    assert ends(min_log_prob=math.log(0.5)) == {(3, "unsure")}
    stops = frozenset([0])  # the lowest of equals comes after the certain ones
    assert ends(stop_token_ids=stops) == {(3, "stop")}  # type: ignore[arg-type]


def test_the_models_own_stop_tokens_end_them(make_engine: MakeEngine) -> None:
    engine = make_engine(doubting, stop_token_ids=(0,))
    (found,) = engine.suggest("fox", SuggestConfig(k=1))
    assert (found.token_ids, found.end) == ((CERTAIN,) * 3, "stop")


def test_texts_before_and_after_are_unharmed(make_engine: MakeEngine) -> None:
    config = GenerationConfig(max_new_tokens=12)
    alone = make_engine().generate("The quick", config).token_ids
    engine = make_engine()
    first = engine.suggest("The quick brown")
    assert engine.generate("The quick", config).token_ids == alone
    assert engine.suggest("The quick brown") == first
    stream = engine.stream("The quick", config)
    next(stream)
    assert engine.suggest("The quick brown") == first
    list(stream)
    assert stream.result.token_ids == alone
    n_passes = toy(engine).n_passes
    engine.suggest("The quick brown", SuggestConfig(k=8, n_tokens=5))
    assert toy(engine).n_passes - n_passes <= 1 + 5


def test_a_prompt_of_one_token(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.generate("fox", GenerationConfig(max_new_tokens=3))
    assert engine.suggest([7]) == make_engine().suggest([7])


def test_what_cannot_be_asked(make_engine: MakeEngine) -> None:
    engine = make_engine(context=16)
    with pytest.raises(SessionError, match="3 suggestions of 8 tokens need 22 positions"):
        engine.suggest([7])
    with pytest.raises(SessionError, match="the prompt has 20 tokens, the context 16"):
        engine.suggest([7] * 20)
    for fields in ({"max_entropy": -1.0}, {"max_entropy": math.nan}, {"min_log_prob": 0.5}):
        with pytest.raises(ConfigError, match=f"{next(iter(fields))} is "):
            SuggestConfig(**fields)  # type: ignore[arg-type]
    engine.close()
    with pytest.raises(SessionError, match="closed"):
        engine.suggest([7])
