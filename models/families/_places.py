"""Where a decoder's weights lie, by what its family says of each name."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.models.blocks import decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.families._hf import hf_name
from edgedec.models.weights import SourceWeight, Weight

Place = Callable[[ModelConfig, str], SourceWeight]
"""From our name of a weight to where it lies."""


def usual_hf(_: ModelConfig, name: str) -> SourceWeight:
    """Returns where a weight of the usual name lies in a directory."""
    return SourceWeight(hf_name(name))


def placed(hf: Place, gguf: Place) -> Callable[[ModelConfig], dict[str, Weight]]:
    """Returns what gives the shape of each weight, and where it lies in directories and in GGUF."""

    def weights(config: ModelConfig) -> dict[str, Weight]:
        return {
            name: Weight(shape, hf=hf(config, name), gguf=gguf(config, name))
            for name, shape in decoder_shapes(config).items()
        }

    return weights
