"""ModernBERT: an encoder with gates, rotations, and a window in two layers of three.

Source: arXiv:2412.13663; transformers ``modeling_modernbert.py`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from edgedec.models.blocks import Ops
from edgedec.models.config import LayerConfig, ModelConfig
from edgedec.models.embedder import pre_norm_encoder, pre_norm_shapes
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts, layer_part
from edgedec.models.families._hf import (
    hf_layer_types,
    hf_rotations,
    positive,
    refuse_packing,
    rope_fields,
)
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight, Weight

T = TypeVar("T")

UNREAD = frozenset({"head.dense.weight", "head.norm.weight", "decoder.weight", "decoder.bias"})
"""The head that pre-training had."""

_STRIDE = 3
"""Every so many layers one sees all tokens, the first among them."""
_LOCAL_THETA = 10000.0
_STORED = {
    "self_attn.norm": "attn_norm", "self_attn.o_proj": "attn.Wo", "mlp.norm": "mlp_norm",
    "mlp.down_proj": "mlp.Wo", "embed_tokens": "embeddings.tok_embeddings",
    "embed_norm": "embeddings.norm", "norm": "final_norm",
}  # fmt: skip


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields.refuse("hidden_activation", "gelu")
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        fields.refuse(key, False)
    refuse_packing(fields)
    default_theta = fields.number("local_rope_theta", _LOCAL_THETA)
    fields, local_theta = hf_rotations(fields, default_theta)
    rope = rope_fields(fields)
    rope.refuse("rope_type", "default")
    theta = rope.number("rope_theta", fields.number("global_rope_theta", 160000.0))
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    inner, n_layers = fields.integer("intermediate_size"), fields.integer("num_hidden_layers")
    stride = fields.integer("global_attn_every_n_layers", _STRIDE, least=1)
    types = hf_layer_types(fields, n_layers)
    is_local = [i % stride != 0 for i in range(n_layers)] if types is None else types
    window = fields.integer("local_attention", 128, least=1) // 2 + 1
    local, whole = LayerConfig(inner, local_theta, window), LayerConfig(inner, theta)
    return ModelConfig(
        family="modernbert",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=inner,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_size=hidden_size // max(n_heads, 1),
        max_positions=fields.integer("max_position_embeddings", 8192),
        rms_norm_eps=positive(fields, "norm_eps", 1e-5),
        rope_theta=theta,
        layers=tuple(local if here else whole for here in is_local),
        is_head_tied=True,
        activation="gelu",
        stack="embedder",
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Refuses GGUF files.

    Raises:
        UnsupportedModelError: Always.
    """
    raise UnsupportedModelError(
        "GGUF files of ModernBERT are not read: export the Hugging Face directory"
    )


def recipe(ops: Ops[T], config: ModelConfig, layer_gates: Sequence[bool] | None = None) -> T:
    """Returns the hidden states of the selected rows; all layers run."""
    return pre_norm_encoder(ops, config)


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    weights_of_layers = {}
    for name, shape in pre_norm_shapes(config).items():
        source = _source(config, name)
        weights_of_layers[name] = Weight(shape, source, source)
    return weights_of_layers


def _source(config: ModelConfig, name: str) -> SourceWeight:
    if not name.startswith("layers."):
        return SourceWeight(f"{_STORED[name.removesuffix('.weight')]}.weight")
    layer, rest = layer_part(name)
    stem, prefix = rest.removesuffix(".weight"), f"layers.{layer}"
    if stem in _STORED:
        return SourceWeight(f"{prefix}.{_STORED[stem]}.weight")
    kind, _, part = stem.rpartition(".")
    if kind == "mlp":
        first = 0 if part == "gate_proj" else config.layer(layer).intermediate_size
        return SourceWeight(f"{prefix}.mlp.Wi.weight", first_row=first)
    place = ("q_proj", "k_proj", "v_proj").index(part)
    return SourceWeight(f"{prefix}.attn.Wqkv.weight", first_row=place * config.hidden_size)
