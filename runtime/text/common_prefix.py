"""What two sequences of tokens begin with alike."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns how many tokens ``a`` and ``b`` begin with alike."""
    n = min(len(a), len(b))
    if list(a[:n]) == list(b[:n]):  # the usual case, at the speed of C
        return n
    return next(i for i in range(n) if a[i] != b[i])
