"""How many texts at once: the number of most tokens per second, few where more add little."""

from __future__ import annotations

import pytest

from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.engine.at_once import best_n_at_once


@pytest.mark.parametrize(
    ("row_ms", "most", "expected"),
    [
        ({1: 10.0, 4: 12.0, 8: 16.0, 16: 25.0}, 16, 16),
        ({1: 10.0, 4: 12.0, 8: 16.0, 16: 31.0}, 16, 8),
        ({1: 10.0, 4: 12.0, 8: 16.0, 16: 25.0}, 4, 4),
        ({1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0, 16: 160.0}, 16, 1),
    ],
)
def test_the_number_of_most_tokens_per_second(
    row_ms: dict[int, float], most: int, expected: int
) -> None:
    assert best_n_at_once(CostTable(row_ms), most) == expected
