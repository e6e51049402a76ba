"""Granite 4: Granite with Mamba-2 in most layers or in none, dense or a mixture of experts."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families import granitemoe, llama
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_recurrent, layer_part
from edgedec.models.families._hf import (
    hf_decoder,
    hf_mixers,
    hf_name,
    positive,
    with_defaults,
    with_recurrence,
)
from edgedec.models.families._mamba import gguf_mamba, hf_mamba, mamba_in_gguf, mamba_in_hf
from edgedec.models.families.granite import gguf_multipliers, hf_multipliers
from edgedec.models.fields import Fields
from edgedec.models.recurrence import Recurrence
from edgedec.models.weights import SourceWeight, Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields, shared_intermediate_size=1024, num_local_experts=8, num_experts_per_tok=2
    )
    has_experts = fields.integer("num_local_experts", least=0) > 0
    if not has_experts:
        width = {"intermediate_size": fields.integer("shared_intermediate_size", least=1)}
        fields = Fields({**fields.values, **width}, fields.origin, CheckpointError)
    has_bias = fields.flag("attention_bias", False)
    config = hf_multipliers(fields, hf_decoder(fields, "granitemoehybrid", has_qkv_bias=has_bias))
    if has_experts:
        config = granitemoe.hf_granite_experts(fields, config, shared_size=1024)
    if fields.text("position_embedding_type", "nope") != "rope":
        still = dataclasses.replace(config.layer(0), rope_theta=0.0)
        config = dataclasses.replace(config, layers=(still,) * config.n_layers)
    if fields.get("layer_types") is None:
        layers = list(range(config.n_layers))
    else:
        layers = hf_mixers(fields, config.n_layers, ("mamba", "linear_attention"))
    return with_recurrence(config, _mamba(fields, config), layers) if layers else config


def _mamba(fields: Fields, config: ModelConfig) -> Recurrence:
    fields.refuse("mamba_n_groups", 1)
    width = fields.integer("mamba_expand", 2, least=1) * config.hidden_size
    # The norm behind it has the epsilon of the stream, which is kept divided: see granite.
    output_scale = 1 / positive(fields, "residual_multiplier", 1.0)
    return dataclasses.replace(hf_mamba(fields, width), output_scale=output_scale)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    fields, name = facts.fields, "granitehybrid"
    has_experts = fields.integer(f"{name}.expert_count", 0, least=0) > 0
    config = gguf_decoder(facts, name, has_recurrence=True, has_experts=has_experts)
    config = gguf_multipliers(fields, config)
    if has_experts:
        config = granitemoe.gguf_granite_experts(fields, config)
    config = dataclasses.replace(config, family="granitemoehybrid")
    fields.refuse(f"{name}.ssm.group_count", 1)
    output_scale = 1 / positive(fields, f"{name}.residual_scale", 1.0)
    recurrence = dataclasses.replace(gguf_mamba(facts, name), output_scale=output_scale)
    return with_recurrence(config, recurrence, gguf_recurrent(fields, name, config.n_layers))


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies.

    Source: ggml-org/llama.cpp ``src/models/granite-hybrid.cpp`` (MIT): names in GGUF files.
    """
    return {
        name: granitemoe.expert_weight(config, name, shape)
        if config.n_experts and ".mlp." in name
        else Weight(shape, hf=_in_hf(config, name), gguf=_in_gguf(config, name))
        for name, shape in decoder_shapes(config).items()
    }


def _in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    layer, _, part = name.removeprefix("layers.").partition(".mixer.")
    return mamba_in_gguf(config, int(layer), part) if part else llama.in_gguf(config, name)


def _in_hf(config: ModelConfig, name: str) -> SourceWeight:
    if not name.startswith("layers."):
        return SourceWeight(hf_name(name))
    layer, part = layer_part(name)
    prefix = f"model.layers.{layer}"
    if part.startswith("mixer."):
        return mamba_in_hf(config, f"{prefix}.mamba", part.removeprefix("mixer."))
    stem, _, kind = part.rpartition(".")
    halves = {"mlp.gate_proj": 0, "mlp.up_proj": config.intermediate_size}
    if stem in halves:
        return SourceWeight(f"{prefix}.shared_mlp.input_linear.{kind}", first_row=halves[stem])
    stem = "shared_mlp.output_linear" if stem == "mlp.down_proj" else stem
    return SourceWeight(f"{prefix}.{stem}.{kind}")
