"""How far estimates can be believed, by depth, and when something that lost is tried again."""

from __future__ import annotations

import pytest

from edgedec.runtime.decoding.acceptance_rates import Backoff, DepthRates, Trust


def test_estimates_are_corrected_by_what_came_true_and_never_raised_by_more_than_a_fifth() -> None:
    trust = Trust()
    assert trust.factor == 1.0
    trust.observe(3.0, 1.0)
    assert trust.factor == pytest.approx((1 + 1) / (3 + 1))
    trust.observe(1.0, 2.0)
    assert trust.factor == pytest.approx((0.95 + 2 + 1) / (0.95 * 3 + 1 + 1))
    trust.observe(0.0, 5.0)
    assert trust.factor == 1.2


def test_without_news_all_that_is_known_fades() -> None:
    trust = Trust(estimated=8.0, accepted=2.0)
    trust.forget()
    assert (trust.estimated, trust.accepted) == pytest.approx((7.92, 1.98))


def test_a_level_is_tested_where_those_before_it_held() -> None:
    rates = DepthRates(0.5, 3)
    rates.observe(3, 0)
    assert [rates.rate(depth) for depth in (1, 2, 3)] == pytest.approx([1.35 / 3.7, 0.5, 0.5])
    rates.observe(2, 2)
    first = (0.9 * 1.35 + 1) / (0.9 * 3.7 + 1)
    assert [rates.rate(depth) for depth in (1, 2, 3)] == pytest.approx([first, 2.35 / 3.7, 0.5])
    assert rates.rate(9) == rates.rate(3)
    assert rates.expected_tokens(2) == pytest.approx(first + first * 2.35 / 3.7)


def test_a_text_begins_with_the_rates_of_all_texts_and_moves_faster() -> None:
    rates = DepthRates(0.5, 2, decay=0.98)
    for _ in range(20):
        rates.of_text().observe(1, 0)
    known = rates.rate(1)
    assert known < 0.1
    text = rates.of_text()
    assert [text.rate(1), text.rate(2)] == pytest.approx([known, 0.5])
    for _ in range(5):
        text.observe(1, 1)
    assert text.rate(1) > 0.6 > 0.4 > rates.rate(1) > known
    assert text.trust is rates.trust


def test_the_first_round_after_a_rest_is_a_probe() -> None:
    backoff = Backoff(2, 8)
    assert backoff.is_over()
    assert not backoff.is_probe, "nothing lost yet"
    for rest in (2, 4, 8, 8):
        backoff.lost()
        assert [backoff.is_over() for _ in range(rest)] == [False] * rest
        assert not backoff.is_probe
        assert backoff.is_over()
        assert backoff.is_probe
        assert backoff.is_over()
        assert not backoff.is_probe, "only the first one is"
    backoff.reset()
    assert backoff.is_over()
    assert not backoff.is_probe
