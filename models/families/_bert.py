"""What encoders of BERT's kind share: keys, and names of weights."""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.models.config import Activation, LayerConfig, ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families._gguf import EMBEDDING, GgufFacts, layer_part
from edgedec.models.families._hf import positive, refuse_packing
from edgedec.models.fields import Fields, shown
from edgedec.models.weights import SourceWeight, Weight

UNREAD = frozenset(
    {
        *(f"pooler.dense.{part}" for part in ("weight", "bias")),
        *(f"cls.predictions.transform.dense.{part}" for part in ("weight", "bias")),
        *(f"cls.predictions.transform.LayerNorm.{part}" for part in ("weight", "bias")),
        *(f"cls.predictions.decoder.{part}" for part in ("weight", "bias")),
        "cls.predictions.bias",
        *(f"cls.seq_relationship.{part}" for part in ("weight", "bias")),
        *(f"lm_head.{stem}.{part}" for stem in ("dense", "layer_norm", "decoder")
          for part in ("weight", "bias")),
        "lm_head.bias",
    }
)  # fmt: skip
"""Heads that pre-training had: they change no hidden state."""

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
}  # fmt: skip

_STORED = {
    "embed_tokens": "embeddings.word_embeddings",
    "embed_positions": "embeddings.position_embeddings",
    "embed_norm": "embeddings.LayerNorm", "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key", "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "attention.output.dense", "self_attn.norm": "attention.output.LayerNorm",
    "mlp.up_proj": "intermediate.dense", "mlp.down_proj": "output.dense",
    "mlp.norm": "output.LayerNorm",
}  # fmt: skip
_STORED_GGUF = {
    "embed_tokens": "token_embd", "embed_positions": "position_embd",
    "embed_norm": "token_embd_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.norm": "attn_output_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.norm": "layer_output_norm",
}  # fmt: skip
_TYPES = "token_types.weight"


def hf_bert(fields: Fields, family: str, first_position: int = 0) -> ModelConfig:
    """Returns the config of an encoder from the keys of BERT.

    first_position: rows of the table of positions that no token of a text has.
    """
    fields.refuse("position_embedding_type", "absolute")
    fields.refuse("is_decoder", False)
    fields.refuse("add_cross_attention", False)
    refuse_packing(fields)
    activation = fields.text("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{fields.origin}: hidden_act is {shown(activation)}, expected one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return _config(
        family=family,
        activation=_ACTIVATIONS[activation],
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        n_layers=fields.integer("num_hidden_layers"),
        n_heads=fields.integer("num_attention_heads"),
        max_positions=fields.integer("max_position_embeddings", 512) - first_position,
        epsilon=positive(fields, "layer_norm_eps", 1e-12),
        n_token_types=fields.integer("type_vocab_size", 2, least=1),
    )


def gguf_bert(facts: GgufFacts) -> ModelConfig:
    """Returns the config of an encoder from a GGUF header of the architecture ``bert``."""
    fields = facts.fields
    for name in (EMBEDDING, _TYPES):
        if name not in facts.shapes:
            raise CheckpointError(f"missing tensor {name}; the file is incomplete")
    fields.refuse("bert.attention.causal", False)
    return _config(
        family="bert",
        activation="gelu",
        vocab_size=facts.shapes[EMBEDDING][0],
        hidden_size=fields.integer("bert.embedding_length"),
        intermediate_size=fields.integer("bert.feed_forward_length"),
        n_layers=fields.integer("bert.block_count"),
        n_heads=fields.integer("bert.attention.head_count"),
        max_positions=fields.integer("bert.context_length"),
        epsilon=positive(fields, "bert.attention.layer_norm_epsilon"),
        n_token_types=facts.shapes[_TYPES][0],
    )


def _config(
    family: str,
    activation: Activation,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    n_layers: int,
    n_heads: int,
    max_positions: int,
    epsilon: float,
    n_token_types: int,
) -> ModelConfig:
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_size=hidden_size // max(n_heads, 1),
        max_positions=max_positions,
        rms_norm_eps=epsilon,
        layers=(LayerConfig(intermediate_size, rope_theta=0.0),) * n_layers,
        is_head_tied=True,
        activation=activation,
        stack="embedder",
        n_token_types=n_token_types,
    )


def bert_weights(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> dict[str, Weight]:
    """Returns weights of these ``shapes`` and where they lie."""
    types = config.n_token_types, config.hidden_size
    weights = {
        name: Weight(shape, SourceWeight(_hf_name(name)), SourceWeight(_gguf_name(name)))
        for name, shape in shapes.items()
        if name != "token_type"
    }
    stored = (
        SourceWeight(name, stored_shape=types)
        for name in ("embeddings.token_type_embeddings.weight", _TYPES)
    )
    return {**weights, "token_type": Weight(shapes["token_type"], *stored)}


def _hf_name(name: str) -> str:
    if not name.startswith("layers."):
        stem, _, part = name.rpartition(".")
        return f"{_STORED[stem]}.{part}"
    layer, rest = layer_part(name)
    stem, _, part = rest.rpartition(".")
    return f"encoder.layer.{layer}.{_STORED[stem]}.{part}"


def _gguf_name(name: str) -> str:
    if not name.startswith("layers."):
        stem, _, part = name.rpartition(".")
        return f"{_STORED_GGUF[stem]}.{part}"
    layer, rest = layer_part(name)
    stem, _, part = rest.rpartition(".")
    return f"blk.{layer}.{_STORED_GGUF[stem]}.{part}"
