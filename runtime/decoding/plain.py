"""The target model alone, one token a pass: the baseline every claim is measured against."""

from __future__ import annotations

from edgedec.runtime.decoding.strategy import TARGET, DecodeState, StepResult
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sessions.session import TokenTree

_ONLY_ROW = (0,)
_ORIGINS = (TARGET,)


class Plain:
    """Plain decoding."""

    name = "plain"
    is_lossless = True

    def begin(self, state: DecodeState) -> None:
        """Nothing to prepare."""

    def step(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns the next token."""
        rows = state.take_rows()
        if rows is None:
            anchor = TokenTree((state.tokens[-1],), (-1,))
            rows = state.session.forward(anchor, _ONLY_ROW, with_logits=state.needs_logits)
            state.session.commit(_ONLY_ROW)
            state.stats.n_passes += 1
            state.stats.n_pass_tokens += 1
        return StepResult((state.pick_from(rows, 0, noise),), _ORIGINS)

    def end(self, state: DecodeState) -> None:
        """Nothing to rewind: only emitted tokens are committed."""

    def close(self) -> None:
        """Holds nothing."""
