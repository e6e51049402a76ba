"""Which texts that share passes draft, where what rounds take is made up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edgedec.runtime.decoding.shared_throughput import (
    BANK,
    FRESH,
    LOOK,
    MAX_ROUNDS,
    PAUSE,
    STAKE,
    SharedText,
    SharedThroughput,
)
from edgedec.runtime.sequences.rows import OtherTexts

OWN_MS, PASS_MS = 0.25, 9.0


@dataclass
class Drafts:
    """What a round with drafts of one text brings and takes. own_ms, row_ms: beyond plain."""

    n_emitted: int
    own_ms: float
    row_ms: float = 0.1
    n_drafted: int = 2


def play(texts: list[SharedText], n_rounds: int, drafts: list[Drafts]) -> tuple[list[int], float]:
    """Plays rounds; returns rounds with drafts, by text, and rounds lost by all of them.

    A token more is worth one n-th of a round.
    """
    n_texts, with_drafts, lost = len(texts), [0] * len(texts), 0.0
    round_ms = PASS_MS + n_texts * OWN_MS
    for _ in range(n_rounds):
        asked = [text.is_drafting for text in texts]
        n_drafted = [d.n_drafted * is_asked for d, is_asked in zip(drafts, asked, strict=True)]
        n_rows = n_texts + sum(n_drafted)
        added_ms = [d.row_ms * n for d, n in zip(drafts, n_drafted, strict=True)]
        pass_ms = PASS_MS + sum(added_ms)
        for i, (text, one) in enumerate(zip(texts, drafts, strict=True)):
            company = OtherTexts(n_texts - 1, n_rows - 1 - n_drafted[i], 1 + max(n_drafted))
            if not asked[i]:
                text.rested(company, OWN_MS, pass_ms)
                continue
            text.drafted(company, one.n_emitted, n_drafted[i], OWN_MS + one.own_ms, pass_ms)
            with_drafts[i] += 1
            lost += (one.own_ms + added_ms[i]) / round_ms - (one.n_emitted - 1) / n_texts
    return with_drafts, lost


def begin(n_texts: int, throughput: SharedThroughput | None = None) -> list[SharedText]:
    throughput = throughput or SharedThroughput()
    return [SharedText(throughput, n_texts) for _ in range(n_texts)]


@pytest.mark.parametrize("n_texts", [2, 4, 8])
@pytest.mark.parametrize("own_ms", [0.1, 1.0, 5.0, 100.0])
def test_texts_lose_a_stake_and_a_small_share_together(n_texts: int, own_ms: float) -> None:
    texts, n_rounds = begin(n_texts), 3000
    assert not any(text.is_drafting for text in texts), "rounds without drafts are not known"
    with_drafts, lost = play(texts, n_rounds, [Drafts(1, own_ms)] * n_texts)
    n_looks = 1 + LOOK * n_rounds / STAKE
    assert sum(with_drafts) > 1, "looks"
    one = (own_ms + 0.2) / (PASS_MS + n_texts * OWN_MS)
    assert lost <= STAKE + LOOK * n_rounds + one + n_looks * max(one - MAX_ROUNDS, 0)


def test_looks_that_lose_become_rarer() -> None:
    texts = begin(4)
    lost = [play(texts, 1000, [Drafts(1, 2.0)] * 4)[1] for _ in range(4)]
    assert lost[1] < lost[0]
    assert lost[3] < 0.002 * 1000


def test_texts_whose_drafts_pay_all_draft() -> None:
    with_drafts, lost = play(begin(4), 1000, [Drafts(2, 0.3)] * 4)
    assert min(with_drafts) > 0.9 * 1000
    assert lost < -0.5 * 1000


def test_a_text_whose_drafts_do_not_pay_rests_while_others_draft() -> None:
    drafts = [Drafts(2, 0.3), Drafts(2, 0.3), Drafts(1, 1.0), Drafts(2, 0.3)]
    with_drafts, _ = play(begin(4), 1000, drafts)
    assert with_drafts[2] < 30
    assert min(n for i, n in enumerate(with_drafts) if i != 2) > 0.9 * 1000


def test_drafts_that_come_to_pay_are_found_by_a_look() -> None:
    texts = begin(4)
    play(texts, 300, [Drafts(1, 2.0)] * 4)
    n_rounds = int(STAKE / (LOOK / 4)) + 4 * PAUSE
    with_drafts, _ = play(texts, n_rounds + 100, [Drafts(2, 0.3)] * 4)
    assert min(with_drafts) >= 60


def test_what_a_text_gained_is_what_others_may_lose_up_to_a_bound() -> None:
    throughput = SharedThroughput()
    texts = begin(2, throughput)
    play(texts, 200, [Drafts(3, 0.1)] * 2)
    for text in texts:
        text.end()
    assert throughput.bank == BANK
    _, lost = play(begin(2, throughput), 100, [Drafts(1, 2.0)] * 2)
    assert lost <= BANK + LOOK * 100 + 2 * 0.3


def test_a_text_that_ends_gives_its_stake_back() -> None:
    throughput = SharedThroughput()
    texts = begin(2, throughput)
    play(texts, 4, [Drafts(1, 0.01, 0.0)] * 2)
    assert throughput.n_drafting == 1
    assert throughput.bank < STAKE
    for text in texts:
        text.end()
        text.end()
    assert throughput.n_drafting == 0
    assert throughput.bank == pytest.approx(STAKE, abs=0.01)


def test_a_pass_that_reads_a_prompt_is_not_charged() -> None:
    """What its drafted rows took in other passes is."""
    throughput = SharedThroughput()
    first, second = begin(2, throughput)
    play([first, second], 4, [Drafts(1, 0.0, 0.0)] * 2)
    assert first.is_drafting != second.is_drafting
    drafting = first if first.is_drafting else second
    for _ in range(100):
        drafting.drafted(OtherTexts(1, 64, 64), 1, 2, OWN_MS, 9 * PASS_MS)
    assert drafting.is_drafting
    for _ in range(FRESH):
        drafting.drafted(OtherTexts(1, 64, 64), 1, 2, OWN_MS + PASS_MS / 2, PASS_MS)
    assert not drafting.is_drafting


def test_rounds_of_other_numbers_of_texts_are_measured_by_themselves() -> None:
    throughput = SharedThroughput()
    play(begin(4, throughput), 10, [Drafts(2, 0.1)] * 4)
    assert throughput.plain(4).is_known
    assert not throughput.may_lend(3)


def test_rounds_without_drafts_are_measured_again_now_and_then() -> None:
    with_drafts, _ = play(begin(4), 10 * FRESH, [Drafts(2, 0.1)] * 4)
    assert 10 * FRESH - 60 <= min(with_drafts) < 10 * FRESH - 20
