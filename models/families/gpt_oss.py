"""gpt-oss: attention sinks, windows in every second layer, experts with biases."""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import GATE_SLOPE, decoder
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import (
    GgufFacts,
    gguf_decoder,
    gguf_weight,
    gguf_windowed,
    layer_part,
)
from edgedec.models.families._hf import hf_decoder, hf_name, hf_windows, with_defaults, with_windows
from edgedec.models.families._places import placed
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight

recipe = decoder

_LIMIT = 7.0
_PERIOD = 2
"""Every so many layers one sees all tokens."""
_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_TURNS = {"gate_proj": 0, "up_proj": 1}
"""Rows of gate and up come in turn: ours -> the first of them."""
_IN_GGUF = {
    "self_attn.sinks": "attn_sinks.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "mlp.experts.gate_proj.bias": "ffn_gate_exps.bias",
    "mlp.experts.up_proj.bias": "ffn_up_exps.bias",
    "mlp.experts.down_proj.bias": "ffn_down_exps.bias",
}
"""What lies elsewhere than in files of other families."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        num_key_value_heads=8,
        head_dim=64,
        sliding_window=128,
        rope_theta=150000.0,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        num_local_experts=128,
        num_experts_per_tok=4,
        **({} if fields.get("rope_parameters") is not None else {"rope_scaling": _YARN}),
    )
    fields.refuse("attention_bias", True)
    fields.refuse("swiglu_limit", _LIMIT)
    fields.refuse("swiglu_alpha", GATE_SLOPE)
    config = dataclasses.replace(
        hf_decoder(fields, "gpt_oss", has_qkv_bias=True),
        n_experts=fields.integer("num_local_experts", least=1),
        n_experts_used=fields.integer("num_experts_per_tok", least=1),
    )
    if fields.get("layer_types") is not None:
        return _with_sinks(hf_windows(fields, config))
    window = fields.integer("sliding_window", 0, least=0)
    return _with_sinks(with_windows(config, window, range(0, config.n_layers, _PERIOD)))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/openai-moe-iswa.cpp`` (MIT): what the header leaves out.
    """
    fields = facts.fields
    config = gguf_decoder(
        facts,
        "gpt-oss",
        has_qkv_bias=True,
        has_windows=True,
        has_experts=True,
        is_yarn_truncated=False,
    )
    window = fields.integer("gpt-oss.attention.sliding_window", 0, least=0)
    pattern = "gpt-oss.attention.sliding_window_pattern"
    local = gguf_windowed(fields, pattern, config.n_layers, _PERIOD)
    layers = [layer for layer, is_local in enumerate(local) if is_local]
    config = dataclasses.replace(config, family="gpt_oss")
    return _with_sinks(with_windows(config, window, layers))


def _with_sinks(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(config, has_sinks=True, expert_limit=_LIMIT)


def _in_hf(config: ModelConfig, name: str) -> SourceWeight:
    """Returns where a weight lies in a directory: experts stacked, gate and up in one tensor."""
    stem, _, inside = hf_name(name).partition(".experts.")
    if not inside:
        return SourceWeight(stem)
    matrix, _, part = inside.partition(".")
    is_bias, turn = part == "bias", _TURNS.get(matrix)
    theirs = "down_proj" if turn is None else "gate_up_proj"
    return SourceWeight(
        f"{stem}.experts.{theirs}{'_bias' if is_bias else ''}",
        config.n_experts,
        first_row=turn or 0,
        step=1 if turn is None else len(_TURNS),
        is_transposed=not is_bias,
    )


def _in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    """Returns where a weight lies in a GGUF file: experts stacked."""
    if name.startswith("layers."):
        layer, rest = layer_part(name)
        if (theirs := _IN_GGUF.get(rest)) is not None:
            n_experts = config.n_experts if ".experts." in name else 0
            return SourceWeight(f"blk.{layer}.{theirs}", n_experts)
    return gguf_weight(config, name)


weights = placed(_in_hf, _in_gguf)
