"""Compiled drafters take nothing that is faulty, and read nothing beyond what they are given."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgedec.kernels import drafting as door

pytestmark = pytest.mark.kernel

NAMES = ("lookup", "recycling", "trigram")

HOSTILE: list[tuple[type[Exception], Callable[[door.DraftRounds], object]]] = [
    (ValueError, lambda rounds: rounds.propose([], 5, 5, 0.0)),
    (OverflowError, lambda rounds: rounds.propose([1, 2, 3, 2**70], 5, 5, 0.0)),
    (TypeError, lambda rounds: rounds.propose([1, 2, 3, "x"], 5, 5, 0.0)),  # type: ignore[list-item]
    (TypeError, lambda rounds: rounds.propose([1, 2, 3, 1.5], 5, 5, 0.0)),  # type: ignore[list-item]
    (ValueError, lambda rounds: observe(rounds, verified=4)),
    (ValueError, lambda rounds: observe(rounds, verified=-1)),
    (ValueError, lambda rounds: observe(rounds, verified=door.Verified([1], [0]))),
    (ValueError, lambda rounds: observe(rounds, verified=door.Verified([1], [-2]))),
    (ValueError, lambda rounds: observe(rounds, verified=door.Verified([1], [2**62]))),
    (ValueError, lambda rounds: observe(rounds, verified=door.Verified([1, 2], [-1]))),
    (OverflowError, lambda rounds: observe(rounds, emitted=[-(2**64)])),
    (ValueError, lambda rounds: observe(rounds, n_rows=2, n_ids=7)),
    (ValueError, lambda rounds: observe(rounds, dtype=np.float64)),
]


def observe(
    rounds: door.DraftRounds,
    verified: door.Verified | int = 0,
    emitted: Sequence[int] = (1,),
    n_rows: int = 1,
    n_ids: int = 8,
    dtype: type[np.generic] = np.float32,
) -> None:
    ids = np.zeros((n_rows, n_ids), np.int64)
    logits: Any = np.zeros((n_rows, n_ids), dtype)
    rounds.observe(
        [1, 2, 3], emitted, 0, verified, door.Rows(ids, logits, np.zeros(n_rows, np.float32))
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("error", "call"), HOSTILE)
def test_faulty_input_is_an_error_and_costs_nothing(
    name: str, error: type[Exception], call: Callable[[door.DraftRounds], object]
) -> None:
    rounds = door.DraftRounds(door.DraftTeam([door.Drafter(name, 100)]), [1, 2, 3])
    with pytest.raises(error):
        call(rounds)
    observe(rounds)
    rounds.propose([1, 2, 3, 1, 2], 5, 5, 0.0)
    rounds.end([1, 2, 3, 1, 2])
    rounds.end([1, 2, 3, 1, 2])
    for late in (rounds.longest_match, lambda: observe(rounds)):
        with pytest.raises(ValueError, match="the output has ended"):
            late()


@pytest.mark.parametrize("seed", range(5))
def test_rounds_at_random(seed: int) -> None:
    """Small tables, several requests, trees of others: a sanitizer sees what is read."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    team = door.DraftTeam([door.Drafter(name, 3) for name in NAMES])
    texts = [[chance.randrange(4) for _ in range(chance.randint(1, 30))] for _ in range(3)]
    talks = [door.DraftRounds(team, text) for text in texts]
    for _ in range(200):
        at = chance.randrange(3)
        text, rounds = texts[at], talks[at]
        n_most, least = chance.choice([0, 4, 99]), chance.choice([0.0, 0.02, 0.5])
        found = rounds.propose(text, n_most, chance.choice([0, 3, 99]), least)
        assert len(found) <= n_most
        tokens, parents = [node[0] for node in found], [node[2] for node in found]
        n_rows = chance.choice([0, 1, len(tokens) + 1])
        ids = rng.integers(-1, 4, (n_rows, 8))
        rows = door.Rows(ids, np.zeros((n_rows, 8), np.float32), np.ones(n_rows, np.float32))
        verified = chance.choice([len(found) // 2, door.Verified(tokens, parents)])
        emitted = [*tokens[: chance.choice([0, 1, 3])], chance.randrange(4)]
        rounds.observe(text, emitted, chance.choice([0, len(emitted), 99, -1]), verified, rows)
        text += emitted
        if chance.random() < 0.05:
            rounds.end(text)
            talks[at] = door.DraftRounds(team, text)
