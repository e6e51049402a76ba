"""Better sub-layers to leave out, found in idle time on the text at hand.

Source: SWIFT (Xia et al., 2024), which tries sets on the text just written while it decodes. On a
CPU a try takes as long as several tokens, so here it waits until nobody does; and it exchanges one
sub-layer for another of its kind, so that a drafting pass goes on to take what was measured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedec.runtime.drafting.skip_set import SkipSet
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

WINDOW = 24
"""Latest tokens that sets are tried on."""

N_TRIES = 16
"""Most sets tried after one output."""


class SkipRefiner:
    """The best set so far. n_tried, n_kept: sets that were tried, and that were better."""

    def __init__(self, skip_set: SkipSet) -> None:
        self.skip_set = skip_set
        self.n_tried = self.n_kept = 0
        self._random = random.Random(0)

    def refine(self, text: Sequence[int], target: TokenSequence) -> Passes[None]:
        """Tries sets on the end of ``text``, whose rows ``target`` keeps."""
        start = len(text) - 1 - WINDOW
        if start < 1 or target.partial or common_prefix(target.tokens, text) < start:
            return
        if target.n_exact < start or target.reachable(start) != start:
            return
        kept = target.snapshot(start=start)
        target.truncate(start)
        try:
            yield from self._try_sets(text[start:], target)
        finally:
            if not target.is_closed:
                target.restore(kept)

    def _try_sets(self, text: Sequence[int], target: TokenSequence) -> Passes[None]:
        best = yield from self._matched(text, target, self.skip_set)
        for _ in range(N_TRIES):
            if best == 1:
                return
            other = self._swapped()
            matched = yield from self._matched(text, target, other)
            self.n_tried += 1
            if matched > best:
                self.skip_set, best = other, matched
                self.n_kept += 1

    def _matched(
        self, text: Sequence[int], target: TokenSequence, skip_set: SkipSet
    ) -> Passes[float]:
        """Returns the share of ``text``, but for its first token, that is found without a set."""
        rows = yield Pass(
            target,
            TokenTree.chain(text[:-1]),
            range(len(text) - 1),
            with_logits=False,
            layer_gates=skip_set.layer_gates,
        )
        return float((rows.stats.argmax == np.array(text[1:])).mean())

    def _swapped(self) -> SkipSet:
        """Returns the set with one sub-layer exchanged; the first and the last layer always run."""
        off = list(self.skip_set.off)
        place = self._random.randrange(len(off))
        kind, last = off[place] % 2, 2 * (self.skip_set.n_layers - 1)
        others = [i for i in range(2 + kind, last, 2) if i not in off]
        if others:
            off[place] = self._random.choice(others)
        return replace(self.skip_set, off=tuple(sorted(off)))
