"""The target model alone, one token a pass: the baseline every claim is measured against."""

from __future__ import annotations

from edgedec.runtime.decoding.strategy import (
    ONE_TARGET,
    DecodeState,
    Decoding,
    DecodingStrategy,
    StepResult,
)
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.token_tree import TokenTree

_ONLY_ROW = (0,)


class Plain(DecodingStrategy):
    """Plain decoding."""

    name = "plain"
    is_lossless = True

    def begin(self, state: DecodeState, hidden: HiddenStates) -> PlainDecoding:
        """Returns the steps of one request."""
        return PlainDecoding(state)


class PlainDecoding(Decoding):
    """One request, plainly decoded."""

    def __init__(self, state: DecodeState) -> None:
        self._state = state

    def step(self, noise: Noise) -> Passes[StepResult]:
        """Returns the next token."""
        state = self._state
        rows = state.take_rows() if state.rows is not None else None
        if rows is None:
            rows = yield from plain_pass(state)
        return StepResult((state.pick_from(rows, 0, noise),), ONE_TARGET)

    def end(self) -> None:
        """Nothing to rewind: only emitted tokens are committed."""


def plain_pass(state: DecodeState) -> Passes[Rows]:
    """Returns the row after the newest token, which is kept in the KV cache."""
    anchor = TokenTree((state.tokens[-1],), (-1,))
    rows = yield Pass(state.sequence, anchor, _ONLY_ROW, with_logits=state.needs_logits)
    state.sequence.commit(_ONLY_ROW)
    state.stats.n_passes += 1
    state.stats.n_pass_tokens += 1
    return rows
