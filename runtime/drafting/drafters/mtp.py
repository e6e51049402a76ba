"""Light heads in the model's own graph draft: the pass that gives a token says what follows it.

Head d says what comes d + 1 tokens behind the row's likeliest, where those before are the likeliest
of the heads before it; of each its alternatives are drafted, too, as leaves of the tree.

Sources: multi-token prediction as drafts (Gloeckle et al., 2024), by the heads of Medusa (Cai et
al., 2024) and Hydra (Ankner et al., 2024).

Where the model's publisher trained a layer for drafting, that drafts instead, by passes of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgedec.models.draft_heads import HYDRA
from edgedec.runtime.drafting.best_first import AcceptanceRates, BestFirst, Option
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    DraftPrompt,
    ModelDrafter,
    RoundOutcome,
)
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import FreeMethod, ModelMethod

METHOD_NAME = "mtp"
_N_OPTIONS = 4  # of a head
_N_DEPTHS = 4  # whose acceptance is counted apart

Level = list[tuple[int, float]]
"""Likely tokens, with their probabilities."""


class Mtp:
    """Proposes what light heads said beside the last row of the pass before."""

    name = METHOD_NAME
    hidden_layers = ()

    def __init__(self, is_bound_to_likeliest: bool) -> None:
        """is_bound_to_likeliest: the heads took it for given that a row's likeliest token came."""
        self.is_bound_to_likeliest = is_bound_to_likeliest
        self.rates = AcceptanceRates([1.0] * (2 * _N_DEPTHS))

    def begin(self, prompt: DraftPrompt) -> MtpDrafting:
        """Returns the part of a request."""
        return MtpDrafting(self)

    def close(self) -> None:
        """Does nothing: the heads are the model's."""


class MtpDrafting:
    """One request's part: what the heads said of the end of its text."""

    def __init__(self, drafter: Mtp) -> None:
        self._drafter = drafter
        self._growth: BestFirst[int] = BestFirst(drafter.name, drafter.rates)
        self._n_tokens = 0  # of the text that the levels follow
        self._levels: list[Level] = []

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns a tree; empty where the heads said nothing of the end of the text."""
        if self._n_tokens != len(context.tokens) or not self._levels:
            return DraftTree()
        return self._growth.grow(len(context.tokens), self._options(0, 0), self._options, budget)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Takes what the heads said beside the row that gave the last token."""
        self._growth.learn(len(context.tokens), outcome.emitted)
        self._levels = []
        if outcome.mtp is None:
            return
        *before, last = outcome.emitted
        row = outcome.path[len(before) - 1] + 1 if before else 0
        if self._drafter.is_bound_to_likeliest and outcome.stats.argmax.item(row) != last:
            return
        self._n_tokens = len(context.tokens) + len(outcome.emitted)
        ids = outcome.mtp.ids[row, :, :_N_OPTIONS].tolist()
        log_probs = outcome.mtp.log_probs[row, :, :_N_OPTIONS].tolist()
        self._levels = [
            [(token, math.exp(p)) for token, p in zip(*level, strict=True)]
            for level in zip(ids, log_probs, strict=True)
        ]

    def end(self, tokens: Sequence[int]) -> None:
        """Nothing is kept."""

    def _options(self, rank: int, depth: int) -> list[Option[int]]:
        """Returns what may follow ``depth`` tokens, the last of which was the ``rank``th likely."""
        if rank or depth >= len(self._levels):
            return []
        kind = 2 * min(depth, _N_DEPTHS - 1)
        return [
            Option(token, share, kind + (i > 0), i)
            for i, (token, share) in enumerate(self._levels[depth])
        ]


def _make(parts: DrafterParts) -> Drafter:
    return Mtp(is_bound_to_likeliest=parts.mtp == HYDRA)


METHOD = FreeMethod(
    "what light heads in the model's own graph said in the pass before", _make, Need.MTP
)


def _make_layer(parts: DrafterParts) -> ModelDrafter:
    from edgedec.runtime.drafting.drafters.eagle.eagle_drafter import EagleDrafter

    return EagleDrafter(parts.heads[Need.MTP](), METHOD_NAME)


MODEL_METHOD = ModelMethod(
    "what the layer that the model's publisher trained for drafting guesses", _make_layer, Need.MTP
)
"""In place of `METHOD` where the bundle has such a layer."""
