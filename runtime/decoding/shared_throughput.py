"""Whether texts that share passes draft: by what their whole rounds take.

Under load a draft saves little, and what it costs is more than its rows: drafters and Python run
for one text after the other while all wait. No table of passes knows that. So the time from one
round of a text to its next is compared with that of rounds without drafts, and a purse bounds what
may be lost: where it is empty all texts rest, as plain decoding does, and save up for a look.

Sources: goodput (SmartSpec, Liu et al., 2024, section 4); conservative bandits (Wu et al., 2016).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from edgedec.runtime.sequences.rows import OtherTexts

STAKE = 0.5
"""Rounds that a look may lose."""
LOOK = 0.004
"""Of a round, that each round of rest saves up for the next look."""
PURSE = 2.0
"""Most rounds that what drafts saved may be lost again, before texts rest."""
FRESH = 64
"""Rounds with drafts that are judged by the same rounds without."""
MAX_ROUNDS = 2.0
"""Rounds without drafts that one with drafts counts as at most; a longer one was disturbed."""

_N_PLAIN = 3  # rounds of all texts by which rounds without drafts are known
_MAX_ROWS = 16  # of one text: more read a prompt


class SharedThroughput:
    """Compares rounds with drafts and without, of as many texts at once.

    now_s: the time. Units: seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self._purse = STAKE
        self._is_drafting = True
        self._plain: dict[int, _PlainRounds] = {}

    def is_drafting(self, n_texts: int) -> bool:
        """Whether texts draft where so many share passes."""
        plain = self._plain.get(n_texts)
        return self._is_drafting and plain is not None and plain.is_known

    def observe(self, company: OtherTexts, n_emitted: int, ms: float, is_plain: bool) -> None:
        """Takes in a round of one text. ms: from the end of its round before. is_plain: no text
        drafted."""
        n_texts = company.n_texts + 1
        plain = self._plain.get(n_texts)
        if plain is None:
            plain = self._plain[n_texts] = _PlainRounds(n_texts)
        if is_plain:
            self._rest(n_texts)
            if company.n_rows == company.n_texts:
                plain.observe(ms)
        elif plain.is_known and company.n_longest <= _MAX_ROWS:
            n_rounds = min(plain.rounds(ms), MAX_ROUNDS)
            self._purse = min(self._purse + (n_emitted - n_rounds) / n_texts, PURSE)
            self._is_drafting = self._purse > 0

    def _rest(self, n_texts: int) -> None:
        if not self._is_drafting:
            self._purse += LOOK / n_texts
            self._is_drafting = self._purse >= STAKE


class _PlainRounds:
    """What rounds without drafts took of late, where so many texts share passes."""

    def __init__(self, n_texts: int) -> None:
        self._n_wanted = _N_PLAIN * n_texts
        self._n_judged = 0
        self._n_fresh = FRESH * n_texts
        self._ms: deque[float] = deque(maxlen=2 * self._n_wanted)
        self._median_ms = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough of them were seen, and not too long ago."""
        return len(self._ms) >= self._n_wanted

    def observe(self, ms: float) -> None:
        """Takes in a round of one text."""
        self._ms.append(ms)
        self._median_ms = 0.0

    def rounds(self, ms: float) -> float:
        """Returns how many of them ``ms`` are."""
        if not self._median_ms:
            self._median_ms = float(np.median(self._ms))
        self._n_judged += 1
        n_rounds = ms / self._median_ms if self._median_ms else MAX_ROUNDS
        if self._n_judged >= self._n_fresh:
            self._n_judged = 0
            self._ms.clear()
            self._median_ms = 0.0
        return n_rounds
