"""Hunyuan (dense): the Llama recipe, with norms of heads behind their rotation."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_weight
from edgedec.models.families._hf import hf_decoder, hf_name, positive, rope_fields, with_defaults
from edgedec.models.families._places import placed
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight

recipe = decoder

_NORMS = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states.

    Source: transformers ``modeling_hunyuan_v1_dense.py``: ``alpha`` of dynamic scaling.
    """
    fields = with_defaults(fields, rms_norm_eps=1e-5)
    has_bias = fields.flag("attention_bias", False)
    config = hf_decoder(fields, "hunyuan_v1_dense", has_qkv_bias=has_bias, has_qk_norm=True)
    rope = rope_fields(fields)
    if rope.get("alpha") is None:
        return _rotated_first(config)
    stretch = positive(rope, "alpha") ** (config.head_size / (config.head_size - 2))
    return _rotated_first(dataclasses.replace(config, rope_theta=config.rope_theta * stretch))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = gguf_decoder(facts, "hunyuan-dense", has_qk_norm=True)
    return _rotated_first(dataclasses.replace(config, family="hunyuan_v1_dense"))


def _in_hf(_config: ModelConfig, name: str) -> SourceWeight:
    part = name.split(".")[-2]
    return SourceWeight(hf_name(name.replace(part, _NORMS.get(part, part))))


def _rotated_first(config: ModelConfig) -> ModelConfig:
    layers = (dataclasses.replace(config.layer(i), rope_theta=0.0) for i in range(config.n_layers))
    return dataclasses.replace(config, is_qk_norm_late=True, layers=tuple(layers))


weights = placed(_in_hf, gguf_weight)
