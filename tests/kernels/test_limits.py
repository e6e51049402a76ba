"""The measured limits are numbers that mean something; how large they are is the machine's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgedec.kernels import limits

BRIEF_S = 0.01


def is_plausible(measure: Callable[[], float]) -> bool:
    """Whether a rate is one of a machine, which may stand still for a moment."""
    return any(1e7 < measure() < 1e14 for _ in range(50))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_reading_has_a_plausible_rate(n_threads: int) -> None:
    data = np.ones(8 << 20, np.uint8)
    assert is_plausible(lambda: limits.read_rate(data, n_threads, BRIEF_S))


def test_parts_that_do_not_divide_evenly() -> None:
    assert limits.read_rate(np.ones(3 * 4096 + 77, np.uint8), 3, BRIEF_S) > 0


def test_multiplying_has_a_plausible_rate(isa: str) -> None:
    assert is_plausible(lambda: limits.multiply_rate(2, BRIEF_S, isa))


def test_multiplying_uses_the_active_isa() -> None:
    assert limits.multiply_rate(1, BRIEF_S) > 0


def test_arguments_are_checked() -> None:
    data = np.ones(1 << 16, np.uint8)
    with pytest.raises(ValueError, match="n_threads is 0"):
        limits.read_rate(data, 0, BRIEF_S)
    with pytest.raises(ValueError, match="seconds is 0"):
        limits.multiply_rate(1, 0)
    with pytest.raises(ValueError, match="4096 or more for each thread"):
        limits.read_rate(data, 1000, BRIEF_S)
    with pytest.raises(ValueError, match="expected uint8"):
        limits.read_rate(data.view(np.int8), 1, BRIEF_S)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="whole"):
        limits.read_rate(data[::2], 1, BRIEF_S)
    with pytest.raises(RuntimeError, match="usable: "):
        limits.multiply_rate(1, BRIEF_S, "mmx")
