"""What Hugging Face configs of decoders share: keys, and names of weights."""

from __future__ import annotations

from edgedec.models.config import ModelConfig, RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields, shown


def hf_decoder(
    fields: Fields, family: str, has_qkv_bias: bool = False, has_qk_norm: bool = False
) -> ModelConfig:
    """Returns the config of a pre-norm gated decoder from Hugging Face's usual keys.

    Raises:
        CheckpointError: A key is missing or of the wrong type.
        UnsupportedModelError: A key asks for what the shared recipe does not do.
    """
    fields.refuse("hidden_act", "silu")
    fields.refuse("mlp_bias", False)
    fields.refuse("partial_rotary_factor", 1, 1.0)
    if fields.get("quantization_config") is not None:
        method = fields.table("quantization_config").text("quant_method", "unknown")
        raise UnsupportedModelError(
            f"{fields.origin}: quantization_config {method!r} cannot be read; "
            f"use the float checkpoint or a GGUF file"
        )
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    theta, scaling = hf_rope(fields)
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        n_layers=fields.integer("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", n_heads),
        head_size=fields.integer("head_dim", hidden_size // max(n_heads, 1)),
        max_positions=fields.integer("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        has_qkv_bias=has_qkv_bias,
        has_qk_norm=has_qk_norm,
        is_head_tied=fields.flag("tie_word_embeddings", False),
    )


def hf_rope(fields: Fields) -> tuple[float, RopeScaling]:
    """Returns base and scaling of the rotary frequencies.

    Reads ``rope_theta`` with ``rope_scaling`` (transformers 4) and ``rope_parameters`` (5).
    """
    key = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    rope = fields.table(key, {})
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    rope.refuse("partial_rotary_factor", 1, 1.0)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling("linear", factor=_positive(rope, "factor"))
    if kind == "llama3":
        low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
        if high <= low:
            raise CheckpointError(
                f"{fields.origin}: high_freq_factor {high} is not above low_freq_factor {low}"
            )
        return theta, RopeScaling(
            "llama3",
            factor=_positive(rope, "factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_positions=rope.integer("original_max_position_embeddings"),
        )
    raise UnsupportedModelError(
        f"{fields.origin}: RoPE scaling {shown(kind)} is not supported; known: default, linear, "
        f"llama3"
    )


def _positive(fields: Fields, key: str) -> float:
    value = fields.number(key)
    if value <= 0:
        fields.fail(key, value, "a positive number")
    return value


def hf_name(name: str) -> str:
    """Returns the Hugging Face name of our weight ``name``: ``model.`` before all but the head."""
    return name if name == "lm_head.weight" else f"model.{name}"
