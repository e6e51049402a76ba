"""What a proposal of a draft model costs."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.runtime.sequences.prefill import PREFILL_CHUNK


@dataclass
class DraftCost:
    """What the latest proposal cost.

    n_fed, feed_ms: tokens of the text that had to be computed first, and the time it took.
    n_levels, n_level_rows, level_ms: passes over drafted tokens, their rows, and their time.
    other_ms: what it took besides these passes.
    depth: levels of the tree that came of it; fewer passes make it where guesses were right.
    """

    n_fed: int = 0
    feed_ms: float = 0.0
    n_levels: int = 0
    n_level_rows: int = 0
    level_ms: float = 0.0
    depth: int = 0
    other_ms: float = 0.0

    def takes_in_all(self, ms: float) -> None:
        """Takes in what the whole proposal took."""
        self.other_ms = max(0.0, ms - self.feed_ms - self.level_ms)

    @property
    def n_passes(self) -> int:
        """Passes of the draft model, those over what it had not read included."""
        return -(-self.n_fed // PREFILL_CHUNK) + self.n_levels
