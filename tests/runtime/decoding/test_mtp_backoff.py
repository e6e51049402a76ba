"""Light heads in the graph are left alone where they bring less than they take."""

from __future__ import annotations

import pytest

from edgedec.runtime.decoding.mtp_backoff import MtpBackoff


def asked(rest: MtpBackoff, held: list[int], n_emitted: int = 1) -> list[bool]:
    found = []
    for n in held:
        found.append(rest.is_asking)
        rest.observe(n if rest.is_asking else 0, n_emitted)
    return found


def test_heads_that_are_right_are_asked_always() -> None:
    assert all(asked(MtpBackoff(0.05), [1, 0, 0, 1] * 30))


def test_heads_that_are_wrong_rest_longer_and_longer() -> None:
    found = asked(MtpBackoff(0.05), [0] * 400)
    assert all(found[:10])
    assert sum(found) < 100
    rests = "".join("x" if is_asking else "." for is_asking in found).split("x")
    lengths = [len(rest) for rest in rests if rest]
    assert lengths[:4] == sorted(lengths[:4])
    assert lengths[0] == 17
    assert lengths[3] > 100


def test_heads_that_become_right_are_asked_again() -> None:
    rest = MtpBackoff(0.05)
    asked(rest, [0] * 200)
    assert all(asked(rest, [1] * 300)[-100:])


def test_they_rest_once_the_mean_of_late_is_below_their_share() -> None:
    """0.25 * 0.9**15 = 0.051, 0.25 * 0.9**16 = 0.046."""
    assert asked(MtpBackoff(0.05), [0] * 17) == [True] * 16 + [False]


def test_the_next_rest_is_short_again_if_they_were_worth_more_than_at_first() -> None:
    rest = MtpBackoff(0.05)
    assert asked(rest, [0] * (16 + 17 + 16 + 33)).count(True) == 32
    found = asked(rest, [1] + [0] * 60)
    assert found == [True] * 19 + [False] * 17 + [True] * 16 + [False] * 9


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_what_they_take_decides(share: float) -> None:
    """A draft that holds every fourth round is worth a twentieth of a pass, but not a third."""
    rest = MtpBackoff(share)
    found = asked(rest, [0, 0, 0, 1] * 50)
    assert sum(found) < 100


def test_rounds_that_others_fill_do_not_make_heads_worth_more() -> None:
    assert sum(asked(MtpBackoff(0.05), [0, 0, 0, 0, 1] * 40, n_emitted=6)) < 120
