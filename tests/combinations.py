"""The cases of parametrised tests that `make test-fast` runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

Case = tuple[str, ...]  # the identifier of each parameter's value


def mark_combinations(items: Sequence[pytest.Item]) -> None:
    """Marks cases `combination` if other cases of their test run each of their values."""
    tests = defaultdict[str, dict[Case, pytest.Item]](dict)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            # Indices do not serve: pytest numbers all cases for them.
            tests[item.nodeid.partition("[")[0]][tuple(item.callspec._idlist)] = item
    for cases in tests.values():
        kept = cover([case for case, item in cases.items() if stands_for_others(item)])
        for case, item in cases.items():
            if case not in kept:
                item.add_marker(pytest.mark.combination)


def stands_for_others(item: pytest.Item) -> bool:
    """Whether `make test-fast` would run the case on this machine."""
    return not any(item.get_closest_marker(name) for name in ("skip", "slow", "e2e"))


def cover(cases: Sequence[Case]) -> set[Case]:
    """Returns cases in which each parameter has each of its values, few of them."""
    missing = {pair for case in cases for pair in enumerate(case)}
    kept = set[Case]()
    while missing:
        best = max(cases, key=lambda case: len(missing.intersection(enumerate(case))))
        missing.difference_update(enumerate(best))
        kept.add(best)
    return kept
