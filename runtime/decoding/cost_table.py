"""What a pass over so many rows costs here: measured, remembered, corrected as it runs."""

from __future__ import annotations

import bisect
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from edgedec.runtime.session import ModelSession, TokenTree

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Pass sizes that are measured; between them costs are interpolated."""

_LEARNING_RATE = 0.08
_STEADY = 1.2  # times the shortest; where the median of a pass is longer, others were busy
_MOST_CHANGE = 1.5  # of one observation; a pass that took longer was disturbed


@dataclass
class CostTable:
    """Milliseconds of a pass over m rows.

    row_ms: measured, by m. is_steady: the measurement was not disturbed.
    scale: how the passes of late compare with those measured; it follows a growing context, a hot
        device and other programs.
    """

    row_ms: dict[int, float]
    is_steady: bool = True
    scale: float = 1.0
    _sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = sorted(self.row_ms)

    def ms(self, n_rows: int) -> float:
        """Returns the expected milliseconds of a pass over ``n_rows`` rows."""
        return self.scale * self._measured(n_rows)

    def observe(self, n_rows: int, ms: float) -> None:
        """Corrects the table by a pass that took ``ms``."""
        change = ms / self.ms(n_rows)
        change = min(max(change, 1 / _MOST_CHANGE), _MOST_CHANGE)
        self.scale *= change**_LEARNING_RATE
        if n_rows in self.row_ms:  # what the others do not share is this size's own
            self.row_ms[n_rows] *= change ** (_LEARNING_RATE / 2)

    def _measured(self, n_rows: int) -> float:
        sizes = self._sizes
        at = bisect.bisect_left(sizes, n_rows)
        if at < len(sizes) and sizes[at] == n_rows:
            return self.row_ms[n_rows]
        if at == 0 or len(sizes) == 1:
            return self.row_ms[sizes[0]]
        low, high = (sizes[at - 1], sizes[at]) if at < len(sizes) else (sizes[-2], sizes[-1])
        slope = (self.row_ms[high] - self.row_ms[low]) / (high - low)
        return self.row_ms[low] + slope * (n_rows - low)

    @classmethod
    def measure(
        cls,
        session: ModelSession,
        anchor: int,
        sizes: Sequence[int] = ROWS,
        repetitions: int = 4,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Self:
        """Returns the costs of passes after what ``session`` holds; nothing is committed.

        Sizes are measured in turn, several times over, and the shortest time counts: what else
        the machine does only ever adds. Sizes the context has no room for are left out.
        """
        import statistics  # takes long, and most processes read what another measured

        room = session.context - session.n_tokens
        fitting = [m for m in sizes if m <= room] or [1]
        times: dict[int, list[float]] = {m: [] for m in fitting}
        for repetition in range(repetitions + 1):
            for m in fitting:
                tree = TokenTree((anchor,) * m, (-1, *[0] * (m - 1)))
                start = clock()
                session.forward(tree, range(m), with_logits=False)
                if repetition:  # the first time, memory is made
                    times[m].append(1000 * (clock() - start))
        row_ms = {m: min(found) for m, found in times.items()}
        is_steady = statistics.median(times[fitting[0]]) < _STEADY * row_ms[fitting[0]]
        highest = 0.0
        for m in fitting:  # more rows never cost less: what says so is noise
            highest = row_ms[m] = max(highest, row_ms[m])
        return cls(row_ms, is_steady)

    def save(self, path: Path, fingerprint: str) -> None:
        """Writes the table if it is steady; without one, the next load measures again."""
        if not self.is_steady:
            return
        document = {"fingerprint": fingerprint, "row_ms": self.row_ms}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, delete=False, encoding="utf-8"
            ) as file:
                json.dump(document, file)
            Path(file.name).replace(path)
        except OSError:
            return

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> Self | None:
        """Returns the table at ``path`` if it is one of this device and bundle."""
        try:
            document: Any = json.loads(path.read_text(encoding="utf-8"))
            if document["fingerprint"] != fingerprint:
                return None
            row_ms = {int(m): float(ms) for m, ms in document["row_ms"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        is_sane = row_ms and all(0 < m <= 4096 and 0 < ms < 1e6 for m, ms in row_ms.items())
        return cls(row_ms) if is_sane else None
