"""What Qwen3-Next and Qwen3.5 share: gated delta rules, and attention whose output has a gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import (
    INPUT,
    MTP_LAYER,
    OF_MODEL,
    STATE_NORM,
    TOKEN_NORM,
    head_config,
)
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_weight, layer_part
from edgedec.models.families._hf import (
    hf_decoder,
    hf_mixers,
    hf_name,
    with_defaults,
    with_recurrence,
)
from edgedec.models.fields import Fields
from edgedec.models.recurrence import MAX_CONV_SIZE, Recurrence
from edgedec.models.weights import GroupedRows, PartialHeads, SourceWeight, Weight

_LINEAR, _INTERVAL = "linear_attention", "full_attention_interval"
_HF_MIXER = {"conv": "conv1d", "a_log": "A_log"}
_GGUF_MIXER = {
    "x_proj.weight": "attn_qkv.weight",
    "z_proj.weight": "attn_gate.weight",
    "b_proj.weight": "ssm_beta.weight",
    "dt_proj.weight": "ssm_alpha.weight",
    "conv.weight": "ssm_conv1d.weight",
    "a_log": "ssm_a",
    "dt_bias": "ssm_dt.bias",
    "norm.weight": "ssm_norm.weight",
    "out_proj.weight": "ssm_out.weight",
}


def hf_delta_decoder(fields: Fields, family: str, n_kv_heads: int) -> ModelConfig:
    """Returns the config that ``config.json`` states, its MLPs dense.

    n_kv_heads: what the family's class takes where that is not stated.
    """
    fields = with_defaults(
        fields,
        head_dim=256,
        num_key_value_heads=n_kv_heads,
        max_position_embeddings=32768,
        partial_rotary_factor=0.25,
    )
    has_bias = fields.flag("attention_bias", False)
    config = hf_decoder(
        fields, family, has_qkv_bias=has_bias, has_qk_norm=True, can_rotate_partly=True
    )
    config = dataclasses.replace(config, has_output_gate=True)
    recurrence = Recurrence(
        "delta",
        conv_size=fields.integer("linear_conv_kernel_dim", 4, least=2, most=MAX_CONV_SIZE),
        n_heads=fields.integer("linear_num_value_heads", 32, least=1),
        head_size=fields.integer("linear_value_head_dim", 128, least=1),
        n_groups=fields.integer("linear_num_key_heads", 16, least=1),
        state_size=fields.integer("linear_key_head_dim", 128, least=1),
    )
    if fields.get("layer_types") is None:
        layers = _between(fields.integer(_INTERVAL, 4, least=1), config.n_layers)
    else:
        layers = hf_mixers(fields, config.n_layers, (_LINEAR,))
    return with_recurrence(config, recurrence, layers)


def gguf_delta_decoder(facts: GgufFacts, architecture: str, has_experts: bool) -> ModelConfig:
    """Returns the config that a GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/qwen35.cpp`` (MIT): what keys mean.
    """
    fields = facts.fields
    config = gguf_decoder(
        facts, architecture, has_qk_norm=True, can_rotate_partly=True, has_experts=has_experts
    )
    n_mtp = fields.integer(f"{architecture}.nextn_predict_layers", 0, 0, config.n_layers - 1)
    fields.get(f"{architecture}.rope.dimension_sections")  # alike where all tokens are of text
    config = dataclasses.replace(config, n_layers=config.n_layers - n_mtp, has_output_gate=True)
    ssm = f"{architecture}.ssm"
    n_heads = fields.integer(f"{ssm}.time_step_rank", least=1)
    recurrence = Recurrence(
        "delta",
        conv_size=fields.integer(f"{ssm}.conv_kernel", least=2, most=MAX_CONV_SIZE),
        n_heads=n_heads,
        head_size=fields.integer(f"{ssm}.inner_size", least=n_heads) // n_heads,
        n_groups=fields.integer(f"{ssm}.group_count", least=1),
        state_size=fields.integer(f"{ssm}.state_size", least=1),
    )
    return with_recurrence(config, recurrence, _gguf_layers(fields, architecture, config.n_layers))


def _gguf_layers(fields: Fields, architecture: str, n_layers: int) -> list[int]:
    """Returns the recurrent layers."""
    interval = fields.integer(f"{architecture}.{_INTERVAL}", 4, least=1)
    flags = fields.get(key := f"{architecture}.attention.recurrent_layers")
    if flags is None:
        return _between(interval, n_layers)
    if not isinstance(flags, np.ndarray) or len(flags) < n_layers:
        fields.fail(key, flags, f"a list of {n_layers}")
    return [i for i in range(n_layers) if flags[i]]


def _between(interval: int, n_layers: int) -> list[int]:
    """Returns all layers but each ``interval``-th, which has attention."""
    return [i for i in range(n_layers) if (i + 1) % interval]


def delta_in_hf(config: ModelConfig, name: str) -> SourceWeight:
    """Returns where a weight outside the MLPs lies in a directory: a tensor for each projection.

    The kernel's channels of queries, keys and values are one projection, as they are here.
    """
    if not name.startswith("layers."):
        return SourceWeight(hf_name(name), offset=float(name == "norm.weight"))
    layer, part = layer_part(name)
    if part.startswith("mixer."):
        stem, _, kind = part.removeprefix("mixer.").partition(".")
        parts = {"x_proj": "in_proj_qkv", "z_proj": "in_proj_z", "b_proj": "in_proj_b"}
        theirs = {**_HF_MIXER, **parts, "dt_proj": "in_proj_a"}.get(stem, stem)
        return SourceWeight(f"model.layers.{layer}.linear_attn.{theirs}{'.' * bool(kind)}{kind}")
    offset = 1.0 if part.endswith("norm.weight") else 0.0
    return _of_attention(config, name, hf_name(name.replace("g_proj", "q_proj")), offset)


def delta_in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    """Returns where a weight outside the MLPs lies in a GGUF file; norms have their one there."""
    if not name.startswith("layers."):
        return gguf_weight(config, name)
    layer, part = layer_part(name)
    if part.startswith("mixer."):
        part = part.removeprefix("mixer.")
        return SourceWeight(f"blk.{layer}.{_GGUF_MIXER[part]}", is_negative_exp=part == "a_log")
    if part == "post_attention_layernorm.weight":
        return SourceWeight(f"blk.{layer}.post_attention_norm.weight")
    stored = gguf_weight(config, name.replace("g_proj", "q_proj")).name
    return _of_attention(config, name, stored, 0.0)


def _of_attention(config: ModelConfig, name: str, stored: str, offset: float) -> SourceWeight:
    """Returns where a weight lies; heads of q and of its gate take turns in one tensor."""
    part = name.split(".")[-2]
    n_heads = {
        "q_proj": config.n_heads, "k_proj": config.n_kv_heads, "q_norm": 1, "k_norm": 1,
    }.get(part, 0)  # fmt: skip
    order = PartialHeads(n_heads, config.rotary_size) if n_heads and config.rotary_size else None
    grouped = None
    if part in ("q_proj", "g_proj"):
        sizes = (config.head_size, config.head_size)
        grouped = GroupedRows(config.n_heads, sizes, (int(part == "g_proj"),))
    return SourceWeight(stored, order=order, grouped=grouped, offset=offset)


_OF_DRAFT_LAYER = {
    TOKEN_NORM: ("pre_fc_norm_embedding", "enorm"),
    STATE_NORM: ("pre_fc_norm_hidden", "hnorm"),
    INPUT: ("fc", "eh_proj"),
}
"""Our name -> that of Hugging Face and that of GGUF."""


def delta_draft_layer(
    config: ModelConfig, weights: Callable[[ModelConfig], dict[str, Weight]]
) -> dict[str, Weight]:
    """Returns the own weights of the family's `MTP_LAYER`, and where they lie.

    weights: of the family. Source: ggml-org/llama.cpp ``conversion/qwen.py`` (MIT): names in GGUF.
    """
    size, gguf = config.hidden_size, f"blk.{config.n_layers}"
    of_draft_layer = {
        name: Weight(
            weight.shape,
            hf=dataclasses.replace(weight.hf, name=weight.hf.name.replace("model.", "mtp.", 1)),
            gguf=dataclasses.replace(
                weight.gguf,
                name=weight.gguf.name.replace("blk.0", gguf).replace(
                    "output_norm", f"{gguf}.nextn.shared_head_norm"
                ),
            ),
        )
        for name, weight in weights(head_config(config, config.n_logits, MTP_LAYER)).items()
        if name not in OF_MODEL
    }
    for name, (hf, our_name) in _OF_DRAFT_LAYER.items():
        shape = (size, 2 * size) if name == INPUT else (size,)
        offset = 0.0 if name == INPUT else 1.0
        of_draft_layer[name] = Weight(
            shape,
            hf=SourceWeight(f"mtp.{hf}.weight", offset=offset),
            gguf=SourceWeight(f"{gguf}.nextn.{our_name}.weight"),
        )
    return of_draft_layer
