"""Which of the passes that are ready are computed next, as one. Pure: passes in, a choice out."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.sequences.passes import Pass

MOST_ROWS = 160
"""Rows of a pass that several sequences share: a chunk of a prompt, and what decodes beside it."""


def choose(ready: Sequence[Pass], most_rows: int = MOST_ROWS) -> list[int]:
    """Returns the places of those that share the next pass: the oldest, and what goes with it.

    Passes of its model join it in the order they came while there is room, so that nobody starves:
    whatever waits is the oldest sooner or later.

    ready: the oldest first. most_rows: of the pass, unless the oldest has more.
    """
    oldest = ready[0]
    model = oldest.sequence.model
    chosen, n_rows = [0], oldest.n_rows
    for i, wanted in enumerate(ready[1:], 1):
        if len(chosen) == model.capabilities.n_sequences:
            break
        fits = n_rows + wanted.n_rows <= most_rows
        if wanted.sequence.model is model and fits and can_share(wanted):
            chosen.append(i)
            n_rows += wanted.n_rows
    return chosen if can_share(oldest) else [0]


def can_share(wanted: Pass) -> bool:
    """Says whether other sequences may share the pass: it runs all layers, with all they have."""
    can = wanted.sequence.model.capabilities
    is_whole = wanted.layers is None and wanted.layer_gates is None
    return can.n_sequences > 1 and is_whole and not wanted.is_alone
