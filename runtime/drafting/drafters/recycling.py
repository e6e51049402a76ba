"""Proposes the candidates that the target model had in mind last time after the same token.

Source: Token Recycling (Luo et al., 2024). Instead of a fixed tree of 80 nodes the likeliest few
are taken, by the acceptance learnt of each place.
"""

from __future__ import annotations

from edgedec.runtime.drafting.compiled import CompiledDrafter
from edgedec.runtime.drafting.drafters import FreeMethod


class TokenRecycling(CompiledDrafter):
    """A table of the eight tokens that last seemed likeliest after each token.

    It learns from every verified row, those of rejected drafts included, and outlives requests.
    Tokens without a row yet are looked up among the neighbours in the prompts.
    """

    name = "recycling"

    def successors(self, token: int) -> list[int]:
        """Returns the tokens the table holds for after ``token``, likeliest first."""
        return list(self.compiled.known(0, token))


METHOD = FreeMethod(
    "what the model found likely when it last saw the same token", lambda parts: TokenRecycling()
)
