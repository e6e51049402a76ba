"""What a pass over so many rows costs here: guessed at first, learned from passes, and kept.

Nothing is computed to be measured: a text would wait for thirty steps before its first draft.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.system.files import replace_json

ROWS = (1, 2, 3, 4, 6, 8, 9, 16, 17)
"""Pass sizes whose costs are known; between them costs are interpolated.

Kernels take rows by eight, so the ninth and the seventeenth cost far more than those beside them.
"""

USUAL = (1.0, 1.1, 1.25, 1.4, 1.8, 2.2, 2.9, 4.0, 4.6)
"""What passes of these sizes cost over one row before any was seen: between AVX2 and AVX-512."""

_USUAL = dict(zip(ROWS, USUAL, strict=True))
_TILE = 8  # rows; what so many cost holds beyond the largest size that was measured
_MANY = 16  # rows of a pass that reads a text, whose costs are those of wider ones
_COMMON_RATE = 0.2  # at which a pass changes the costs of all sizes
_OWN_RATE = 0.05  # at which it changes those of its own size, besides
_N_FIRST = 3  # passes that set the scale; the first of all finds memory cold
_MAX_KEPT = 8.0  # passes of a size that a kept table counts as at most: machines change
_NEAR = 0.1  # of one row's time: what more rows cost beyond it may be noise
_GOLDEN_RATIO = 0.6180339887498949  # whose multiples are spread evenly
_MAX_CHANGE = 1.5  # of one observation; a pass that took longer was disturbed
_MAX_OWN = 0.1  # share of its time that counts for that where it is unknown what all share


@dataclass
class CostTable:
    """Milliseconds of a pass over m rows.

    row_ms: by m; corrected by what passes take.
    n_seen: passes of each size so far; unless stated, all sizes are taken to be well known.
    """

    row_ms: dict[int, float]
    n_seen: dict[int, float] = field(default_factory=dict)
    _sizes: list[int] = field(init=False)
    _late_of_one: float = field(default=0.0, init=False, compare=False)
    _n_since_one: int = field(default=2, init=False, compare=False)
    _known_ms: dict[int, float] = field(default_factory=dict, init=False, compare=False)
    _shares: dict[int, list[tuple[int, float]]] = field(
        default_factory=dict, init=False, compare=False
    )

    def __post_init__(self) -> None:
        self._sizes = sorted(self.row_ms)
        if not self.n_seen:
            self.n_seen = dict.fromkeys(self.row_ms, 1 / _OWN_RATE)

    @classmethod
    def unknown(cls) -> Self:
        """Returns the table of a model none of whose passes was seen."""
        return cls(dict(zip(ROWS, USUAL, strict=True)), dict.fromkeys(ROWS, 0.0))

    def ms(self, n_rows: int) -> float:
        """Returns the expected milliseconds of a pass over ``n_rows`` rows."""
        ms = self._known_ms.get(n_rows)  # asked for dozens of times between two passes
        if ms is None:
            ms = self._known_ms[n_rows] = self._find_ms(n_rows)
        return ms

    def _find_ms(self, n_rows: int) -> float:
        sizes = self._sizes
        if n_rows > sizes[-1] and len(sizes) > 1:
            high = sizes[-1]
            low = max((size for size in sizes if high - size >= _TILE), default=sizes[-2])
            slope = (self.row_ms[high] - self.row_ms[low]) / (high - low)
            return self.row_ms[high] + slope * (n_rows - high)
        ms = 0.0
        for size, share in self._neighbours(n_rows):
            ms += share * self.row_ms[size]
        return ms

    @property
    def row_ms_of_many(self) -> float:
        """Milliseconds of a row of a wide pass, such as those that read a text."""
        return self.ms(_MANY) / _MANY

    @property
    def n_passes(self) -> float:
        """Passes that it learned from."""
        return sum(self.n_seen.values())

    @property
    def has_scale(self) -> bool:
        """Whether it is known what the smallest pass takes: the least of the first ones."""
        return self.n_passes >= _N_FIRST

    def has_seen(self, n_rows: int) -> bool:
        """Whether a pass of about ``n_rows`` rows was seen."""
        return all(self.n_seen[size] > 0 for size, _ in self._neighbours(n_rows))

    def observe(self, n_rows: int, ms: float) -> None:
        """Corrects the table by a pass that took ``ms``.

        The first passes of all set the scale, which all drafts are judged by. Those of a size say
        what it takes, and what sizes nobody tried yet take beyond one row. Later, what slows one
        pass down, such as a lower clock or others that compute, slows all sizes down, so all follow
        soon, by the same share: passes over one row may be missing for long, and drafts are judged
        by what they cost over these. What a size takes over the others then follows slowly: one
        that seems dear is not tried, so a few disturbed passes would keep it so. Right behind a
        pass over one row it is known what all share, and the rest counts in full. Sizes are kept in
        order, for more rows never cost less. A time that is no positive number teaches nothing.
        """
        expected = self.ms(n_rows)
        self._known_ms.clear()
        if not (expected > 0 and 0 < ms < math.inf):
            return
        near = self._neighbours(n_rows)
        if not self.has_scale:
            scale = ms / expected if not self.n_passes else min(ms / expected, 1.0)
            self.row_ms = {size: scale * taken for size, taken in self.row_ms.items()}
            self._count(near)
            return
        late = min(max(ms / expected, 1 / _MAX_CHANGE), _MAX_CHANGE) - 1
        # What a larger size takes bounds what this one does.
        newness = 1 / (1 + max(n for size, n in self.n_seen.items() if size >= near[0][0]))
        is_one = n_rows == self._sizes[0]
        common = max(_COMMON_RATE, newness) if is_one else min(_COMMON_RATE, 1 - newness)
        late_alone = late - self._late_of_one
        if self._n_since_one >= 2:
            late_alone = _bounded(late, max(_MAX_OWN, newness))
        self._n_since_one += 1
        if is_one:
            self._late_of_one, self._n_since_one = late, 0
        self._late_of_one *= 1 - common
        for size in self._sizes:
            self.row_ms[size] *= 1 + common * late
        for size, share in near:
            if size > self._sizes[0]:
                rate = max(_OWN_RATE, newness)
                self._correct(size, 1 + share * rate * late_alone)
        self._count(near)

    def _correct(self, size: int, factor: float) -> None:
        """Changes what a size takes; those nobody tried take as much more as they usually do."""
        self._set(size, factor * self.row_ms[size])
        first, *others = self._sizes
        floor_ms = (1 - _NEAR) * self.row_ms[first]
        seen = [other for other in others if self.n_seen[other] or other == size]
        for other in others:
            if other in seen:
                continue
            below, above = [s for s in seen if s < other], [s for s in seen if s > other]
            near = below[-1] if below else above[0]
            ms = floor_ms + _beyond(other) / _beyond(near) * (self.row_ms[near] - floor_ms)
            ms = max(ms, self.row_ms[below[-1] if below else first])
            self.row_ms[other] = min(ms, self.row_ms[above[0]]) if above else ms

    def _count(self, near: list[tuple[int, float]]) -> None:
        for size, share in near:
            self.n_seen[size] += share

    def scaled(self, factor: float) -> Self:
        """Returns the costs of another model, whose passes are guessed to take so many times as
        long; none was seen."""
        row_ms = {m: factor * ms for m, ms in self.row_ms.items()}
        return type(self)(row_ms, dict.fromkeys(row_ms, 0.0))

    def shared(self, n_rows: float, n_tokens: float) -> Self:
        """Returns what passes cost one of the texts that share them.

        Of a pass that all share, a text is not charged what the tokens of the others are worth, at
        the rate that all have together while this text drafts nothing. Drafts that pay at these
        costs then raise the tokens per millisecond of all texts together, and others lower it
        (goodput, SmartSpec section 4).

        n_rows: of the others. n_tokens: that they get from a pass.
        """
        n_others = round(n_rows)
        others_ms = self.ms(n_others + 1) * n_tokens / (n_tokens + 1)
        sizes = [1, *(size - n_others for size in self._sizes if size > n_others + 1)]
        row_ms = {m: self.ms(n_others + m) - others_ms for m in (*sizes, sizes[-1] + _TILE)}
        return type(self)(row_ms)

    def _set(self, size: int, ms: float) -> None:
        self.row_ms[size] = max(ms, self.row_ms[self._sizes[0]])
        for other in self._sizes[1:]:
            limit = min if other < size else max
            self.row_ms[other] = limit(self.row_ms[other], self.row_ms[size])

    def _neighbours(self, n_rows: int) -> list[tuple[int, float]]:
        """Returns the measured sizes next to ``n_rows`` and how much each counts."""
        shares = self._shares.get(n_rows)
        if shares is None:
            shares = self._shares[n_rows] = self._find_neighbours(n_rows)
        return shares

    def _find_neighbours(self, n_rows: int) -> list[tuple[int, float]]:
        sizes = self._sizes
        at = bisect.bisect_left(sizes, n_rows)
        if at == len(sizes):
            return [(sizes[-1], 1.0)]
        if at == 0 or sizes[at] == n_rows:
            return [(sizes[at], 1.0)]
        share = (n_rows - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return [(sizes[at - 1], 1 - share), (sizes[at], share)]

    @classmethod
    def measure(
        cls,
        sequence: TokenSequence,
        sizes: Sequence[int] = ROWS,
        repetitions: int = 2,
    ) -> Passes[Self]:
        """Returns the costs of passes after what ``sequence`` holds; nothing is committed.

        Sizes are measured in turn, several times over, and the least of each counts: what else a
        machine does makes passes longer, and the first ones find memory cold. Sizes the context
        has no room for are left out. No two passes have the same tokens, nor any token twice, much
        as in texts: of a mixture of experts, rows that are alike read the same ones, and other
        rows others.
        """
        room = sequence.context - sequence.n_tokens
        fitting = [m for m in sizes if m <= room] or [1]
        tokens = _spread(sequence.vocab_size)
        sweeps: list[list[float]] = []
        for _ in range(repetitions):
            sweeps.append((yield from _sweep(sequence, tokens, fitting)))
        first, *times, last = zip(*sweeps, strict=True)
        least = [min(*first, *last), *map(min, times)]
        for at in reversed(range(len(least) - 1)):  # fewer rows never cost more: that is noise
            least[at] = min(least[at], least[at + 1])
        return cls(dict(zip(fitting, least, strict=True)))

    def save(self, path: Path, fingerprint: str) -> None:
        """Writes the table."""
        document = {
            "fingerprint": fingerprint,
            "sizes": ROWS,
            "row_ms": self.row_ms,
            "n_seen": self.n_seen,
        }
        try:
            replace_json(path, document)
        except OSError:
            return

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> Self | None:
        """Returns the table at ``path`` if it is one of this device and bundle."""
        try:
            document: Any = json.loads(path.read_text(encoding="utf-8"))
            if document["fingerprint"] != fingerprint or document["sizes"] != list(ROWS):
                return None
            row_ms = {int(m): float(ms) for m, ms in document["row_ms"].items()}
            n_seen = {int(m): min(float(n), _MAX_KEPT) for m, n in document["n_seen"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        except (RecursionError, OverflowError):  # hostile nesting, an infinite count
            return None
        is_sane = row_ms and all(0 < m <= 4096 and 0 < ms < 1e6 for m, ms in row_ms.items())
        if not is_sane or n_seen.keys() != row_ms.keys() or not min(n_seen.values()) >= 0:
            return None
        return cls(row_ms, n_seen)


def _beyond(size: int) -> float:
    """Returns what a size usually takes beyond one row, of that row's time."""
    return _USUAL.get(size, float(size)) - 1 + _NEAR


def _bounded(value: float, most: float) -> float:
    return min(max(value, -most), most)


def _spread(vocab_size: int) -> Iterator[int]:
    """Yields token ids from all over the vocabulary, each far from those before it."""
    for i in itertools.count():
        yield int(vocab_size * (i * _GOLDEN_RATIO % 1))


def _sweep(
    sequence: TokenSequence, tokens: Iterator[int], sizes: Sequence[int]
) -> Passes[list[float]]:
    """Returns milliseconds of a pass of each of ``sizes`` and of the first once more."""
    times = []
    for m in (*sizes, sizes[0]):
        chosen, can = tuple(itertools.islice(tokens, m)), sequence.model.capabilities
        tree = TokenTree.chain(chosen)
        if can.blocks:
            n_past = sequence.n_tokens
            tree = TokenTree.block(chosen, range(n_past, n_past + m))
        with_mtp = can.mtp > 0
        rows = yield Pass(
            sequence, tree, range(m), with_logits=False, with_mtp=with_mtp, is_alone=True
        )
        times.append(rows.ms)
    return times
