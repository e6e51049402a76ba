"""What a pass returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgedec.runtime.sequences.row_stats import RowStats

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class MtpRows:
    """What light heads in a graph say of what follows the likeliest token behind a row.

    Shapes, for R rows and D heads, likeliest first:
        ids: [R, D, 8] int64, of head d behind the likeliest tokens of those before it.
        log_probs: [R, D, 8] float32. Units: nats.
    """

    ids: npt.NDArray[np.int64]
    log_probs: Float32


@dataclass(frozen=True, slots=True)
class OtherTexts:
    """What shared a pass with a text.

    n_texts: other texts. n_rows: theirs, in all. n_longest: most rows of one of all texts.
    """

    n_texts: int = 0
    n_rows: int = 0
    n_longest: int = 0


ALONE = OtherTexts()


@dataclass
class Rows:
    """What a pass returns. The arrays may be reused by the sequence's next pass.

    row_stats: of the asked rows, where the graph computes them.
    mtp: of the asked rows, where that was wanted.
    ms: milliseconds that the pass took, or the passes if it took several.
    company: what shared the pass.

    Shapes:
        logits: [R, V] float32, one row per asked row; [0, V] when statistics alone were asked
            for and the graph computes them.
        hidden: layer -> [T, hidden_size] float32, the residual stream after that many layers.
    """

    logits: Float32
    hidden: dict[int, Float32] = field(default_factory=dict)
    row_stats: RowStats | None = None
    ms: float = 0.0
    mtp: MtpRows | None = None
    company: OtherTexts = ALONE

    def copy(self) -> Rows:
        """Returns the same rows in arrays of their own."""
        stats, mtp = self.row_stats, self.mtp
        return Rows(
            self.logits.copy(),
            {layer: rows.copy() for layer, rows in self.hidden.items()},
            None if stats is None else stats.copy(),
            self.ms,
            None if mtp is None else MtpRows(mtp.ids.copy(), mtp.log_probs.copy()),
        )

    def only(self, index: int) -> Rows:
        """Returns the row ``index`` alone and its statistics, nothing else beside it."""
        part = slice(index, index + 1)
        of_row = None if self.row_stats is None else self.row_stats.part(part)
        return Rows(self.logits[part], {}, of_row, self.ms)

    def listed(self, rows: Sequence[int]) -> Rows:
        """Returns copies of the asked rows ``rows``, in this order, and no hidden states."""
        logits = self.logits[list(rows)] if len(self.logits) else self.logits
        return Rows(logits, {}, self.stats.part(rows), self.ms)

    @property
    def stats(self) -> RowStats:
        """Statistics of the asked rows."""
        if self.row_stats is None:
            self.row_stats = RowStats.of(self.logits)
        return self.row_stats
