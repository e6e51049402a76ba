"""Falcon-H1: attention and Mamba-2 side by side in every layer, and multipliers of all parts.

Multipliers of matrices are part of the weights, as they are in GGUF files.
"""

from __future__ import annotations

import dataclasses

from edgedec.models.blocks import decoder
from edgedec.models.config import LayerConfig, ModelConfig
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_weight, layer_part
from edgedec.models.families._hf import hf_decoder, hf_name, positive, with_defaults
from edgedec.models.families._mamba import gguf_mamba, hf_mamba, mamba_in_gguf, mamba_in_hf
from edgedec.models.families._places import placed
from edgedec.models.fields import Fields
from edgedec.models.recurrence import GatedNorm, Recurrence
from edgedec.models.weights import SourceWeight

recipe = decoder

Scales = tuple[tuple[int, float], ...]

_HF_NAMES = {
    "post_attention_layernorm": "pre_ff_layernorm",
    "mlp.gate_proj": "feed_forward.gate_proj",
    "mlp.up_proj": "feed_forward.up_proj",
    "mlp.down_proj": "feed_forward.down_proj",
}


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields = with_defaults(
        fields, num_key_value_heads=8, rms_norm_eps=1e-5, max_position_embeddings=8192,
        rope_theta=1e5, mamba_d_ssm=1024, projectors_bias=False,
    )  # fmt: skip
    has_bias = fields.flag("attention_bias", False)
    config = hf_decoder(fields, "falcon_h1", has_qkv_bias=has_bias)
    config = dataclasses.replace(
        config,
        has_o_bias=has_bias,
        embedding_scale=positive(fields, "embedding_multiplier", 1.0),
        logit_scale=positive(fields, "lm_head_multiplier", 1.0),
    )
    width = fields.integer("mamba_expand", 2, least=1) * config.hidden_size
    mamba = hf_mamba(fields, fields.integer("mamba_d_ssm", width, least=1))
    fields.refuse("projectors_bias", mamba.has_bias)
    return _with_mamba(config, dataclasses.replace(mamba, gated_norm=_gated_norm(fields)))


def _gated_norm(fields: Fields) -> GatedNorm:
    if not fields.flag("mamba_rms_norm", False):
        return "none"
    return "first" if fields.flag("mamba_norm_before_gate", True) else "last"


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states."""
    config = dataclasses.replace(gguf_decoder(facts, "falcon-h1"), family="falcon_h1")
    has_norm = any(key.endswith(".ssm_norm.weight") for key in facts.shapes)
    norm: GatedNorm = "last" if has_norm else "none"
    return _with_mamba(config, dataclasses.replace(gguf_mamba(facts, "falcon-h1"), gated_norm=norm))


def _with_mamba(config: ModelConfig, mamba: Recurrence) -> ModelConfig:
    layer = LayerConfig(config.intermediate_size, config.rope_theta, mixer="both")
    return dataclasses.replace(config, layers=(layer,) * config.n_layers, recurrence=mamba)


def _in_hf(config: ModelConfig, name: str) -> SourceWeight:
    if not name.startswith("layers."):
        return SourceWeight(hf_name("final_layernorm.weight" if name == "norm.weight" else name))
    layer, part = layer_part(name)
    prefix = f"model.layers.{layer}"
    if part.startswith("mixer."):
        return mamba_in_hf(config, f"{prefix}.mamba", part.removeprefix("mixer."))
    stem, _, kind = part.rpartition(".")
    return SourceWeight(f"{prefix}.{_HF_NAMES.get(stem, stem)}.{kind}")


def _in_gguf(config: ModelConfig, name: str) -> SourceWeight:
    """Source: ggml-org/llama.cpp ``src/models/falcon-h1.cpp`` (MIT): a name without an ending."""
    layer, _, part = name.removeprefix("layers.").partition(".mixer.")
    if name.endswith(".post_attention_layernorm.weight"):
        return SourceWeight(gguf_weight(config, name).name.removesuffix(".weight"))
    return mamba_in_gguf(config, int(layer), part) if part else gguf_weight(config, name)


def hf_scales(config: ModelConfig, fields: Fields) -> dict[str, Scales]:
    """Returns what rows of weights are multiplied by, by our name; those by 1 are left out.

    Source: transformers ``modeling_falcon_h1.py``.
    """
    of_layer = _mamba_scales(config, fields) | _other_scales(config, fields)
    return {
        f"layers.{layer}.{name}": scales
        for layer in range(config.n_layers)
        for name, scales in of_layer.items()
        if any(factor != 1 for _, factor in scales)
    }


def _mamba_scales(config: ModelConfig, fields: Fields) -> dict[str, Scales]:
    recurrence = config.recurrence
    before, behind = (positive(fields, f"ssm_{n}_multiplier", 1.0) for n in ("in", "out"))
    z, x, key, query, step = _factors(fields, "ssm_multipliers", 5)
    rows: dict[str, Scales] = {
        "mixer.z_proj": ((recurrence.value_size, z),),
        "mixer.x_proj": (
            (recurrence.value_size, x),
            (recurrence.key_size, key),
            (recurrence.key_size, query),
        ),
        "mixer.dt_proj": ((recurrence.n_heads, step),),
    }
    all_scales: dict[str, Scales] = {}
    for name, scales in rows.items():
        all_scales[f"{name}.weight"] = tuple((n, factor * before) for n, factor in scales)
        all_scales[f"{name}.bias"] = scales
    both = ((config.hidden_size, behind),)
    return all_scales | {"mixer.out_proj.weight": both, "mixer.out_proj.bias": both}


def _other_scales(config: ModelConfig, fields: Fields) -> dict[str, Scales]:
    before, behind = (positive(fields, f"attention_{n}_multiplier", 1.0) for n in ("in", "out"))
    key = positive(fields, "key_multiplier", 1.0)
    gate, down = _factors(fields, "mlp_multipliers", 2)
    hidden, head_size = config.hidden_size, config.head_size
    n_q, n_kv = config.n_heads * head_size, config.n_kv_heads * head_size
    return {
        "self_attn.q_proj.weight": ((n_q, before),),
        "self_attn.k_proj.weight": ((n_kv, before * key),),
        "self_attn.k_proj.bias": ((n_kv, key),),
        "self_attn.v_proj.weight": ((n_kv, before),),
        "self_attn.o_proj.weight": ((hidden, behind),),
        "self_attn.o_proj.bias": ((hidden, behind),),
        "mlp.gate_proj.weight": ((config.intermediate_size, gate),),
        "mlp.down_proj.weight": ((hidden, down),),
    }


def _factors(fields: Fields, key: str, n: int) -> tuple[float, ...]:
    """Returns ``n`` numbers, all 1 where none are stated."""
    if fields.get(key) is None:
        return (1.0,) * n
    numbers = fields.numbers(key)
    if len(numbers) != n or min(numbers) <= 0:
        fields.fail(key, list(numbers), f"{n} positive numbers")
    return numbers


weights = placed(_in_hf, _in_gguf)
