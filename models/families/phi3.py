"""Phi-3, Phi-3.5 and Phi-4-mini: q, k and v in one tensor, gate and up in another.

Phi-4-mini rotates a part of each head; both have variants for long contexts (LongRoPE).
"""

from __future__ import annotations

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_name
from edgedec.models.families._hf import hf_decoder, hf_name, hf_windows, with_defaults, with_windows
from edgedec.models.fields import Fields
from edgedec.models.weights import PartialHeads, SourceWeight, Weight

recipe = decoder


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields,
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
        original_max_position_embeddings=4096,
    )
    return hf_windows(fields, hf_decoder(fields, "phi3", can_rotate_partly=True))


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = gguf_decoder(facts, "phi3", can_rotate_partly=True, has_windows=True)
    window = facts.fields.integer("phi3.attention.sliding_window", 0)
    return with_windows(config, window, range(config.n_layers))


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {name: _weight(config, name, shape) for name, shape in decoder_shapes(config).items()}


def _weight(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Weight:
    q, kv = config.n_heads * config.head_size, config.n_kv_heads * config.head_size
    part = name.split(".")[-2]
    joined = {
        "q_proj": ("qkv_proj", "attn_qkv", 0),
        "k_proj": ("qkv_proj", "attn_qkv", q),
        "v_proj": ("qkv_proj", "attn_qkv", q + kv),
        "gate_proj": ("gate_up_proj", "ffn_up", 0),
        "up_proj": ("gate_up_proj", "ffn_up", shape[0]),
    }
    if part not in joined:
        return Weight(shape, hf=SourceWeight(hf_name(name)), gguf=SourceWeight(gguf_name(name)))
    in_hf, in_gguf, first_row = joined[part]
    n_heads = {"q_proj": config.n_heads, "k_proj": config.n_kv_heads}.get(part)
    order = PartialHeads(n_heads, config.rotary_size) if n_heads and config.rotary_size else None
    _, layer, *_, kind = name.split(".")
    return Weight(
        shape,
        hf=SourceWeight(hf_name(name.replace(part, in_hf)), first_row=first_row, order=order),
        gguf=SourceWeight(f"blk.{layer}.{in_gguf}.{kind}", first_row=first_row, order=order),
    )
