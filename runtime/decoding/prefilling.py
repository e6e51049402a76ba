"""How the prompt of a request gets into its KV cache: at once, or with provisional tokens first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgedec.runtime.config.generation import EXACT
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, Prefilled, PrefillRequest

if TYPE_CHECKING:
    from edgedec.runtime.decoding.auxiliary import Early
    from edgedec.runtime.decoding.strategy import DecodeState


@dataclass(frozen=True)
class Provisional:
    """Tokens that follow the prompt if the predictions are right: those of all steps so far."""

    tokens: tuple[int, ...]


class Prefilling(Protocol):
    """One request's prompt on its way into the KV cache."""

    @property
    def is_exact(self) -> bool:
        """What it leaves there is what computing every token gives, bit for bit."""

    def step(self, noise: Noise) -> Passes[Prefilled | Provisional | None]:
        """Goes on; returns what it ends with, or tokens on the way, or None when cancelled."""


class ExactPrefill:
    """Reads the prompt in one step."""

    is_exact = True

    def __init__(self, state: DecodeState, request: PrefillRequest) -> None:
        self._state = state
        self._request = request

    def step(self, noise: Noise) -> Passes[Prefilled | Provisional | None]:
        state = self._state
        return ExactPrefiller().prefill(state.sequence, state.tokens, self._request)


def begin_prefill(
    state: DecodeState, request: PrefillRequest, predictor: Early | None
) -> Prefilling:
    """Returns how the prompt of ``state`` is read; at once without a predictor."""
    if predictor is None or state.config.prefill == EXACT:
        return ExactPrefill(state, request)
    # Few bundles predict anything, so this is imported here.
    from edgedec.runtime.decoding.auxiliary import Auxiliary, begin_auxiliary
    from edgedec.runtime.decoding.progressive import begin_early

    if isinstance(predictor, Auxiliary):
        return begin_auxiliary(state, request, predictor) or ExactPrefill(state, request)
    return begin_early(state, request, predictor) or ExactPrefill(state, request)
