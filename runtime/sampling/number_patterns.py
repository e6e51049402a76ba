"""Regular expressions of numbers within exact bounds, however many digits those have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_LISTED = 64
"""Maximum number of multiples, or of fractions between two integers, that are listed."""
_MAX_DIGITS = 40
"""Bounds with more digits are clipped to as many, if numbers are left: expressions stay short."""
_MAX_NESTED = 40
"""Digits that are nested in an expression; the library's parser allows some 250 levels in all."""
_MAX_PLACES = 400
"""Digits behind the point that are looked at for a number between two bounds."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of numbers; None where there is none."""

    low: Fraction | None = None
    high: Fraction | None = None
    is_low_open: bool = False
    is_high_open: bool = False

    @property
    def first(self) -> int | None:
        """The first integer."""
        if self.low is None:
            return None
        first = math.ceil(self.low)
        return first + (self.is_low_open and first == self.low)

    @property
    def last(self) -> int | None:
        """The last integer."""
        if self.high is None:
            return None
        last = math.floor(self.high)
        return last - (self.is_high_open and last == self.high)

    def holds(self, value: Fraction) -> bool:
        """Whether ``value`` is within them."""
        if self.low is not None and (value < self.low or (self.is_low_open and value == self.low)):
            return False
        return self.high is None or (
            value < self.high or (not self.is_high_open and value == self.high)
        )


def integers(bounds: Bounds) -> str:
    """Returns an expression of the integers within bounds, empty if there are none.

    If a bound has more than 40 digits, integers of more digits are left out, if others remain.
    """
    return _either(_integers(*_clipped(bounds.first, bounds.last)))


def decimals(bounds: Bounds) -> str:
    """Returns an expression of numbers within bounds, empty if there are none.

    It leaves out fractions beside a bound that is no integer, and exponents.
    """
    first, last = _clipped(bounds.first, bounds.last)
    ways = list(_integers(first, last))
    low = None if first is None else max(first, 0)
    fraction = r"\.[0-9]+"
    if last is None or last > 0:
        whole = _naturals(low or 0, None if last is None else last - 1)
        ways += [f"({pattern}){fraction}" for pattern in whole]
    if first is None or first < 0:
        nearest = 0 if last is None else max(0, -last)
        whole = _naturals(nearest, None if first is None else -first - 1)
        ways += [f"-({pattern}){fraction}" for pattern in whole]
    return _either(ways) or listed(_between(bounds))


def multiples(bounds: Bounds, step: Fraction) -> Iterator[Fraction]:
    """Yields some multiples of ``step`` within bounds, those next to zero first."""
    low = None if bounds.low is None else math.ceil(bounds.low / step)
    high = None if bounds.high is None else math.floor(bounds.high / step)
    start = max(0, low) if low is not None else 0
    start = min(start, high) if high is not None else start
    n_found = 0
    for i in range(2 * MAX_LISTED + 2):
        away = (i + 1) // 2 if i % 2 else -(i // 2)
        if n_found < MAX_LISTED and bounds.holds((start + away) * step):
            n_found += 1
            yield (start + away) * step


def listed(values: Iterable[Fraction]) -> str:
    """Returns an expression of these numbers, which have finitely many digits."""
    return _either([decimal_text(value).replace(".", r"\.") for value in values])


def decimal_text(value: Fraction) -> str:
    """Returns a number in digits, without an exponent."""
    n_places = 0
    while value.denominator != 1 and 10**n_places % value.denominator:
        n_places += 1
    digits = str(abs(int(value * 10**n_places))).rjust(n_places + 1, "0")
    text = f"{digits[:-n_places]}.{digits[-n_places:]}" if n_places else digits
    return f"-{text}" if value < 0 else text


def _between(bounds: Bounds) -> Iterator[Fraction]:
    """Yields some fractions between bounds that have no integer between them."""
    if bounds.low is None or bounds.high is None:
        return
    for n_places in range(_MAX_PLACES):
        scale = 10**n_places
        first, last = math.ceil(bounds.low * scale), math.floor(bounds.high * scale)
        values = [Fraction(n, scale) for n in range(first, min(last + 1, first + MAX_LISTED + 2))]
        if values := [value for value in values if bounds.holds(value)]:
            yield from values[:MAX_LISTED]
            return


