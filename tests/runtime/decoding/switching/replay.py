"""Switching again as it was logged."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Self

from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.switching.policy import ModelRole, Signal


class ReplayPolicy:
    """Gives every token to the model that gave it before. It decides by position alone."""

    discards = False

    def __init__(self, first: ModelRole, switches: Sequence[tuple[int, ModelRole]]) -> None:
        """Takes the first token's model, and at which tokens of the output which one took over."""
        self._positions = [position for position, _ in switches]
        if self._positions != sorted(set(self._positions)):
            raise ConfigError("the positions of a switch log must rise from entry to entry")
        self._models = [first, *(model for _, model in switches)]
        self._n_tokens = 0
        self.level = 0.0

    @classmethod
    def of(cls, summary: dict[str, object]) -> Self:
        """Returns the replay of what `Switching.summary` said."""
        log = summary["log"]
        assert isinstance(log, list)
        switches = [(entry["position"], ModelRole(entry["to"])) for entry in log]
        return cls(ModelRole(str(summary["first"])), switches)

    def begin(self) -> ModelRole:
        self._n_tokens = 0
        return self._model_at(0)

    def observe(self, model: ModelRole, signal: Signal) -> ModelRole:
        self._n_tokens += 1
        return self._model_at(self._n_tokens)

    def _model_at(self, position: int) -> ModelRole:
        return self._models[bisect.bisect_right(self._positions, position)]
