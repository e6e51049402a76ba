"""Sequences that are lent to requests, and which of them stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.sequence import TokenSequence

from ..conftest import ToyModel, toy_state

VOCAB, CONTEXT = 60, 64


@pytest.fixture
def model() -> ToyModel:
    return ToyModel(VOCAB)


def pool_of(model: ToyModel, *texts: Sequence[int]) -> SequencePool:
    """Returns a pool whose idle sequences hold ``texts``, the last one used last."""
    pool = SequencePool(model, CONTEXT)
    lent = [pool.take(()) for _ in texts]
    for sequence, text in zip(lent, texts, strict=True):
        sequence.restore(toy_state(text, 0))
        pool.give_back(sequence)
    return pool


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ((1, 2, 3, 4), (1, 2, 3)),
        ((1, 2, 9), (1, 2, 3)),
        ((5, 6), (5, 6, 7, 8)),
        ((5,), (5, 6, 7, 8)),
        ((9, 9), (5, 6, 7, 8)),  # of those alike the one used last
        ((), (5, 6, 7, 8)),
    ],
)
def test_the_longest_common_prefix_is_lent(
    model: ToyModel, text: Sequence[int], held: Sequence[int]
) -> None:
    pool = pool_of(model, (1, 2, 3), (5, 6, 7, 8))
    assert tuple(pool.take(text).tokens) == held


def test_new_ones_while_others_are_lent(model: ToyModel) -> None:
    pool = pool_of(model, (1, 2, 3))
    first, second, third = (pool.take((1, 2, 3, 4)) for _ in range(3))
    assert len({id(sequence) for sequence in (first, second, third)}) == 3
    assert [list(s.tokens) for s in (first, second, third)] == [[1, 2, 3], [], []]
    assert {(s.model, s.context) for s in (first, second, third)} == {(model, CONTEXT)}
    pool.give_back(second)
    assert pool.take((1, 2)) is second
    assert pool.take(()) not in (first, second, third)


def steps_of(dropped: list[list[int]]) -> Callable[[TokenSequence], Iterator[None]]:
    """Returns what drops a sequence in two steps, and notes its text, or -1 if it is closed."""

    def drop(sequence: TokenSequence) -> Iterator[None]:
        dropped.append([*sequence.tokens] if not sequence.is_closed else [-1])
        yield

    return drop


def test_beyond_two_idle_the_oldest_goes_step_by_step(model: ToyModel) -> None:
    dropped: list[list[int]] = []
    pool = SequencePool(model, CONTEXT, steps_of(dropped))
    lent = [pool.take(()) for _ in range(4)]
    for i, sequence in enumerate(lent):
        sequence.restore(toy_state((i, i), 0))
    for sequence in (lent[2], lent[0], lent[3]):
        pool.give_back(sequence)
    assert dropped == []
    assert pool.find((2, 2, 5), but=lent[1]) == (lent[2], 2)  # others may still share its text
    pool.tidy()
    assert dropped == [[2, 2]]  # still whole when it is looked at
    assert not lent[2].is_closed
    pool.tidy()
    assert lent[2].is_closed
    pool.give_back(lent[1])
    for _ in range(3):
        pool.tidy()
    assert dropped == [[2, 2], [0, 0]]
    assert {pool.take(()), pool.take(())} == {lent[1], lent[3]}
    assert not lent[1].is_closed
    assert not lent[3].is_closed


def test_the_fifth_that_goes_has_the_first_go_at_once(model: ToyModel) -> None:
    dropped: list[list[int]] = []
    pool = SequencePool(model, CONTEXT, steps_of(dropped))
    lent = [pool.take(()) for _ in range(8)]
    for i, sequence in enumerate(lent):
        sequence.restore(toy_state((i, i), 0))
    for sequence in lent:
        pool.give_back(sequence)
    assert dropped == [[0, 0], [1, 1]]
    assert [sequence.is_closed for sequence in lent] == [True, True] + 6 * [False]
    pool.close()
    assert all(sequence.is_closed for sequence in lent)


def test_a_long_text_is_not_overwritten_while_others_write(model: ToyModel) -> None:
    text = tuple(range(1, 21))
    dropped: list[list[int]] = []
    pool = SequencePool(model, CONTEXT, steps_of(dropped))
    first, second = pool.take(()), pool.take(())
    first.restore(toy_state(text, 0))
    pool.give_back(first)
    third = pool.take((9, 9))
    assert third not in (first, second)
    assert pool.find(text, but=third) == (first, 20)
    for _ in range(2):
        pool.tidy()
    assert dropped == [[*text]]
    assert first.is_closed
    second.restore(toy_state(text, 0))
    for sequence in (second, third):
        pool.give_back(sequence)
    pool.take((9, 9))
    assert pool.take((*text[:10], 9)) is second  # few tokens are lost


def test_given_back_twice_is_given_back_once(model: ToyModel) -> None:
    pool = SequencePool(model, CONTEXT)
    sequence, other = pool.take(()), pool.take(())
    for _ in range(3):
        pool.give_back(sequence)
    pool.give_back(TokenSequence(model, CONTEXT))  # nor does one that it never lent
    assert pool.take(()) is sequence
    assert pool.take(()) not in (sequence, other)


def test_a_closed_one_does_not_come_back(model: ToyModel) -> None:
    pool = SequencePool(model, CONTEXT)
    sequence = pool.take(())
    sequence.close()
    pool.give_back(sequence)
    assert pool.take(()) is not sequence


def test_the_latest_is_the_one_lent_last(model: ToyModel) -> None:
    pool = SequencePool(model, CONTEXT)
    made = pool.latest
    assert pool.take(()) is made
    second = pool.take(())
    assert pool.latest is second
    pool.give_back(made)
    assert pool.latest is second
    pool.give_back(second)
    assert pool.latest is second
    assert pool.take_idle() is second
    assert pool.take(()) is second  # it stayed idle


def test_an_idle_one_is_nobody_elses(model: ToyModel) -> None:
    pool = SequencePool(model, CONTEXT)
    lent = pool.take(())
    idle = pool.take_idle()
    assert idle is not lent
    assert pool.take(()) is idle


def test_forget_leaves_what_is_lent(model: ToyModel) -> None:
    pool = pool_of(model, (1, 2, 3), (5, 6, 7))
    lent = pool.take((1, 2))
    pool.forget()
    assert list(lent.tokens) == [1, 2, 3]
    assert list(pool.take((5, 6)).tokens) == []


def test_close_closes_all(model: ToyModel) -> None:
    pool = SequencePool(model, CONTEXT)
    sequences = [pool.take(()), pool.take(())]
    pool.give_back(sequences[0])
    pool.close()
    assert all(sequence.is_closed for sequence in sequences)
    assert not model.is_closed  # that is its owner's
