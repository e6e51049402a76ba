"""Granite 4: Granite with Mamba-2 in most layers or in none, dense or a mixture of experts."""

from __future__ import annotations

import dataclasses
import math

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
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
from edgedec.models.families.granite import gguf_multipliers, hf_multipliers
from edgedec.models.fields import Fields
from edgedec.models.recurrence import MAX_CONV_SIZE, Recurrence
from edgedec.models.weights import SourceWeight, Weight

recipe = decoder

_HF_NAMES = {
    "mlp.down_proj": "shared_mlp.output_linear",
    "mixer.conv": "mamba.conv1d",
    "mixer.norm": "mamba.norm",
    "mixer.out_proj": "mamba.out_proj",
}
_GGUF_MIXER = {
    "conv.weight": "ssm_conv1d.weight", "conv.bias": "ssm_conv1d.bias", "a_log": "ssm_a",
    "dt_bias": "ssm_dt.bias", "skip": "ssm_d",
}  # fmt: skip
_HF_VECTORS = {"mixer.a_log": "A_log", "mixer.dt_bias": "dt_bias", "mixer.skip": "D"}


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
    limits = fields.items("time_step_limit") if fields.get("time_step_limit") else (0.0, math.inf)
    if tuple(limits) != (0.0, math.inf):
        raise UnsupportedModelError(
            f"{fields.origin}: time_step_limit is {str(list(limits))[:60]}, only 0 to infinity is "
            f"supported"
        )
    width = fields.integer("mamba_expand", 2, least=1) * config.hidden_size
    n_heads = fields.integer("mamba_n_heads", 128, least=1)
    if fields.get("mamba_d_head") not in (None, "auto", width // n_heads) or width % n_heads:
        fields.fail("mamba_d_head", fields.get("mamba_d_head"), f"{width} / {n_heads}")
    return Recurrence(
        "mamba2",
        conv_size=fields.integer("mamba_d_conv", 4, least=2, most=MAX_CONV_SIZE),
        has_conv_bias=fields.flag("mamba_conv_bias", True),
        has_bias=fields.flag("mamba_proj_bias", False),
        n_heads=n_heads,
        head_size=width // n_heads,
        n_groups=1,
        state_size=fields.integer("mamba_d_state", 256, least=1),
        # The norm behind it has the epsilon of the stream, which is kept divided: see granite.
        output_scale=1 / positive(fields, "residual_multiplier", 1.0),
    )


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
    n_heads = fields.integer(f"{name}.ssm.time_step_rank", least=1)
    recurrence = Recurrence(
        "mamba2",
        conv_size=fields.integer(f"{name}.ssm.conv_kernel", least=2, most=MAX_CONV_SIZE),
        has_conv_bias=any(key.endswith(".ssm_conv1d.bias") for key in facts.shapes),
        n_heads=n_heads,
        head_size=fields.integer(f"{name}.ssm.inner_size", least=n_heads) // n_heads,
        n_groups=1,
        state_size=fields.integer(f"{name}.ssm.state_size", least=1),
        output_scale=1 / positive(fields, f"{name}.residual_scale", 1.0),
    )
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
    layer, _, own = name.removeprefix("layers.").partition(".mixer.")
    if not own:
        return llama.in_gguf(config, name)
    stem, _, kind = own.rpartition(".")
    if stem in (parts := _parts(config.recurrence)):
        return SourceWeight(f"blk.{layer}.ssm_in.{kind}", first_row=parts[stem])
    theirs = _GGUF_MIXER.get(own, f"ssm_{stem.removesuffix('_proj')}.{kind}")
    return SourceWeight(f"blk.{layer}.{theirs}", is_negative_exp=own == "a_log")


def _parts(mamba: Recurrence) -> dict[str, int]:
    """Returns the first row of each projection in the tensor that joins them."""
    return {
        "z_proj": 0, "x_proj": mamba.value_size,
        "dt_proj": mamba.value_size + mamba.conv_channels,
    }  # fmt: skip


def _in_hf(config: ModelConfig, name: str) -> SourceWeight:
    if not name.startswith("layers."):
        return SourceWeight(hf_name(name))
    layer, own = layer_part(name)
    prefix = f"model.layers.{layer}"
    if own in _HF_VECTORS:
        return SourceWeight(f"{prefix}.mamba.{_HF_VECTORS[own]}")
    stem, _, kind = own.rpartition(".")
    if (part := stem.removeprefix("mixer.")) in (parts := _parts(config.recurrence)):
        return SourceWeight(f"{prefix}.mamba.in_proj.{kind}", first_row=parts[part])
    halves = {"mlp.gate_proj": 0, "mlp.up_proj": config.intermediate_size}
    if stem in halves:
        return SourceWeight(f"{prefix}.shared_mlp.input_linear.{kind}", first_row=halves[stem])
    return SourceWeight(f"{prefix}.{_HF_NAMES.get(stem, stem)}.{kind}")
