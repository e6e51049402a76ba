"""Whether texts that share passes draft, on made-up clocks."""

from __future__ import annotations

import pytest

from edgedec.runtime.decoding.shared_throughput import (
    FRESH,
    LOOK,
    MAX_ROUNDS,
    PURSE,
    STAKE,
    SharedThroughput,
)
from edgedec.runtime.sequences.rows import OtherTexts

PLAIN_MS = 10.0


def play(
    throughput: SharedThroughput, n_texts: int, n_rounds: int, drafted: tuple[int, float]
) -> tuple[int, float]:
    """Plays rounds of so many texts; returns those with drafts, and milliseconds in all.

    drafted: tokens and milliseconds of a round with drafts. Tokens are worth `PLAIN_MS` less each.
    """
    n_with_drafts, all_ms = 0, 0.0
    for _ in range(n_rounds):
        is_drafting = throughput.is_drafting(n_texts)
        n_emitted, ms = drafted if is_drafting else (1, PLAIN_MS)
        n_rows = (2 if is_drafting else 1) * (n_texts - 1)
        company = OtherTexts(n_texts - 1, n_rows, 2 if is_drafting else 1)
        for _ in range(n_texts):
            throughput.observe(company, n_emitted, ms, not is_drafting)
        n_with_drafts += is_drafting
        all_ms += ms - (n_emitted - 1) * PLAIN_MS
    return n_with_drafts, all_ms


@pytest.mark.parametrize("n_texts", [2, 4, 8])
@pytest.mark.parametrize("slower", [1.1, 1.3, 5.0])
def test_drafts_that_slow_whole_rounds_lose_a_stake_and_a_small_share(
    n_texts: int, slower: float
) -> None:
    throughput, n_rounds = SharedThroughput(), 2000
    assert not throughput.is_drafting(n_texts), "before rounds without drafts are known"
    n_with_drafts, ms = play(throughput, n_texts, n_rounds, (1, slower * PLAIN_MS))
    assert n_with_drafts > 2, "looks"
    overshoot = n_with_drafts * max(slower - MAX_ROUNDS, 0)  # counted as disturbed
    lost = ms / PLAIN_MS - n_rounds
    assert lost <= STAKE + LOOK * n_rounds + slower - 1 + overshoot
    if slower < MAX_ROUNDS:
        assert lost < 0.01 * n_rounds


def test_drafts_that_pay_go_on() -> None:
    throughput = SharedThroughput()
    n_with_drafts, _ = play(throughput, 4, 1000, (2, 1.5 * PLAIN_MS))
    assert n_with_drafts > 0.94 * 1000
    n_with_drafts, _ = play(throughput, 4, 1000, (1, 1.1 * PLAIN_MS))
    assert n_with_drafts < (PURSE + STAKE + LOOK * 1000) / 0.1 + 2


def test_drafts_that_come_to_pay_are_found_by_a_look() -> None:
    throughput = SharedThroughput()
    play(throughput, 4, 300, (1, 1.2 * PLAIN_MS))
    n_rounds = int(STAKE / LOOK) + 2
    n_with_drafts, _ = play(throughput, 4, n_rounds + 100, (2, 1.2 * PLAIN_MS))
    assert n_with_drafts >= 90


def test_rounds_that_read_a_prompt_say_nothing() -> None:
    throughput = SharedThroughput()
    for _ in range(100):
        throughput.observe(OtherTexts(3, 66, 64), 1, PLAIN_MS, True)
    assert not throughput.is_drafting(4)
    play(throughput, 4, 3, (1, PLAIN_MS))
    assert throughput.is_drafting(4)
    for _ in range(FRESH):
        throughput.observe(OtherTexts(3, 66, 64), 1, 9 * PLAIN_MS, False)
    assert throughput.is_drafting(4)


def test_rounds_of_other_numbers_of_texts_are_measured_by_themselves() -> None:
    throughput = SharedThroughput()
    play(throughput, 4, 10, (2, PLAIN_MS))
    assert throughput.is_drafting(4)
    assert not throughput.is_drafting(3)


def test_rounds_without_drafts_are_measured_again_now_and_then() -> None:
    throughput = SharedThroughput()
    n_with_drafts, _ = play(throughput, 4, 10 * FRESH, (2, PLAIN_MS))
    assert 10 * FRESH - 33 <= n_with_drafts < 10 * FRESH - 20
