"""How the prompt of a request gets into its KV cache: at once, or with provisional tokens first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edgedec.runtime.config.generation import EXACT
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, Prefilled, PrefillRequest
from edgedec.runtime.sequences.rows import Rows

if TYPE_CHECKING:
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


class NoPrefill:
    """Leaves the prompt to the decoding method."""

    is_exact = True

    def step(self, noise: Noise) -> Passes[Prefilled | Provisional | None]:
        return Prefilled(Rows(np.empty((0, 0), np.float32)))
        yield  # makes it a step without passes


class PromptPredictor(Protocol):
    """Predicts rows of prompts, so that tokens can be written before all was computed."""

    def begin(self, state: DecodeState, request: PrefillRequest) -> Prefilling | None:
        """Returns how the prompt of ``state`` is answered early; None if nothing is won."""


def begin_prefill(
    state: DecodeState, request: PrefillRequest, predictor: PromptPredictor | None
) -> Prefilling:
    """Returns how the prompt of ``state`` is read; at once without a predictor."""
    early = None
    if predictor is not None and state.config.prefill != EXACT:
        early = predictor.begin(state, request)
    return early or ExactPrefill(state, request)
