"""What predicts keys and values of prompts for the requests of an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import AUTO, EXACT

if TYPE_CHECKING:
    from edgedec.runtime.decoding.prefilling import Auxiliary, PromptPredictor
    from edgedec.runtime.sequences.model import KVPredictor


class Predictors:
    """A predictor that is opened when first asked for, if there is one."""

    def __init__(
        self,
        make: Callable[[], KVPredictor] | None,
        make_auxiliary: Callable[[], Auxiliary] | None = None,
    ) -> None:
        """make, make_auxiliary: of a model's own layers, of a smaller model; None: there is none.

        Of both, the former.
        """
        own = None if make is None else partial(_own_layers, make)
        self._make: Callable[[], PromptPredictor] | None = own or make_auxiliary
        self._is_for_auto = make is not None  # a smaller model's reading comes on top
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
        if config.prefill == AUTO and not self._is_for_auto:
            return None
        if self._opened is None:
            self._opened = self._make()
        return self._opened


def _own_layers(make: Callable[[], KVPredictor]) -> PromptPredictor:
    from edgedec.runtime.decoding.progressive import OwnLayers  # few bundles predict anything

    return OwnLayers(make())
