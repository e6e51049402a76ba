"""OLMo 3: OLMo 2 with a sliding window in three of four layers, which no RoPE scaling stretches."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import olmo2
from edgedec.models.families._gguf import stated_as
from edgedec.models.families._hf import hf_layer_types, hf_rotations, hf_window, with_defaults
from edgedec.models.families._post_norms import post_norm_weights
from edgedec.models.families._windows import with_local_layers
from edgedec.models.fields import Fields

recipe = decoder
weights = post_norm_weights


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields, local_theta = hf_rotations(fields, 0.0)
    config = dataclasses.replace(olmo2.read_hf(fields), family="olmo3")
    fields = with_defaults(fields, sliding_window=4096)
    local = hf_layer_types(fields, config.n_layers)
    if local is None:
        local = [i % 4 != 3 for i in range(config.n_layers)]
    return with_local_layers(
        config, local, hf_window(fields, local), local_theta or config.rope_theta
    )


read_gguf = stated_as("olmo3", "olmo2", "OLMo 3")
