"""Working memory of a pass: which value lies where, for as long as somebody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from edgedec.kernels.device_program import ALIGNMENT, WORK, Argument


@dataclass(eq=False)
class Value:
    """A result of a pass that has no place yet: its bytes, and the launches it lives between.

    is_output: it is there until the pass ends.
    """

    n_bytes: int
    first: int = -1
    last: int = -1
    is_output: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a value, so many bytes from its beginning."""

    value: Value
    offset: int


Place = Argument | Value | Part


def parts(sizes: Sequence[int]) -> list[Part]:
    """Returns parts of so many bytes, which lie one behind the other."""
    starts = [0, *accumulate(map(_whole, sizes))]
    value = Value(starts.pop())
    return [Part(value, start) for start in starts]


def value_of(place: Value | Part) -> Value:
    """Returns the value that ``place`` is, or is a part of."""
    return place.value if isinstance(place, Part) else place


@dataclass
class Layout:
    """Offsets of values. size: bytes of working memory that they need."""

    offsets: dict[Value, int] = field(default_factory=dict)
    size: int = 0

    def argument(self, place: Place) -> Argument:
        """Returns where ``place`` is."""
        return place if isinstance(place, Argument) else Argument(WORK, self.offset(place))

    def offset(self, place: Value | Part) -> int:
        """Returns where in the working memory ``place`` is."""
        if isinstance(place, Part):
            return self.offsets[place.value] + place.offset
        return self.offsets[place]


def lay_out(values: list[Value]) -> Layout:
    """Returns places for ``values``, of which those that live at once do not overlap.

    Each takes the first gap it fits in, in the order in which they come to life.
    """
    layout, alive = Layout(), list[Value]()
    for value in sorted(values, key=lambda v: v.first):
        alive = [v for v in alive if v.is_output or v.last >= value.first]
        offset = 0
        for other in sorted(alive, key=lambda v: layout.offsets[v]):
            if layout.offsets[other] - offset >= value.n_bytes:
                break
            offset = max(offset, layout.offsets[other] + _whole(other.n_bytes))
        layout.offsets[value] = offset
        layout.size = max(layout.size, offset + _whole(value.n_bytes))
        alive.append(value)
    return layout


def _whole(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
