"""OLMo 3: OLMo 2 with a sliding window in three of four layers, which no RoPE scaling stretches."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import olmo2
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.families._hf import hf_layer_types, hf_windows, with_defaults
from edgedec.models.families._post_norms import post_norm_weights
from edgedec.models.fields import Fields

recipe = decoder
weights = post_norm_weights


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    config = dataclasses.replace(olmo2.read_hf(fields), family="olmo3")
    fields = with_defaults(fields, sliding_window=4096)
    if fields.get("layer_types") is None:
        kinds = ("sliding_attention",) * 3 + ("full_attention",)
        types = [kinds[i % 4] for i in range(config.n_layers)]
        fields = Fields({**fields.values, "layer_types": types}, fields.origin, CheckpointError)
    local = hf_layer_types(fields, config.n_layers) or []
    config = hf_windows(fields, config)
    layers = (
        dataclasses.replace(config.layer(i), has_rope_scaling=not is_local)
        for i, is_local in enumerate(local)
    )
    return dataclasses.replace(config, layers=tuple(layers))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Raises: GGUF files of this architecture are not read."""
    raise UnsupportedModelError(
        f"{facts.fields.origin}: general.architecture is 'olmo3', which edgedec does not read "
        f"from GGUF files; use the Hugging Face directory"
    )
