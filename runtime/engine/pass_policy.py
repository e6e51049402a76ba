"""Which of the passes that are ready are computed next, as one. Pure: passes in, a choice out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtime.sequences.passes import Pass

MAX_ROWS = 160
"""Rows of a pass that several sequences share: a chunk of a prompt, and what decodes beside it."""

BESIDE = 8
"""Rows of batches in a pass that somebody waits for: so many cost little more than none."""

PATIENCE = 8
"""Passes that work of a batch lets go before it; then it counts as what somebody waits for."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pass that is ready.

    is_batch: nobody waits for what it is part of. n_passed_over: passes that went before it.
    """

    pass_: Pass
    is_batch: bool = False
    n_passed_over: int = 0

    @property
    def is_urgent(self) -> bool:
        """Goes before work of batches."""
        return not self.is_batch or self.n_passed_over >= PATIENCE


def choose(ready: Sequence[Waiting], most_rows: int = MAX_ROWS) -> list[int]:
    """Returns the places of those that share the next pass: the first, and what goes with it.

    Urgent ones come first, then batches, each in the order they came. Passes of the first one's
    model join it while there is room. Nobody starves: whatever waits is the oldest of its kind
    sooner or later, and a batch that waited long is urgent.

    ready: the oldest first. most_rows: of the pass, unless the first has more.
    """
    first, *others = sorted(range(len(ready)), key=lambda i: not ready[i].is_urgent)
    leading = ready[first].pass_
    if not can_share(leading):
        return [first]
    model = leading.sequence.model
    chosen, n_rows = [first], leading.n_rows
    most_beside = BESIDE if any(not waiting.is_batch for waiting in ready) else most_rows
    for i in others:
        if len(chosen) == model.capabilities.n_sequences:
            break
        pass_ = ready[i].pass_
        n_beside = 0 if ready[i].is_urgent else pass_.n_rows
        fits = n_rows + pass_.n_rows <= most_rows and n_beside <= most_beside
        if pass_.sequence.model is model and fits and can_share(pass_):
            chosen.append(i)
            n_rows += pass_.n_rows
            most_beside -= n_beside
    return chosen


def can_share(pass_: Pass) -> bool:
    """Says whether other sequences may share the pass: it runs all layers, with all they have."""
    can = pass_.sequence.model.capabilities
    is_whole = pass_.layers is None and pass_.layer_gates is None
    return can.n_sequences > 1 and is_whole and not pass_.is_alone
