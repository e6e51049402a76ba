"""The target model alone, one token a pass: the baseline every claim is measured against."""

from __future__ import annotations

from edgedec.runtime.decoding.strategy import DecodeState, StepResult
from edgedec.runtime.noise import Noise
from edgedec.runtime.session import TokenTree

_ONLY_ROW = (0,)


class Plain:
    """Plain decoding."""

    name = "plain"
    is_lossless = True

    def step(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns the next token."""
        row = state.take_row()
        if row is None:
            row = state.session.forward(TokenTree((state.tokens[-1],), (-1,)), _ONLY_ROW).logits[0]
            state.session.commit(_ONLY_ROW)
            state.stats.n_passes += 1
            state.stats.n_pass_tokens += 1
        return StepResult((state.pick(row, noise),))
