"""Bamba: Mamba-2 in most layers, attention that rotates half of each head in the others."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import falcon_h1
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.families._hf import hf_decoder, with_defaults, with_recurrence
from edgedec.models.families._mamba import hf_mamba
from edgedec.models.fields import Fields
from edgedec.models.weights import PartialHeads, Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields, num_key_value_heads=8, rms_norm_eps=1e-5, max_position_embeddings=262_144,
        partial_rotary_factor=0.5,
    )  # fmt: skip
    fields.refuse("mamba_n_groups", 1)
    has_bias = fields.flag("attention_bias", False)
    config = hf_decoder(fields, "bamba", has_qkv_bias=has_bias, can_rotate_partly=True)
    config = dataclasses.replace(config, has_o_bias=has_bias)
    width = fields.integer("mamba_expand", 2, least=1) * config.hidden_size
    indices: tuple[int, ...] = ()
    if fields.get("attn_layer_indices") is not None:
        indices = fields.integers("attn_layer_indices", 0, config.n_layers - 1)
    layers = [i for i in range(config.n_layers) if i not in indices]
    return with_recurrence(config, hf_mamba(fields, width), layers)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Refuses: no GGUF architecture is this family's own."""
    raise UnsupportedModelError(
        f"{facts.fields.origin}: GGUF files of bamba are not supported: export from the Hugging "
        "Face directory"
    )


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    heads = {"q_proj": config.n_heads, "k_proj": config.n_kv_heads}
    inherited = falcon_h1.weights(config)  # of the same names
    for name, weight in inherited.items():
        part = name.split(".")[-2]
        if config.rotary_size and part in heads:
            order = PartialHeads(heads[part], config.rotary_size)
            inherited[name] = dataclasses.replace(
                weight, hf=dataclasses.replace(weight.hf, order=order)
            )
    return inherited
