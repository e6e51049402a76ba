"""Which of the texts that share passes draft: those whose drafts earn all that they cost.

Under load a draft saves little, and what it costs is more than its rows: drafters and Python run
for one text after the other while all wait. No table of passes knows that. So a text that drafts
pays for all that its round took beyond one without drafts: its own time outside of passes, and its
part of what the pass took longer. It earns the tokens that it got besides. It pays out of a stake
that a bank lends. What texts earn fills the bank, so that more of them may draft; rest fills it
slowly, and more slowly after each look that lost. Units: rounds of all texts without drafts.

Sources: goodput (SmartSpec, Liu et al., 2024, section 4); conservative bandits (Wu et al., 2016).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from edgedec.runtime.sequences.rows import OtherTexts

STAKE = 0.3
"""Rounds that a text may lose by drafting before it rests."""
BANK = 2.0
"""Most rounds that the bank holds."""
LOOK = 0.004
"""Of a round, that each round of rest saves up for the next stake."""
MIN_LOOK = LOOK / 8
"""The same after many looks that lost."""
PAUSE = 8
"""Rounds that a text rests at least after it lost; twice as many each time."""
FRESH = 64
"""Rounds of a text with drafts that are judged by the same rounds without."""
MAX_ROUNDS = 2.0
"""Rounds that one with drafts may cost at most; a longer one was disturbed."""

_N_PLAIN = 3  # rounds of all texts by which rounds without drafts are known
_MAX_ROWS = 16  # of one text: more read a prompt
_ROW_RATE = 0.1  # at which a pass changes what a drafted row is taken to cost


class SharedThroughput:
    """The bank of one engine, and what rounds without drafts take. n_drafting: texts that draft."""

    def __init__(self) -> None:
        self.bank = STAKE
        self.n_drafting = 0
        self._look = LOOK
        self._plain: dict[int, PlainRounds] = {}

    def plain(self, n_texts: int) -> PlainRounds:
        """Returns what rounds of so many texts take without drafts."""
        plain = self._plain.get(n_texts)
        if plain is None:
            plain = self._plain[n_texts] = PlainRounds(n_texts)
        return plain

    def may_lend(self, n_texts: int) -> bool:
        """Whether another text may begin to draft where so many share passes."""
        return self.bank >= STAKE and self.plain(n_texts).is_known

    def save(self, n_texts: int) -> None:
        """Takes in a round of one text without drafts."""
        if self.bank < STAKE:
            self.bank += self._look / n_texts

    def lend(self) -> None:
        """A text begins to draft."""
        self.n_drafting += 1
        self.bank -= STAKE

    def earn(self, rounds: float) -> None:
        """Takes in what a text earned beyond its stake."""
        self.bank = min(self.bank + rounds, BANK)
        self._look = LOOK

    def take_back(self, purse: float, *, has_lost: bool) -> None:
        """A text drafts no more. purse: what it has left."""
        self.n_drafting -= 1
        self.bank = min(self.bank + purse, BANK)
        if has_lost:
            self._look = max(self._look / 2, MIN_LOOK)


class SharedText:
    """What one text earns and pays for drafts. is_drafting: it may draft in its next round."""

    def __init__(self, throughput: SharedThroughput, n_texts: int) -> None:
        """n_texts: that share passes, with this one."""
        self._throughput = throughput
        self._purse = 0.0
        self._has_stake = False
        self._n_to_wait, self._pause = 0, PAUSE
        self.is_drafting = self._may_draft(n_texts)

    def rested(self, company: OtherTexts, own_ms: float, pass_ms: float) -> None:
        """Takes in a round without drafts. own_ms: of the text, outside of passes; 0 if unknown."""
        n_texts = company.n_texts + 1
        if own_ms > 0 and company.n_rows == company.n_texts:
            self._throughput.plain(n_texts).observe(own_ms, pass_ms)
        self._throughput.save(n_texts)
        self._n_to_wait -= 1
        self.is_drafting = self._may_draft(n_texts)

    def drafted(
        self, company: OtherTexts, n_emitted: int, n_drafted: int, own_ms: float, pass_ms: float
    ) -> None:
        """Takes in a round in which the text could draft. own_ms: 0 if unknown."""
        n_texts = company.n_texts + 1
        plain = self._throughput.plain(n_texts)
        if plain.is_known and self._has_stake and own_ms > 0:
            n_others_drafted = company.n_rows - company.n_texts
            if company.n_longest <= _MAX_ROWS:
                n_asking = max(self._throughput.n_drafting, 1)
                part = (n_drafted + 1) / (n_drafted + n_others_drafted + n_asking)
                cost = plain.rounds(own_ms, part, n_drafted, pass_ms)
            else:
                cost = plain.rounds_beside_prompt(own_ms, n_drafted)
            self._purse += (n_emitted - 1) / n_texts - min(cost, MAX_ROUNDS)
            if self._purse > STAKE:
                self._throughput.earn(self._purse - STAKE)
                self._purse = STAKE
            elif self._purse < 0:
                self.end(has_lost=True)
                self._n_to_wait = self._pause
                self._pause *= 2
        self.is_drafting = self._may_draft(n_texts)

    def end(self, *, has_lost: bool = False) -> None:
        """The text ended, or is alone, or rests."""
        if self._has_stake:
            self._has_stake = False
            self._throughput.take_back(self._purse, has_lost=has_lost)

    def _may_draft(self, n_texts: int) -> bool:
        """Whether the text drafts next; takes a stake if it has none."""
        if self._has_stake:
            return self._throughput.plain(n_texts).is_known
        if self._n_to_wait > 0 or not self._throughput.may_lend(n_texts):
            return False
        self._throughput.lend()
        self._has_stake, self._purse = True, STAKE
        return True


class PlainRounds:
    """What rounds without drafts took of late, where so many texts share passes."""

    def __init__(self, n_texts: int) -> None:
        self._n_texts = n_texts
        self._n_wanted = _N_PLAIN * n_texts
        self._n_judged = 0
        self._own_ms: deque[float] = deque(maxlen=2 * self._n_wanted)
        self._pass_ms: deque[float] = deque(maxlen=2 * self._n_wanted)
        self._medians: tuple[float, float] | None = None
        self._row_ms = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough of them were seen, and not too long ago."""
        return len(self._own_ms) >= self._n_wanted

    def observe(self, own_ms: float, pass_ms: float) -> None:
        """Takes in a round of one text."""
        self._own_ms.append(own_ms)
        self._pass_ms.append(pass_ms)
        self._medians = None

    def rounds(self, own_ms: float, part: float, n_drafted: int, pass_ms: float) -> float:
        """Returns what a round with drafts took longer. part: of the pass, that is its own."""
        outside_ms, plain_ms = self._known()
        added_ms = part * (pass_ms - plain_ms)
        if n_drafted:
            self._row_ms += _ROW_RATE * (added_ms / n_drafted - self._row_ms)
        self._count()
        return (own_ms - outside_ms + added_ms) / (plain_ms + self._n_texts * outside_ms)

    def rounds_beside_prompt(self, own_ms: float, n_drafted: int) -> float:
        """Returns the same where the pass also read a prompt, by what rows took before."""
        outside_ms, plain_ms = self._known()
        round_ms = plain_ms + self._n_texts * outside_ms
        return (own_ms - outside_ms + n_drafted * self._row_ms) / round_ms

    def _known(self) -> tuple[float, float]:
        if self._medians is None:
            self._medians = float(np.median(self._own_ms)), float(np.median(self._pass_ms))
        return self._medians

    def _count(self) -> None:
        self._n_judged += 1
        if self._n_judged >= FRESH * self._n_texts:
            self._n_judged = 0
            self._own_ms.clear()
            self._pass_ms.clear()
            self._medians = None
