"""Proposes what most often came third after the last two tokens.

Source: the tri-gram table of ADED (Li et al., 2024), with best-first growth in place of its
simulations: both visit the likeliest sequences.
"""

from __future__ import annotations

from edgedec.runtime.drafting.compiled import CompiledDrafter
from edgedec.runtime.drafting.drafters import FreeMethod


class Trigrams(CompiledDrafter):
    """Counts of third tokens, kept across requests.

    Emitted text and prompts count 1 a token, candidates of the target model their probability.
    Beyond ``max_pairs`` the pairs not touched for longest are forgotten.
    """

    name = "trigram"

    def __init__(self, max_pairs: int = 200_000) -> None:
        super().__init__(max_pairs)

    def counts(self, before: int, last: int) -> dict[int, float]:
        """Returns what was counted after two tokens."""
        return self.compiled.known(before, last)


METHOD = FreeMethod("what most often came after the last two tokens", lambda parts: Trigrams())
