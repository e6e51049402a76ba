"""What predicts keys and values of prompts for the requests of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import AUTO, EXACT

if TYPE_CHECKING:
    from edgedec.runtime.decoding.prefilling import PromptPredictor
    from edgedec.runtime.sequences.model import KVPredictor


class Predictors:
    """A predictor that is opened when first asked for, if there is one."""

    def __init__(self, make: Callable[[], KVPredictor] | None) -> None:
        """make: opens the maps from the model's first layers; None: there are none."""
        self._make = make
        self._opened: PromptPredictor | None = None

    def check(self, config: GenerationConfig) -> None:
        """Raises a ConfigError where a request asks for predictions that there cannot be."""
        if config.prefill in (AUTO, EXACT):
            return
        if config.switch is not None:
            raise ConfigError(
                f"prefill {config.prefill} reads a prompt for one model, but switching has two: "
                "use prefill exact"
            )
        if self._make is None:
            raise ConfigError(
                f"prefill {config.prefill} needs KV maps, which this bundle does not have: fit "
                "them with `edgedec train kv`"
            )

    def of(self, config: GenerationConfig) -> PromptPredictor | None:
        """Returns what predicts for a request; None where nothing does."""
        if self._make is None or config.prefill == EXACT or config.switch is not None:
            return None
        if self._opened is None:
            from edgedec.runtime.decoding.progressive import OwnLayers  # few bundles have maps

            self._opened = OwnLayers(self._make())
        return self._opened
