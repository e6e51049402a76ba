"""The contract of decoding methods, and the state they step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.noise import Noise
from edgedec.runtime.sampling import History, pick
from edgedec.runtime.session import ModelSession
from edgedec.runtime.stats import DecodeStats

Row = npt.NDArray[Any]


@dataclass
class DecodeState:
    """One generation in progress.

    tokens: the prompt and everything emitted. All but the last few are in the KV cache of
        ``session``, which alone knows how many.
    row: logits after the prompt, until the first step consumes them. Shapes: [V] float32.
    """

    session: ModelSession
    tokens: list[int]
    sampling: SamplingConfig
    history: History
    stats: DecodeStats
    row: Row | None = None

    def take_row(self) -> Row | None:
        """Returns the logits that prefill left, once."""
        row, self.row = self.row, None
        return row

    def pick(self, row: Row, noise: Noise) -> int:
        """Returns the next token that ``row`` and the request determine. Shapes: row [V]."""
        return pick(row, self.sampling, self.history, noise, len(self.tokens))

    def append(self, token: int) -> None:
        """Records an emitted token."""
        self.tokens.append(token)
        self.history.add(token)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step emits: at least one token, each already the target model's choice."""

    tokens: tuple[int, ...]


class DecodingStrategy(Protocol):
    """A way to get the next tokens. Steps only commit tokens that are in ``state.tokens``."""

    @property
    def name(self) -> str:
        """What users call the method."""

    @property
    def is_lossless(self) -> bool:
        """The tokens are exactly those of plain decoding."""

    def step(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns the next tokens; the caller appends those it emits to ``state``."""
