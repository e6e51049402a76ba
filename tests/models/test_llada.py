"""LLaDA against transformers' Llama with a full mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bidirectional_parity import MASK, BidirectionalParity
from family_parity import gguf, transformers
from safetensors.torch import save_file

pytestmark = pytest.mark.parity

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


class TestParity(BidirectionalParity):
    EXPECTED = {"family": "llada", "is_head_tied": False, "n_kv_heads": 2, "rope_theta": 1e4}
    REFUSED = {
        "block_type": "sequential", "activation_type": "gelu", "alibi": True,
        "attention_layer_norm": True, "include_bias": True, "clip_qkv": 8.0, "embedding_size": 128,
    }  # fmt: skip

    ARCHITECTURE = "llada"
    HAS_PAIRED_HEADS = True

    @classmethod
    def make_model(cls) -> Any:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**cls.SIZES))

    @classmethod
    def save(cls, model: Any, folder: Path) -> None:
        s = cls.SIZES
        config = {
            "model_type": "llada", "architectures": ["LLaDAModelLM"], "activation_type": "silu",
            "alibi": False, "attention_layer_norm": False, "block_group_size": 1,
            "block_type": "llama", "d_model": s["hidden_size"], "embedding_size": s["vocab_size"],
            "eos_token_id": s["eos_token_id"], "include_bias": False, "include_qkv_bias": False,
            "input_emb_norm": False, "layer_norm_type": "rms", "mask_token_id": MASK,
            "max_sequence_length": s["max_position_embeddings"],
            "mlp_hidden_size": s["intermediate_size"], "mlp_ratio": 4,
            "multi_query_attention": None, "n_heads": s["num_attention_heads"],
            "n_kv_heads": s["num_key_value_heads"], "n_layers": s["num_hidden_layers"],
            "pad_token_id": s["pad_token_id"], "rms_norm_eps": s["rms_norm_eps"], "rope": True,
            "rope_full_precision": True, "rope_theta": s["rope_theta"], "scale_logits": False,
            "use_cache": False, "vocab_size": s["vocab_size"], "weight_tying": False,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {name_in_llada(n): t.contiguous() for n, t in model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")


def test_names_are_those_that_gguf_knows() -> None:
    """`gguf` has a table of the publisher's names: what each weight is, from somebody else."""
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLADA, 1)
    names = [*OUTER, *(f"model.layers.0.{stem}" for stem in INNER)]
    for name in names:
        theirs = name_in_llada(f"{name}.weight").removesuffix(".weight")
        assert known.get_name(theirs) == known.get_name(name), theirs
