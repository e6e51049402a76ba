"""What the target model says of tokens the draft model chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.rows import Rows

Forgives = Callable[[Rows, int, int], bool]
"""Whether a token is kept whatever the target model chooses. Called with the target model's rows,
the index of the one before the token, and the token."""


def judge(
    state: DecodeState,
    rows: Rows,
    pending: Sequence[int],
    noise: Noise,
    forgives: Forgives | None,
) -> tuple[int, int]:
    """Returns how many of ``pending`` are kept, and the target model's token after those.

    Args:
        rows: The target model's, after the last emitted token and after each of ``pending``.
        forgives: None keeps only tokens that the target model chooses itself, with the same noise
            when sampling.

    Source: Speculative Decoding with Big Little Decoder (arXiv 2302.07863), section 3.3; where the
        target model's own choice is the token in question, that is kept however unlikely.
    """
    for i, token in enumerate(pending):
        if forgives is not None and forgives(rows, i, token):
            continue
        choice = state.pick_from(rows, i, noise, pending[:i])
        if choice != token:
            return i, choice
    return len(pending), state.pick_from(rows, len(pending), noise, pending)


def not_unlikely(rollback: float) -> Forgives:
    """Returns a rule that keeps tokens of at most this -ln p. Units: nats."""
    return lambda rows, index, token: surprise(rows, index, token) <= rollback


def surprise(rows: Rows, index: int, token: int) -> float:
    """Returns -ln p of ``token`` in one of ``rows``, before temperature. Units: nats."""
    return float(rows.stats.log_sum_exp[index]) - float(rows.logits[index, token])
