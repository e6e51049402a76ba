"""Expressions of numbers, against every number near their bounds."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest

from edgedec.runtime.sampling.number_patterns import (
    Bounds,
    decimal_text,
    decimals,
    integers,
    multiples,
)


def drawn(rng: random.Random) -> Bounds:
    low, parts = rng.randint(-1200, 1200), (0, 0, Fraction(1, 2), Fraction(1, 4))
    high = low + rng.randint(-3, 1500)
    return Bounds(
        None if rng.random() < 0.15 else low + Fraction(rng.choice(parts)),
        None if rng.random() < 0.15 else high + Fraction(rng.choice(parts)),
        rng.random() < 0.3,
        rng.random() < 0.3,
    )


@pytest.mark.parametrize("seed", range(60))
def test_all_integers_within_bounds_and_no_others(seed: int) -> None:
    bounds = drawn(random.Random(seed))
    pattern = re.compile(integers(bounds) or r"[^\s\S]")
    for n in range(-3000, 3001, 7):
        assert bool(pattern.fullmatch(str(n))) is bounds.holds(Fraction(n)), (bounds, n)
    assert not any(map(pattern.fullmatch, ("-0", "00", "01", "", "-")))


@pytest.mark.parametrize("seed", range(60))
def test_no_decimal_beyond_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    bounds = drawn(rng)
    pattern = re.compile(decimals(bounds) or r"[^\s\S]")
    for _ in range(500):
        value = Fraction(rng.randint(-300_000, 300_000), rng.choice([1, 10, 100]))
        if pattern.fullmatch(decimal_text(value)):
            assert bounds.holds(value)
        else:
            assert not bounds.holds(value) or value.denominator > 1


@pytest.mark.parametrize("power", [53, 63, 64, 100, 127])
def test_long_integers(power: int) -> None:
    rng = random.Random(power)
    for _ in range(100):
        low = rng.choice([-1, 1]) * (2**power + rng.randint(-3, 3))
        high = low + rng.choice([0, 1, 5, 10**6, 2**power])
        bounds = Bounds(Fraction(low), Fraction(high))
        pattern = re.compile(integers(bounds))
        for n in (low - 1, low, low + 1, (low + high) // 2, high - 1, high, high + 1, -low, 0):
            assert bool(pattern.fullmatch(str(n))) is bounds.holds(Fraction(n))


def test_bounds_of_hundreds_of_digits_make_short_expressions() -> None:
    pattern = integers(Bounds(Fraction(-(10**308)), Fraction(10**308)))
    assert len(pattern) < 300
    assert re.fullmatch(pattern, str(10**39))
    narrow = integers(Bounds(Fraction(10**308), Fraction(10**308 + 5)))
    assert [n for n in range(-2, 9) if re.fullmatch(narrow, str(10**308 + n))] == [*range(6)]


def test_fractions_with_no_integer_between_them() -> None:
    pattern = decimals(Bounds(Fraction(1, 10**10), Fraction(3, 10**10), is_low_open=True))
    assert re.fullmatch(pattern, "0.0000000002")
    assert not re.fullmatch(pattern, "0.0000000001")


def test_multiples_next_to_zero_come_first() -> None:
    step = Fraction(2**53 + 1)
    assert {0, step, -step} <= set(multiples(Bounds(), step))
    above = list(multiples(Bounds(low=Fraction(2**60)), step))
    assert above[0] == step * 128
    assert all(value % step == 0 and value >= 2**60 for value in above)
    assert list(multiples(Bounds(Fraction(1), Fraction(5)), step)) == []
