"""What the draft model is expected to find likeliest, and the passes that saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.draft import guesses as draft_guesses
from edgedec.runtime.drafting.drafters.draft.distribution import Option
from edgedec.runtime.drafting.drafters.draft.guesses import MAX_GUESSES, Guesses

from .rounds import context_of, outcome_of
from .watched_session import (
    PROMPT,
    VOCAB,
    WatchedSession,
    make_drafter,
    make_drafting,
    peaked,
    plain,
    propose,
    spine,
)

DEEP = Budget(n_nodes=9, depth=9)


def option(token: int) -> Option:
    return Option(token, token, 0.9)


def tokens_of(chain: Sequence[Option]) -> list[int]:
    return [guess.token for guess in chain]


def cyclic(prefix: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns logits of one likely token, which the last one decides."""
    row = np.zeros(VOCAB, np.float32)
    row[(prefix[-1] + 1) % 5] = 12
    return row


def test_the_latest_after_two_tokens_is_guessed_before_that_after_one() -> None:
    guesses = Guesses()
    guesses.learn((1, 2), option(3))
    guesses.learn((9, 2), option(4))
    assert tokens_of(guesses.chain((1, 2), 1.0, 1)) == [3]
    assert tokens_of(guesses.chain((8, 2), 1.0, 1)) == [4]
    guesses.learn((1, 2), option(5))
    assert tokens_of(guesses.chain((1, 2), 1.0, 1)) == [5]
    assert guesses.chain((1, 7), 1.0) == []
    assert guesses.chain((), 1.0) == []


def test_a_chain_ends_where_it_is_hardly_needed() -> None:
    guesses = Guesses()
    for token in range(6):
        guesses.learn((token, token + 1), option(token + 2))
    assert tokens_of(guesses.chain((0, 1), 1.0)) == [2, 3, 4]
    assert tokens_of(guesses.chain((0, 1), 0.5)) == [2, 3]
    assert tokens_of(guesses.chain((0, 1), 0.3)) == [2]
    assert guesses.chain((0, 1), 0.1) == []
    assert guesses.chain((0, 1), 1.0, most=0) == []


def test_guesses_that_are_wrong_are_given_up_and_come_back_when_right() -> None:
    guesses = Guesses()
    rng = np.random.default_rng(0)
    for _ in range(400):
        guesses.learn((1, 2), option(int(rng.integers(1000))))
    assert guesses.chain((1, 2), 1.0) == []
    for _ in range(400):
        guesses.learn((1, 2), option(7))
    assert tokens_of(guesses.chain((1, 2), 1.0, 1)) == [7]


def test_what_was_learnt_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_guesses, "_CAPACITY", 20)
    guesses = Guesses()
    for token in range(100):
        guesses.learn((token, token), option(token))
        guesses.learn((500, 500), option(500))
    assert guesses.chain((3, 3), 1.0) == []
    assert tokens_of(guesses.chain((99, 99), 1.0, 1)) == [99]
    assert tokens_of(guesses.chain((500, 500), 1.0, 1)) == [500]
    assert len(guesses._after) <= 20


def test_right_guesses_save_passes_and_change_no_draft() -> None:
    session = WatchedSession(rule=cyclic)
    drafter = make_drafter(session)
    text = [0, 1, 2, 3, 4]
    drafting = drafter.begin(DraftPrompt(text))
    first = propose(drafting, context_of(text), DEEP)
    assert drafting.passes.cost.n_levels == 5  # from the sixth token on it goes round again
    drafting.end(text)
    drafting = drafter.begin(DraftPrompt(text))
    again = propose(drafting, context_of(text), DEEP)
    assert spine(first) == spine(again) == plain(session, text, 9)
    assert drafting.passes.cost.n_levels == 2  # of a token and three guesses each
    assert drafting.passes.cost.depth == 9
    assert drafting.passes.cost.n_level_rows == 8


@pytest.mark.parametrize("rule", [peaked, cyclic])
@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=0.7)])
def test_drafts_are_those_of_a_drafter_that_never_guesses(
    rule: Callable[..., Any], sampling: SamplingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over rounds of a text that is what the draft model says, but for each eleventh token."""
    chains = []
    for most in (MAX_GUESSES, 0):
        monkeypatch.setattr(
            "edgedec.runtime.drafting.drafters.draft.tree_drafting.MAX_GUESSES", most
        )
        session = WatchedSession(rule=rule)
        drafting = make_drafting(session)
        text, seen = list(PROMPT), []
        for _ in range(12):
            context = replace(context_of(text), sampling=sampling)
            tree = propose(drafting, context, Budget(n_nodes=4, depth=4))
            seen.append(spine(tree))
            emitted = [
                8 if (len(text) + i) % 11 == 0 else token
                for i, token in enumerate(plain(session, text, 3))
            ]
            drafting.observe(context, outcome_of(tree, emitted))
            text = [*text, *emitted]
        chains.append(seen)
    assert chains[0] == chains[1]


def test_a_guess_the_draft_model_finds_unlikely_may_come_true() -> None:
    """Its row is kept although it was never a candidate."""
    session = WatchedSession(rule=cyclic)
    drafter = make_drafter(session)
    text = [0, 1, 2, 3, 4]
    drafter.guesses.learn((4, 0), option(20))
    drafting, context = drafter.begin(DraftPrompt(text)), context_of(text)
    tree = propose(drafting, context, Budget(n_nodes=3, depth=3))
    assert spine(tree) == [0, 1, 2]
    n_computed = len(session.computed)
    drafting.observe(context, outcome_of(tree, [0, 20]))
    propose(drafting, replace(context, tokens=[*text, 0, 20]), Budget(n_nodes=2, depth=2))
    assert (*text, 0, 20) in session.computed[:n_computed]
    assert (*text, 0, 20) not in session.computed[n_computed:]