def _clipped(first: int | None, last: int | None) -> tuple[int | None, int | None]:
    most = 10**_MAX_DIGITS
    low = -most if first is not None and first < -most and (last is None or last > -most) else first
    high = most if last is not None and last > most and (first is None or first < most) else last
    return low, high


def _integers(first: int | None, last: int | None) -> Iterator[str]:
    if first is None or first < 0:
        nearest = 1 if last is None else max(1, -last)
        yield from (
            f"-({pattern})" for pattern in _naturals(nearest, None if first is None else -first)
        )
    yield from _naturals(0 if first is None else max(0, first), last)


def _naturals(first: int, last: int | None) -> Iterator[str]:
    """Yields expressions of all integers from ``first``, which is not negative, to ``last``."""
    n_digits = len(str(first))
    if last is None:
        yield from _naturals(first, 10**n_digits - 1)
        yield f"[1-9][0-9]{{{n_digits},}}"
        return
    if first > last:
        return
    n_most = len(str(last))
    if n_digits == n_most:
        yield _same_length(str(first), str(last))
        return
    yield _same_length(str(first), "9" * n_digits)
    if n_most - n_digits > 1:
        yield f"[1-9][0-9]{{{n_digits},{n_most - 2}}}"
    yield _same_length("1" + "0" * (n_most - 1), str(last))


def _same_length(first: str, last: str) -> str:
    """Returns an expression of all texts of digits from ``first`` to ``last``, as long as both."""
    n_common = next((i for i, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), None)
    if n_common is None:
        return first
    low, high, rest = first[n_common], last[n_common], len(first) - n_common - 1
    ways = [low + _from(first[n_common + 1 :])]
    if int(high) - int(low) > 1:
        ways.append(_digit(int(low) + 1, int(high) - 1) + _any(rest))
    ways.append(high + _up_to(last[n_common + 1 :]))
    return first[:n_common] + f"({'|'.join(ways)})"


def _from(digits: str) -> str:
    """Returns an expression of texts of as many digits that are not before ``digits``."""
    if not digits.strip("0"):
        return _any(len(digits))
    if len(digits) > _MAX_NESTED:
        return _from_parts(digits[:_MAX_NESTED], digits[_MAX_NESTED:], _from, 1)
    head, rest = int(digits[0]), digits[1:]
    ways = [digits[0] + _from(rest)]
    if head < 9:
        ways.append(_digit(head + 1, 9) + _any(len(rest)))
    return f"({'|'.join(ways)})"


def _up_to(digits: str) -> str:
    """Returns an expression of texts of as many digits that are not behind ``digits``."""
    if not digits.strip("9"):
        return _any(len(digits))
    if len(digits) > _MAX_NESTED:
        return _from_parts(digits[:_MAX_NESTED], digits[_MAX_NESTED:], _up_to, -1)
    head, rest = int(digits[0]), digits[1:]
    ways = [digits[0] + _up_to(rest)]
    if head > 0:
        ways.append(_digit(0, head - 1) + _any(len(rest)))
    return f"({'|'.join(ways)})"


def _from_parts(head: str, rest: str, side: Callable[[str], str], step: int) -> str:
    """Returns what ``side`` returns of ``head + rest``, with fewer levels.

    step: 1 if larger texts are in, -1 if smaller ones are.
    """
    ways, next_head = [head + side(rest)], int(head) + step
    if 0 <= next_head < 10 ** len(head):
        ways.append(side(str(next_head).rjust(len(head), "0")) + _any(len(rest)))
    return f"({'|'.join(ways)})"


def _any(n: int) -> str:
    return f"[0-9]{{{n}}}" if n else ""


def _digit(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _either(ways: Iterable[str]) -> str:
    return "|".join(ways)
