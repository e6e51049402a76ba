"""Checkpoints: dense of late, sparse of long ago, bounded in bytes."""

from __future__ import annotations

from edgedec.runtime.sequences.state_checkpoints import (
    CHECKPOINT_BYTES,
    CHECKPOINT_TOKENS,
    Checkpoints,
)


def filled(nbytes: int, n_tokens: int) -> Checkpoints[int]:
    found = Checkpoints[int](nbytes)
    for n in range(1, n_tokens + 1):
        if found.is_due(n):
            found.add(n, n)
    return found


def test_the_latest_up_to_a_token() -> None:
    found = filled(1, 4 * CHECKPOINT_TOKENS)
    assert found.latest(CHECKPOINT_TOKENS - 1) is None
    for n in (CHECKPOINT_TOKENS, 2 * CHECKPOINT_TOKENS - 1):
        assert found.latest(n) == (CHECKPOINT_TOKENS, CHECKPOINT_TOKENS)
    found.truncate(3 * CHECKPOINT_TOKENS - 1)
    assert found.tokens == (CHECKPOINT_TOKENS, 2 * CHECKPOINT_TOKENS)
    assert found.is_due(3 * CHECKPOINT_TOKENS)


def test_bytes_are_bounded_and_the_spacing_grows_with_the_distance() -> None:
    for n_most in (2, 5, 16):
        nbytes = CHECKPOINT_BYTES // n_most
        found = filled(nbytes, 200 * CHECKPOINT_TOKENS)
        assert found.nbytes == n_most * nbytes <= CHECKPOINT_BYTES
        assert found.tokens[-1] == 200 * CHECKPOINT_TOKENS
        gaps = [b - a for a, b in zip(found.tokens, found.tokens[1:], strict=False)]
        assert n_most < 5 or gaps[0] > gaps[-1]
        assert all(found.latest(n) == (n, n) for n in found.tokens)


def test_large_states_keep_two() -> None:
    assert len(filled(CHECKPOINT_BYTES, 50 * CHECKPOINT_TOKENS).tokens) == 2
