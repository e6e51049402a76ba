"""Alternative completions against one completion after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.config.suggestion import SuggestConfig
from edgedec.runtime.search import completion_tree
from edgedec.runtime.search.completion_tree import Suggestion
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import ToySession, one_hot

V = 20


def suggest(session: ToySession, anchor: int, config: SuggestConfig) -> list[Suggestion]:
    return run_passes(completion_tree.find_completions(session, anchor, config))


def log_probs_after(session: ToySession, text: Sequence[int]) -> np.ndarray:
    """Returns exact log-probabilities, by a session of its own."""
    other = ToySession(V)
    row = other.forward(TokenTree.chain(text), [len(text) - 1]).logits[0].astype(np.float64)
    return row - np.log(np.exp(row - row.max()).sum()) - row.max()


def one_by_one(text: list[int], k: int, n_tokens: int) -> list[Suggestion]:
    """Returns greedy completions from each of the likeliest first tokens."""
    found = []
    for first in np.argsort(-log_probs_after(ToySession(V), text))[:k].tolist():
        tokens: list[int] = []
        log_probs: list[float] = []
        while len(tokens) < n_tokens:
            row = log_probs_after(ToySession(V), [*text, *tokens])
            token = first if not tokens else int(row.argmax())
            tokens.append(token)
            log_probs.append(float(row[token]))
        found.append(Suggestion(tuple(tokens), tuple(log_probs)))
    return sorted(found, key=lambda suggestion: -suggestion.score)


def session_after(tokens: Sequence[int], context: int = 256) -> ToySession:
    session = ToySession(V, context)
    if tokens:
        session.forward(TokenTree.chain(tokens), ())
        session.commit(range(len(tokens)))
    return session


@given(
    st.lists(st.integers(0, V - 1), max_size=6),
    st.integers(0, V - 1),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_equals_one_completion_after_the_other(
    prefix: list[int], anchor: int, k: int, n_tokens: int
) -> None:
    session = session_after(prefix)
    found = suggest(session, anchor, SuggestConfig(k=k, n_tokens=n_tokens))
    expected = one_by_one([*prefix, anchor], k, n_tokens)
    assert [s.tokens for s in found] == [s.tokens for s in expected]
    for suggestion, other in zip(found, expected, strict=True):
        assert suggestion.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert suggestion.score == pytest.approx(other.score, abs=1e-5)
    assert len({s.tokens[0] for s in found}) == k


def test_takes_one_pass_a_step_and_leaves_the_session_as_it_was() -> None:
    session = session_after([1, 2, 3])
    passes, rows = session.n_passes, session.n_rows
    suggest(session, 4, SuggestConfig(k=3, n_tokens=5))
    assert session.n_passes - passes == 5
    assert session.n_rows - rows == 1 + 3 * 4
    assert list(session.tokens) == [1, 2, 3]
    with pytest.raises(SessionError, match="commit needs a pass"):
        session.commit([0])


def test_a_failing_pass_leaves_the_session_as_it_was() -> None:
    session = session_after([1, 2, 3])

    def fail() -> None:
        if session.n_passes == 3:
            raise MemoryError

    session.before_pass = fail
    with pytest.raises(MemoryError):
        suggest(session, 4, SuggestConfig(k=3, n_tokens=5))
    assert list(session.tokens) == [1, 2, 3]


def stepping(prefix: Sequence[int]) -> np.ndarray:
    """Counts up; from 5 on it repeats itself, 6 being the next best."""
    last = prefix[-1]
    row = one_hot(V, min(last + 1, 5))
    row[6] += 8.0
    return row


def test_completions_end_before_stop_tokens() -> None:
    session = ToySession(V, rule=stepping)
    found = suggest(session, 1, SuggestConfig(k=2, n_tokens=6, stop_token_ids=frozenset([4])))
    assert {s.tokens for s in found} == {(2, 3), (6, 5, 5, 5, 5, 5)}
    first_stopped = suggest(
        session, 1, SuggestConfig(k=1, n_tokens=2, stop_token_ids=frozenset([2]))
    )
    assert [s.tokens for s in first_stopped] == [(6, 5)]


def test_repeats_can_be_forbidden() -> None:
    session = ToySession(V, rule=stepping)
    assert suggest(session, 4, SuggestConfig(k=1, n_tokens=6))[0].tokens == (5, 5, 5, 5, 5, 5)
    tokens = suggest(session, 4, SuggestConfig(k=1, n_tokens=6, no_repeat=2))[0].tokens
    pairs = list(pairwise(tokens))
    assert len(set(pairs)) == len(pairs)
    assert tokens[:3] == (5, 5, 6)
    assert len(set(suggest(session, 4, SuggestConfig(k=1, n_tokens=6, no_repeat=1))[0].tokens)) == 6


def test_small_vocabularies_give_fewer_suggestions() -> None:
    found = suggest(ToySession(3), 1, SuggestConfig(k=8, n_tokens=2))
    assert {s.tokens[0] for s in found} == {0, 1, 2}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("k", 0, "at least 1"),
        ("k", 9, "at most 8"),
        ("n_tokens", 0, "at least 1"),
        ("no_repeat", -1, "0"),
    ],
)
def test_requests_that_make_no_sense_are_refused(field: str, value: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} .*is {value}, .*{expected}"):
        SuggestConfig(**{field: value})


def test_what_does_not_fit_is_refused_before_any_pass() -> None:
    session = session_after([1, 2, 3], context=16)
    passes = session.n_passes
    assert len(suggest(session, 4, SuggestConfig(k=3, n_tokens=5))) == 3  # 3 + 1 + 3 * 4
    session.n_passes = passes
    with pytest.raises(SessionError, match="need 17 positions, the context has 16"):
        suggest(session, 4, SuggestConfig(k=1, n_tokens=14))
    assert session.n_passes == passes


@pytest.mark.parametrize("n_good", [0, 2])
def test_broken_logits_are_refused(n_good: int) -> None:
    def rule(prefix: Sequence[int]) -> np.ndarray:
        return one_hot(V, 3) if len(prefix) <= n_good else np.full(V, np.nan, np.float32)

    session = ToySession(V, rule=rule)
    with pytest.raises(SessionError, match="the logits sum up to nan, expected a number"):
        suggest(session, 1, SuggestConfig(k=2, n_tokens=5))
    assert session.n_tokens == 0
