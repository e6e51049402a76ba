"""T5, its version 1.1, and FLAN-T5: an encoder reads, a decoder writes.

Neither has positions: scores of attention have biases by distance, the same in all layers.

Source: arXiv:1910.10683; transformers ``modeling_t5.py`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgedec.models.blocks import decoder, decoder_shapes, encoder
from edgedec.models.config import Activation, LayerConfig, ModelConfig
from edgedec.models.distance_bias import DISTANCE_BIAS
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts, layer_part
from edgedec.models.families._hf import positive, refuse_packing, with_defaults
from edgedec.models.fields import Fields, shown
from edgedec.models.weights import SourceWeight, Weight

recipe = decoder
encoder_recipe = encoder

UNREAD = frozenset(
    {
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    }
)
"""Copies of the embedding, and what no version reads."""

_MLPS: Mapping[str, tuple[Activation, str]] = {
    "relu": ("relu", "relu"),
    "gated-gelu": ("gelu_tanh", "gelu_new"),
    "gated-silu": ("silu", "silu"),
}
"""``feed_forward_proj`` -> activation, and what it is called as ``dense_act_fn``."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(fields, tie_word_embeddings=True, is_encoder_decoder=True)
    fields.refuse("is_encoder_decoder", True)
    refuse_packing(fields)
    kind = fields.text("feed_forward_proj", "relu")
    if kind not in _MLPS:
        raise UnsupportedModelError(
            f"{fields.origin}: feed_forward_proj is {shown(kind)}, expected one of "
            f"{', '.join(_MLPS)}"
        )
    activation, name = _MLPS[kind]
    width, n_layers = fields.integer("d_model", 512), fields.integer("num_layers", 6)
    is_tied = fields.flag("tie_word_embeddings")
    fields.refuse("scale_decoder_outputs", is_tied)
    fields.refuse("is_gated_act", activation != "relu")
    fields.refuse("dense_act_fn", name)
    inner, n_heads = fields.integer("d_ff", 2048), fields.integer("num_heads", 8)
    stack = ModelConfig(
        family="t5",
        vocab_size=fields.integer("vocab_size", 32128),
        hidden_size=width,
        intermediate_size=inner,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_size=fields.integer("d_kv", 64),
        max_positions=2 * fields.integer("n_positions", 512, least=1),
        rms_norm_eps=positive(fields, "layer_norm_epsilon", 1e-6),
        layers=_unrotated(inner, n_layers),
        is_head_tied=True,
        attention_scale=1.0,
        activation=activation,
        n_distance_buckets=fields.integer("relative_attention_num_buckets", 32, least=1),
        max_distance=fields.integer("relative_attention_max_distance", 128, least=1),
        stack="encoder",
    )
    n_layers = fields.integer("num_decoder_layers", n_layers)
    return replace(
        stack,
        n_layers=n_layers,
        layers=_unrotated(inner, n_layers),
        is_head_tied=is_tied,
        logit_scale=width**-0.5 if is_tied else 1.0,
        stack="decoder",
        encoder=stack,
    )


def _unrotated(inner: int, n_layers: int) -> tuple[LayerConfig, ...]:
    return (LayerConfig(inner, rope_theta=0.0),) * n_layers


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Refuses GGUF files.

    Raises:
        UnsupportedModelError: Always.
    """
    raise UnsupportedModelError(
        "GGUF files of encoder-decoder models are not read: export the Hugging Face directory"
    )


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    all_weights = {
        name: _weight(config, name, shape) for name, shape in decoder_shapes(config).items()
    }
    if config.encoder is not None:
        of_encoder = weights(config.encoder).items()
        all_weights |= {
            f"encoder.{name}": weight for name, weight in of_encoder if name != _EMBEDDING
        }
    return all_weights


_EMBEDDING = "embed_tokens.weight"
_STACK = {_EMBEDDING: "shared.weight", "lm_head.weight": "lm_head.weight"}
_PARTS = {
    "input_layernorm": "{attn}.layer_norm",
    "source_layernorm": "layer.1.layer_norm",
    "post_attention_layernorm": "{mlp}.layer_norm",
    "self_attn.q_proj": "{attn}.SelfAttention.q",
    "self_attn.k_proj": "{attn}.SelfAttention.k",
    "self_attn.v_proj": "{attn}.SelfAttention.v",
    "self_attn.o_proj": "{attn}.SelfAttention.o",
    "source_attn.q_proj": "layer.1.EncDecAttention.q",
    "source_attn.k_proj": "layer.1.EncDecAttention.k",
    "source_attn.v_proj": "layer.1.EncDecAttention.v",
    "source_attn.o_proj": "layer.1.EncDecAttention.o",
    "mlp.gate_proj": "{mlp}.DenseReluDense.wi_0",
    "mlp.up_proj": "{mlp}.DenseReluDense.{up}",
    "mlp.down_proj": "{mlp}.DenseReluDense.wo",
}
"""Our names within a layer -> theirs."""


def _weight(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Weight:
    stack = "encoder" if config.is_encoder else "decoder"
    source = SourceWeight(_STACK.get(name, ""))
    if name == "norm.weight":
        source = SourceWeight(f"{stack}.final_layer_norm.weight")
    elif name == DISTANCE_BIAS:
        source = SourceWeight(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            stored_shape=(config.n_distance_buckets, config.n_heads),
        )
    elif name not in _STACK:
        layer, rest = layer_part(name)
        stem, _, kind = rest.rpartition(".")
        theirs = _PARTS[stem].format(
            attn="layer.0",
            mlp="layer.1" if config.is_encoder else "layer.2",
            up="wi_1" if config.is_gated else "wi",
        )
        source = SourceWeight(f"{stack}.block.{layer}.{theirs}.{kind}")
    return Weight(shape, hf=source, gguf=source)
