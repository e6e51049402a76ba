"""LFM2: short convolutions in most layers, attention with normed heads in the others."""

from __future__ import annotations

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families._gguf import (
    GgufFacts,
    gguf_decoder,
    gguf_recurrent,
    gguf_weight,
    layer_part,
)
from edgedec.models.families._hf import (
    hf_decoder,
    hf_mixers,
    hf_name,
    with_defaults,
    with_recurrence,
)
from edgedec.models.families._places import placed
from edgedec.models.fields import Fields
from edgedec.models.recurrence import MAX_CONV_SIZE, Recurrence
from edgedec.models.weights import SourceWeight

recipe = decoder

_HF_NAMES = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mixer.conv": "conv.conv",
    "mixer.out_proj": "conv.out_proj",
}
_IN_PROJ = {"mixer.b_proj": 0, "mixer.c_proj": 1, "mixer.x_proj": 2}
"""Projections that are one tensor -> which third of it each is."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields, num_key_value_heads=8, max_position_embeddings=128_000, rope_theta=1e6,
        tie_word_embeddings=fields.flag("tie_embedding", True),
    )  # fmt: skip
    values = {"rms_norm_eps": fields.number("norm_eps", 1e-5), "intermediate_size": _width(fields)}
    fields = Fields({**fields.values, **values}, fields.origin, CheckpointError)
    config = hf_decoder(fields, "lfm2", has_qk_norm=True)
    size = fields.integer("conv_L_cache", 3, least=1, most=MAX_CONV_SIZE)
    has_bias = fields.flag("conv_bias", False)
    return _with_convolutions(config, size, has_bias, _convolutions(fields, config.n_layers))


def _width(fields: Fields) -> int:
    """Returns the width of the MLPs, which the stated one is adjusted to.

    Source: transformers ``modeling_lfm2.py`` ``Lfm2MLP``.
    """
    width = fields.integer("block_ff_dim", fields.integer("intermediate_size", 12288), least=1)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    factor = fields.optional("block_ffn_dim_multiplier", fields.number)
    if factor is None and "block_ffn_dim_multiplier" in fields.values:
        return width
    multiple = fields.integer("block_multiple_of", 256, least=1)
    return -(-int((factor or 1.0) * width) // multiple) * multiple


def _convolutions(fields: Fields, n_layers: int) -> list[int]:
    """Returns the layers with a short convolution."""
    if fields.get("layer_types") is not None:
        return hf_mixers(fields, n_layers, ("conv",))
    if fields.get("full_attn_idxs") is None:
        return []
    with_attention = fields.integers("full_attn_idxs", 0, n_layers - 1)
    return [i for i in range(n_layers) if i not in with_attention]


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = gguf_decoder(facts, "lfm2", has_qk_norm=True, has_recurrence=True)
    has_bias = "blk.0.shortconv.in_proj.bias" in facts.shapes
    return _with_convolutions(
        config,
        facts.fields.integer("lfm2.shortconv.l_cache", least=1, most=MAX_CONV_SIZE),
        has_bias,
        gguf_recurrent(facts.fields, "lfm2", config.n_layers),
    )


def _with_convolutions(
    config: ModelConfig, size: int, has_bias: bool, layers: list[int]
) -> ModelConfig:
    recurrence = Recurrence(
        "short_conv",
        conv_size=size,
        n_channels=config.hidden_size,
        has_conv_bias=has_bias,
        has_bias=has_bias,
    )
    return with_recurrence(config, recurrence, layers)


def _in_hf(config: ModelConfig, name: str) -> SourceWeight:
    if not name.startswith("layers."):
        return SourceWeight(hf_name("embedding_norm.weight" if name == "norm.weight" else name))
    layer, part = layer_part(name)
    stem, _, kind = part.rpartition(".")
    if stem in _IN_PROJ:
        first_row = _IN_PROJ[stem] * config.hidden_size
        return SourceWeight(f"model.layers.{layer}.conv.in_proj.{kind}", first_row=first_row)
    return SourceWeight(f"model.layers.{layer}.{_HF_NAMES.get(stem, stem)}.{kind}")


def _in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    if name == "norm.weight":
        return SourceWeight("token_embd_norm.weight")
    if ".mixer." not in name:
        return gguf_weight(config, name)
    layer, part = layer_part(name)
    stem, _, kind = part.rpartition(".")
    if stem in _IN_PROJ:
        first_row = _IN_PROJ[stem] * config.hidden_size
        return SourceWeight(f"blk.{layer}.shortconv.in_proj.{kind}", first_row=first_row)
    return SourceWeight(f"blk.{layer}.shortconv.{stem.removeprefix('mixer.')}.{kind}")


# Source of names and shapes: ggml-org/llama.cpp ``convert_hf_to_gguf.py`` ``LFM2Model`` (MIT)
weights = placed(_in_hf, _in_gguf)
