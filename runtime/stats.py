"""What a generation did, in counters that add up. Rates are derived, never stored."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass
class DecodeStats:
    """Counters of one generation. Plain decoding leaves those of drafting at zero.

    n_proposed: tokens drafted.
    n_evaluated: drafted tokens compared with the target model, up to the first rejection.
    n_accepted: drafted tokens kept.
    n_correction: tokens sampled after a rejection.
    n_bonus: tokens sampled after full acceptance.
    n_rounds: completed drafting rounds; equals n_correction + n_bonus.
    n_prefill_tokens: prompt tokens computed.
    n_reused_tokens: prompt tokens found in the KV cache.
    n_passes: passes of the target model after prefill.
    n_pass_tokens: tokens those passes emitted.
    """

    n_proposed: int = 0
    n_evaluated: int = 0
    n_accepted: int = 0
    n_correction: int = 0
    n_bonus: int = 0
    n_rounds: int = 0
    n_prefill_tokens: int = 0
    n_reused_tokens: int = 0
    n_passes: int = 0
    n_pass_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / evaluated; 0 when nothing was evaluated."""
        return self.n_accepted / self.n_evaluated if self.n_evaluated else 0.0

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target model pass after prefill; 1 for plain decoding."""
        return self.n_pass_tokens / self.n_passes if self.n_passes else 0.0

    def to_dict(self) -> dict[str, int | float]:
        """Returns counters and rates, JSON-ready."""
        return {
            **dataclasses.asdict(self),
            "acceptance_rate": self.acceptance_rate,
            "block_efficiency": self.block_efficiency,
        }
