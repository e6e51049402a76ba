"""What a model is likely to say next because the text said it before."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.drafting.compiled import CompiledDrafting
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, RoundOutcome
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.rows import Rows

_LONGEST = 15
"""With the newest token a pass of 16 rows; twice a step or a little more, for a draft model."""

_MIN_VALUE = 0.25
"""Each row costs about a tenth of a step; the rest is for beliefs that are too high."""


class LookupChains:
    """Drafts chains for either model, which keeps what it would have said itself.

    The text is the same with and without; only passes are saved. One request's.
    """

    def __init__(self, drafting: CompiledDrafting) -> None:
        """Takes over ``drafting``, begun with the prompt."""
        self._drafting = drafting
        self._context: DraftContext | None = None
        self._tree = DraftTree()

    def propose(self, state: DecodeState, noise: Noise, limit: int, n_ids: int) -> list[int]:
        """Returns at most ``limit`` tokens, all of them below ``n_ids``."""
        limit = min(limit, _LONGEST)
        if limit < 1:
            return []
        self._context = DraftContext(
            state.tokens, state.n_prompt, state.sampling, noise, state.mask
        )
        self._tree = self._drafting.propose(self._context, Budget(limit, limit, _MIN_VALUE))
        chain: list[int] = []
        node = ROOT
        while children := self._tree.children(node):
            node = children[0]
            token = self._tree.nodes[node].token
            if token >= n_ids or token in state.stop_token_ids:
                break
            chain.append(token)
        return chain

    def learn(self, said: Sequence[int], rows: Rows) -> None:
        """Takes in what the model said where a chain was asked for last."""
        if self._context is not None:
            path = tuple(self._tree.matching(said))
            outcome = RoundOutcome(self._tree, path, tuple(said), rows.stats)
            self._drafting.observe(self._context, outcome)
            self._context = None

    def end(self, tokens: Sequence[int]) -> None:
        """The output ended with exactly ``tokens``."""
        self._context = None
        self._drafting.end(tokens)
