"""Nemotron-H and Nemotron Nano 2: layers of Mamba-2, of attention or of an MLP, by a pattern.

Attention rotates nothing, and the activation of MLPs is the square of ReLU.
"""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import LayerConfig, Mixer, ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families._gguf import (
    GgufFacts,
    gguf_decoder,
    gguf_recurrent,
    gguf_weight,
    layer_part,
)
from edgedec.models.families._hf import hf_decoder, with_defaults
from edgedec.models.families._mamba import gguf_mamba, hf_mamba, mamba_in_gguf, mamba_in_hf
from edgedec.models.families._places import placed
from edgedec.models.fields import Fields, shown
from edgedec.models.recurrence import Recurrence
from edgedec.models.weights import SourceWeight

recipe = decoder

_PATTERN, _TYPES = "hybrid_override_pattern", ("layers_block_type", "layer_types")
_MIXERS: dict[str, Mixer] = {
    "M": "recurrence", "mamba": "recurrence", "linear_attention": "recurrence",
    "*": "attention", "attention": "attention", "full_attention": "attention",
    "-": "none", "mlp": "none",
}  # fmt: skip
"""Kinds of layers in patterns and lists -> their mixers; those without one have an MLP."""
_MAMBA_KEYS = {
    "mamba_n_heads": ("mamba_num_heads", 128),
    "mamba_d_head": ("mamba_head_dim", 64),
    "mamba_n_groups": ("n_groups", 8),
    "mamba_d_state": ("ssm_state_size", 128),
    "mamba_d_conv": ("conv_kernel", 4),
    "mamba_conv_bias": ("use_conv_bias", True),
    "mamba_proj_bias": ("use_bias", False),
}
"""Usual keys -> those of the family, and what its class takes where they are absent."""
_EARLIER = ("mamba_n_groups", "mamba_d_conv", "mamba_conv_bias")
"""Usual keys that count where a file has them."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states.

    Steps have no floor, as at their publisher's and in llama.cpp; transformers 5 bounds those of a
    prompt by ``time_step_min``.
    """
    for key, harmless in (("mamba_hidden_act", "silu"), ("mlp_hidden_act", "relu2")):
        fields.refuse(key, harmless)
    for key in ("attention_bias", "mamba_proj_bias"):
        fields.refuse(key, False)
    fields.refuse("sliding_window")
    kinds = _kinds(fields)
    fields = with_defaults(
        fields, num_key_value_heads=8, head_dim=fields.integer("attention_head_dim", 128),
        max_position_embeddings=4096,
    )  # fmt: skip
    values = {
        "num_hidden_layers": len(kinds),
        "rms_norm_eps": fields.number("layer_norm_epsilon", 1e-5),
    }
    fields = Fields({**fields.values, **values}, fields.origin, CheckpointError)
    return _with_layers(hf_decoder(fields, "nemotron_h"), _mamba(fields), kinds)


def _kinds(fields: Fields) -> list[Mixer]:
    """Returns the mixer of each layer; a list of kinds counts more than a pattern.

    Where neither is stated, the class of the family takes a list with experts in it.
    """
    key = next((key for key in _TYPES if fields.get(key) is not None), _PATTERN)
    pattern = fields.text(key, "M-*E") if key == _PATTERN else fields.texts(key)
    if not pattern:
        fields.fail(key, pattern, "the kinds of all layers")
    if (other := next((kind for kind in pattern if kind not in _MIXERS), None)) is not None:
        what = "a mixture of experts" if other in ("E", "moe") else shown(other)
        raise UnsupportedModelError(
            f"{fields.origin}: {key} has {what}, only {', '.join(_MIXERS)} are supported"
        )
    return [_MIXERS[kind] for kind in pattern]


def _mamba(fields: Fields) -> Recurrence:
    values = {
        usual: fields.get(usual) if usual in _EARLIER and usual in fields.values
        else fields.values.get(theirs, default)
        for usual, (theirs, default) in _MAMBA_KEYS.items()
    }  # fmt: skip
    values["time_step_limit"] = fields.get("time_step_limit")
    fields_of_mamba = Fields(values, fields.origin, CheckpointError)
    width = fields_of_mamba.integer("mamba_n_heads", least=1) * fields_of_mamba.integer(
        "mamba_d_head", least=1
    )
    return hf_mamba(fields_of_mamba, width)


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/nemotron-h.cpp`` (MIT): what a layer is.
    """
    fields, name = facts.fields, "nemotron_h"
    has_bias = any(key.endswith(".attn_q.bias") for key in facts.shapes)
    config = gguf_decoder(
        facts, name, has_qkv_bias=has_bias, has_recurrence=True, can_rotate_partly=True
    )
    config = dataclasses.replace(config, rotary_size=0)  # whatever is stated, nothing rotates
    without = gguf_recurrent(fields, name, config.n_layers)
    has_mlp = [config.layer(i).has_mlp for i in range(config.n_layers)]
    kinds: list[Mixer] = [
        "attention" if i not in without else "none" if has_mlp[i] else "recurrence"
        for i in range(config.n_layers)
    ]
    return _with_layers(config, gguf_mamba(facts, name), kinds)


def _with_layers(config: ModelConfig, mamba: Recurrence, kinds: list[Mixer]) -> ModelConfig:
    """Returns ``config`` with layers of these mixers; those without one have an MLP."""
    layers = tuple(
        LayerConfig(
            config.layer(i).intermediate_size, rope_theta=0.0, mixer=kind, has_mlp=kind == "none"
        )
        for i, kind in enumerate(kinds)
    )
    recurrence = mamba if "recurrence" in kinds else Recurrence()
    return dataclasses.replace(config, layers=layers, recurrence=recurrence, has_squared_relu=True)


def _in_hf(config: ModelConfig, name: str) -> SourceWeight:
    others = {"embed_tokens.weight": "embeddings.weight", "norm.weight": "norm_f.weight"}
    if not name.startswith("layers."):
        return SourceWeight(name if name == "lm_head.weight" else f"model.{others[name]}")
    layer, part = layer_part(name)
    prefix = f"model.layers.{layer}"
    if part.startswith("mixer."):
        return mamba_in_hf(config, f"{prefix}.mixer", part.removeprefix("mixer."))
    if part == _norm(config, layer):
        return SourceWeight(f"{prefix}.norm.weight")
    return SourceWeight(f"{prefix}.mixer.{part.partition('.')[2]}")


def _in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    if not name.startswith("layers."):
        return gguf_weight(config, name)
    layer, part = layer_part(name)
    if part.startswith("mixer."):
        return mamba_in_gguf(config, layer, part.removeprefix("mixer."))
    if part == _norm(config, layer):
        return SourceWeight(f"blk.{layer}.attn_norm.weight")
    return gguf_weight(config, name)


def _norm(config: ModelConfig, layer: int) -> str:
    """Returns our name of the one norm that a layer has."""
    is_mlp = config.layer(layer).mixer == "none"
    return f"{'post_attention' if is_mlp else 'input'}_layernorm.weight"


weights = placed(_in_hf, _in_gguf)
