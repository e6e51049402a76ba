"""A llama of transformers that is made in a moment: its sizes, and a tokenizer for its ids."""

from __future__ import annotations

from typing import Any


def sizes(n_layers: int) -> dict[str, Any]:
    """Returns what `LlamaConfig` takes."""
    return {
        "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": n_layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 96,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip


TOKENIZER = {
    "version": "1.0",
    "model": {"type": "BPE", "vocab": {chr(33 + i): i for i in range(90)}, "merges": []},
}
