"""LLaDA: the Llama recipe, bidirectional, under the names that OLMo has for keys and weights."""

from __future__ import annotations

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families._bidirectional import gguf_bidirectional, hf_bidirectional
from edgedec.models.families._gguf import GgufFacts, gguf_decoder
from edgedec.models.families._hf import hf_decoder
from edgedec.models.families._places import placed
from edgedec.models.families.llama import in_gguf
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight

recipe = decoder

_USUAL_KEYS = {
    "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "mlp_hidden_size": "intermediate_size",
    "max_sequence_length": "max_position_embeddings", "weight_tying": "tie_word_embeddings",
}  # fmt: skip
_REFUSED = {
    "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True,
    "alibi": False, "attention_layer_norm": False, "include_bias": False, "input_emb_norm": False,
    "scale_logits": False, "multi_query_attention": False,
}  # fmt: skip
"""Keys of variants -> the value with which they are the recipe."""

_STORED = {
    "embed_tokens": "wte", "norm": "ln_f", "lm_head": "ff_out", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm", "o_proj": "attn_out", "gate_proj": "ff_proj",
    "down_proj": "ff_out",
}  # fmt: skip
"""Weights -> what their names end in in checkpoints, where that is another name."""


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states.

    Source: GSAI-ML ``configuration_llada.py`` and ``modeling_llada.py`` (MIT).
    """
    for key, harmless in _REFUSED.items():
        fields.refuse(key, harmless)
    fields.refuse("clip_qkv")
    fields.refuse("embedding_size", fields.integer("vocab_size"))
    usual_values = {ours: fields.get(theirs) for theirs, ours in _USUAL_KEYS.items()}
    if usual_values["intermediate_size"] is None:
        usual_values["intermediate_size"] = fields.integer("mlp_ratio", 4) * fields.integer(
            "d_model"
        )
    values = {"rms_norm_eps": 1e-5, **fields.values, **usual_values}
    usual = Fields(values, fields.origin, CheckpointError)
    has_bias = fields.flag("include_qkv_bias", False)
    return hf_bidirectional(fields, hf_decoder(usual, "llada", has_qkv_bias=has_bias))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    return gguf_bidirectional(facts.fields, gguf_decoder(facts, "llada"))


def _in_hf(_config: ModelConfig, name: str) -> SourceWeight:
    *_, stem, part = name.split(".")
    inner = f"blocks.{name.split('.')[1]}." if name.startswith("layers.") else ""
    return SourceWeight(f"model.transformer.{inner}{_STORED.get(stem, stem)}.{part}")


weights = placed(_in_hf, in_gguf)
