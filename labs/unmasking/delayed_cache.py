"""dKV-Cache: keys and values of decided tokens are kept for some passes, one pass late.

A token's row changes most when it is decided. So the first pass that sees the token itself computes
its row once more, and that one is kept.
Source: dKV-Cache-Decode (arXiv 2505.15781).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from edgedec.runtime.config.unmasking import UnmaskConfig
from edgedec.runtime.decoding.unmasking import Canvas
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree


class DelayedCache:
    """Passes over the tokens that are not kept. Every so many passes all are computed anew."""

    def __init__(self, refresh: int, sequence: TokenSequence) -> None:
        self._refresh = refresh
        self._sequence = sequence
        self._kept: set[int] = set()
        self._rows: dict[int, int] = {}  # place -> row of the latest pass
        self._n_passes = 0

    def next_pass(self, canvas: Canvas, places: Sequence[int], with_logits: bool) -> Pass:
        """Returns a pass over the places that are not kept."""
        if self._n_passes % self._refresh == 0:
            self._sequence.truncate(0)
            self._kept.clear()
        self._n_passes += 1
        fresh = [place for place in range(len(canvas.tokens)) if place not in self._kept]
        self._rows = {place: row for row, place in enumerate(fresh)}
        tree = TokenTree.block([canvas.tokens[place] for place in fresh], fresh)
        logit_rows = [self._rows[canvas.row_of(place)] for place in places]
        return Pass(self._sequence, tree, logit_rows, with_logits=with_logits)

    def keep(self, canvas: Canvas) -> None:
        """Keeps the rows of decided tokens, but those that have the logits of a masked one."""
        needed = {canvas.row_of(place) for place in canvas.masked} | canvas.masked
        done = [place for place in self._rows if place not in needed]
        if done:
            self._sequence.commit([self._rows[place] for place in done])
            self._kept.update(done)


def maker(setting: UnmaskConfig) -> Callable[[TokenSequence], DelayedCache]:
    """Returns what makes the reading of an output."""
    return partial(DelayedCache, setting.refresh)
