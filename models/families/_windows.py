"""Windows of layers that rotate by a table of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from edgedec.models.config import LayerConfig, ModelConfig


def with_local_layers(
    config: ModelConfig, is_local: Sequence[bool], window: int, theta: float
) -> ModelConfig:
    """Returns ``config`` with layers of base ``theta``, which no RoPE scaling stretches.

    They have a window, unless it is as long as the context.
    """
    window = window if 0 < window < config.max_positions else 0
    layers = tuple(
        LayerConfig(config.layer(i).intermediate_size, theta, window, has_rope_scaling=False)
        if here
        else config.layer(i)
        for i, here in enumerate(is_local)
    )
    return dataclasses.replace(config, layers=layers)
