"""Mixtral: Mistral with a router over MLPs."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families import llama
from edgedec.models.families._gguf import stated_as
from edgedec.models.families._hf import hf_decoder, hf_windows, with_defaults
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight, Weight

recipe = decoder

_MLPS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        num_local_experts=8,
        num_experts_per_tok=2,
    )
    return dataclasses.replace(
        hf_windows(fields, hf_decoder(fields, "mixtral")),
        n_experts=fields.integer("num_local_experts", least=1),
        n_experts_used=fields.integer("num_experts_per_tok", least=1),
    )


read_gguf = stated_as("mixtral", "llama", "Mixtral")


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {
        name: dataclasses.replace(weight, hf=_in_hf(config, name) or weight.hf)
        for name, weight in llama.weights(config).items()
    }


def _in_hf(config: ModelConfig, name: str) -> SourceWeight | None:
    """Returns where a weight of the MLPs lies."""
    layer, _, part = name.removeprefix("layers.").partition(".mlp.")
    stem = f"model.layers.{layer}.block_sparse_moe"
    if part == "router.weight":
        return SourceWeight(f"{stem}.gate.weight")
    if not part.startswith("experts."):
        return None
    theirs = _MLPS[part.split(".")[1]]
    return SourceWeight(f"{stem}.experts.{{expert}}.{theirs}.weight", config.n_experts)
