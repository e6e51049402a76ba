"""When something that lost is tried again."""

from __future__ import annotations

from edgedec.runtime.decoding.acceptance import Backoff


def test_the_first_round_after_a_rest_is_a_probe() -> None:
    backoff = Backoff(2, 8)
    assert backoff.is_over()
    assert not backoff.is_probe, "nothing lost yet"
    for rest in (2, 4, 8, 8):
        backoff.lost()
        assert [backoff.is_over() for _ in range(rest)] == [False] * rest
        assert not backoff.is_probe
        assert backoff.is_over()
        assert backoff.is_probe
        assert backoff.is_over()
        assert not backoff.is_probe, "only the first one is"
    backoff.reset()
    assert backoff.is_over()
    assert not backoff.is_probe
