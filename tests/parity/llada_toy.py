"""Transformers' Llama as LLaDA's publisher has it: names of weights, and config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

INNER = {
    "self_attn.q_proj": "q_proj", "self_attn.k_proj": "k_proj", "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}  # fmt: skip
OUTER = {
    "model.embed_tokens": "model.transformer.wte", "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
}  # fmt: skip


def name_in_llada(name: str) -> str:
    """Returns LLaDA's name of a weight of transformers' Llama."""
    stem, _, part = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{part}"
    _, _, layer, rest = stem.split(".", 3)
    return f"model.transformer.blocks.{layer}.{INNER[rest]}.{part}"


def save_as_llada(model: Any, sizes: Mapping[str, Any], mask: int, folder: Path) -> None:
    """Writes config.json and weights. sizes: of the model, by the names of transformers."""
    s = sizes
    config = {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "activation_type": "silu",
        "alibi": False, "attention_layer_norm": False, "block_group_size": 1,
        "block_type": "llama", "d_model": s["hidden_size"], "embedding_size": s["vocab_size"],
        "eos_token_id": s["eos_token_id"], "include_bias": False, "include_qkv_bias": False,
        "input_emb_norm": False, "layer_norm_type": "rms", "mask_token_id": mask,
        "max_sequence_length": s["max_position_embeddings"],
        "mlp_hidden_size": s["intermediate_size"], "mlp_ratio": 4, "multi_query_attention": None,
        "n_heads": s["num_attention_heads"], "n_kv_heads": s["num_key_value_heads"],
        "n_layers": s["num_hidden_layers"], "pad_token_id": s["pad_token_id"],
        "rms_norm_eps": s["rms_norm_eps"], "rope": True, "rope_full_precision": True,
        "rope_theta": s["rope_theta"], "scale_logits": False, "use_cache": False,
        "vocab_size": s["vocab_size"], "weight_tying": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name_in_llada(n): t.contiguous() for n, t in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
