"""What Hugging Face configs of decoders share: keys, and names of weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

from edgedec.models.config import ModelConfig, RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields, shown
from edgedec.models.recurrence import Recurrence
from edgedec.models.rope import yarn_factors, yarn_scale

QUANT_METHODS = (
    "awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4",
)  # fmt: skip
"""Ways of packing matrices that are read, besides those of MLX, which state no method."""


_COMPRESSED_FORMATS = (
    "float-quantized", "naive-quantized", "dense", "pack-quantized", "int-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision",
)  # fmt: skip
"""Formats of compressed-tensors that are read; the last mixes the others."""

_MODELOPT_ALGORITHMS = ("FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4")
"""Algorithms of NVIDIA's ModelOpt whose matrices are read."""

_SAME_ACTIVATIONS = {"silu": ("swish",)}
"""Names of activations -> other names of the same."""

HAS_O_BIAS = "has_o_proj_bias"
"""A key that readers of checkpoints add: whether there are biases ``o_proj.bias``."""
_ORIGINAL = "original_max_position_embeddings"
_PARD_TOKEN = "pard_token"
_THETA, _USUAL_THETA = "rope_theta", 10000.0


def refuse_packing(fields: Fields) -> None:
    """Refuses matrices that are packed in a way that is not read.

    Raises:
        UnsupportedModelError: names the way and those that are read.
    """
    if fields.get("quantization_config") is None:
        return
    packing = fields.table("quantization_config")
    if packing.get("quant_method") is None and {"bits", "group_size"} <= set(packing.values):
        return  # MLX
    if packing.get("load_in_8bit"):
        raise UnsupportedModelError(
            f"{fields.origin}: quantization_config is that of bitsandbytes with 8 bits, which is "
            "not read: dequantise it with transformers: AutoModelForCausalLM.from_pretrained"
            "(FOLDER).dequantize().save_pretrained(NEW), or take the float checkpoint"
        )
    method = packing.text("quant_method", "unknown")
    if method not in QUANT_METHODS:
        raise UnsupportedModelError(
            f"{fields.origin}: quantization_config {shown(method)} cannot be read, expected one of "
            f"{', '.join(QUANT_METHODS)}; use the float checkpoint or a GGUF file"
        )
    if method == "compressed-tensors":
        _refuse_compression(packing)
    if method == "modelopt":
        packing.refuse("quant_algo", *_MODELOPT_ALGORITHMS)


def _refuse_compression(packing: Fields) -> None:
    """Refuses what compressed-tensors does besides packing matrices in ways that are read."""
    packing.refuse("format", *_COMPRESSED_FORMATS)
    for key in ("sparsity_config", "transform_config"):
        part = packing.get(key)
        if isinstance(part, dict) and part.get("format") != "dense" and any(part.values()):
            packing.refuse_with(
                key,
                "is there, and neither sparse nor rotated matrices of compressed-tensors are "
                "read: use the float checkpoint, a GGUF file, or one that is only quantised",
            )


def with_defaults(fields: Fields, **defaults: Any) -> Fields:
    """Returns ``fields`` with what the family's class takes for keys that are absent, not null."""
    return Fields({**defaults, **fields.values}, fields.origin, CheckpointError)


def hf_decoder(
    fields: Fields,
    family: str,
    has_qkv_bias: bool = False,
    has_qk_norm: bool = False,
    can_rotate_partly: bool = False,
    hidden_act: str = "silu",
    can_have_mlp_bias: bool = False,
) -> ModelConfig:
    """Returns the config of a pre-norm gated decoder from Hugging Face's usual keys.

    can_rotate_partly: whether the family's weights are put in order for a ``rotary_size``.

    Raises:
        CheckpointError: A key is missing or of the wrong type.
        UnsupportedModelError: A key asks for what the shared recipe does not do.
    """
    names = (hidden_act, *_SAME_ACTIVATIONS.get(hidden_act, ()))
    fields.refuse("hidden_act", *names)
    fields.refuse("mlp_bias", False, *((True,) if can_have_mlp_bias else ()))
    refuse_packing(fields)
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_size = fields.integer("head_dim", hidden_size // max(n_heads, 1))
    rotary_size = _rotary_size(fields, head_size, can_rotate_partly)
    theta, scaling = hf_rope(fields, rotary_size or head_size)
    config = ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        n_layers=fields.integer("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", n_heads),
        head_size=head_size,
        max_positions=_max_positions(fields),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        has_qkv_bias=has_qkv_bias,
        has_qk_norm=has_qk_norm,
        rotary_size=rotary_size,
        has_o_bias=fields.flag(HAS_O_BIAS, False),
        has_mlp_bias=fields.flag("mlp_bias", False),
        is_head_tied=fields.flag("tie_word_embeddings", False),
    )
    return _with_pard_token(fields, config)


def _with_pard_token(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with the mask token of a draft model that AMD's PARD trained.

    Source: AMD-AGI/PARD ``pard_train.py``, which writes -1 where there is none.
    """
    if fields.get(_PARD_TOKEN) in (None, -1):
        return config
    token = fields.integer(_PARD_TOKEN, least=0, most=config.vocab_size - 1)
    return dataclasses.replace(config, mask_token=token, drafts_in_one_pass=True)


def _max_positions(fields: Fields) -> int:
    """Returns the stated number, or what YaRN stretches the original one to if that is more."""
    n_positions, rope = fields.integer("max_position_embeddings", 2048), rope_fields(fields)
    if _rope_kind(rope) != "yarn":
        return n_positions
    original = rope.integer(_ORIGINAL, n_positions, least=2)
    return max(n_positions, int(original * positive(rope, "factor")))


def rope_fields(fields: Fields) -> Fields:
    """Returns the table of the rotation: ``rope_scaling`` where it says something.

    Model cards tell people to add that key for long texts, also to files of transformers 5, which
    have ``rope_parameters``. All versions of transformers let it replace the whole other table.

    Raises:
        CheckpointError: The base of the rotation would be lost with the table.
    """
    parameters, added = fields.table("rope_parameters", {}), fields.table("rope_scaling", {})
    if not added.values:
        return parameters
    theta = parameters.number(_THETA, _USUAL_THETA)
    if parameters.values and added.number(_THETA, fields.number(_THETA, _USUAL_THETA)) != theta:
        fields.refuse_with(
            "rope_scaling",
            f"replaces rope_parameters and its {_THETA} of {theta}: write the {_THETA} into "
            "rope_scaling, too",
        )
    return added


def _rope_kind(rope: Fields) -> str:
    return rope.text("rope_type", rope.text("type", "default"))


def hf_rope(fields: Fields, size: int) -> tuple[float, RopeScaling]:
    """Returns base and scaling of the rotary frequencies of ``size`` channels.

    Reads ``rope_theta`` with ``rope_scaling`` (transformers 4) and ``rope_parameters`` (5).
    """
    rope = rope_fields(fields)
    theta = rope.number(_THETA, fields.number(_THETA, _USUAL_THETA))
    kind = _rope_kind(rope)
    # Dynamic NTK stretches texts longer than max_position_embeddings, which no bundle serves.
    if kind in ("default", "dynamic"):
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling("linear", factor=positive(rope, "factor"))
    if kind == "llama3":
        low, high = positive(rope, "low_freq_factor"), positive(rope, "high_freq_factor")
        if high <= low:
            raise CheckpointError(
                f"{fields.origin}: high_freq_factor {high} is not above low_freq_factor {low}"
            )
        return theta, RopeScaling(
            "llama3",
            factor=positive(rope, "factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_positions=rope.integer("original_max_position_embeddings"),
        )
    if kind == "yarn":
        return theta, _yarn(fields, rope, theta, size)
    if kind in ("longrope", "su"):  # the latter in older files
        return theta, _long_rope(fields, rope)
    raise UnsupportedModelError(
        f"{fields.origin}: RoPE scaling {shown(kind)} is not supported; known: default, linear, "
        f"llama3, longrope, yarn, dynamic"
    )


def _yarn(fields: Fields, rope: Fields, theta: float, size: int) -> RopeScaling:
    """Returns YaRN's scaling, whose factors do not depend on the text.

    Source: transformers ``modeling_rope_utils.py`` ``_compute_yarn_parameters``.
    """
    factor = positive(rope, "factor")
    original = rope.integer(_ORIGINAL, fields.integer("max_position_embeddings", 2048), least=2)
    betas = rope.number("beta_fast", 32.0) or 32.0, rope.number("beta_slow", 1.0) or 1.0
    weights = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    scale = yarn_scale(factor)
    if all(weights):
        scale = yarn_scale(factor, weights[0]) / yarn_scale(factor, weights[1])
    is_truncated = rope.flag("truncate", "truncate" not in rope.values)  # null is no
    factors = yarn_factors(theta, size, factor, original, betas, is_truncated)
    return RopeScaling("factors", factor=rope.number("attention_factor", scale), factors=factors)


def _long_rope(fields: Fields, rope: Fields) -> RopeScaling:
    """Returns the scaling with a list of factors for short contexts and one for long ones.

    Source: transformers ``modeling_rope_utils.py`` ``_compute_longrope_parameters``.
    """
    key, n_positions = _ORIGINAL, fields.integer("max_position_embeddings")
    original = rope.integer(key, fields.integer(key, n_positions), least=2)
    stretch = n_positions / original
    if fields.get(key) is None and rope.get("factor") is not None:
        stretch = positive(rope, "factor")
    stretch = max(stretch, 1.0)
    return RopeScaling(
        "longrope",
        factor=rope.number("attention_factor", long_rope_factor(stretch, original)),
        original_max_positions=original,
        factors=rope.numbers("long_factor"),
        short_factors=rope.numbers("short_factor"),
    )


def long_rope_factor(stretch: float, original_max_positions: int) -> float:
    """Returns what cosines and sines are multiplied by in a context ``stretch`` times as long."""
    return math.sqrt(1 + math.log(stretch) / math.log(original_max_positions))


def _rotary_size(fields: Fields, head_size: int, can_rotate_partly: bool) -> int:
    """Returns `ModelConfig.rotary_size`."""
    where = fields.table("rope_parameters", {})
    where = fields if where.get("partial_rotary_factor") is None else where
    if not can_rotate_partly or head_size < 1:
        where.refuse("partial_rotary_factor", 1, 1.0)
        return 0
    size = int(head_size * where.number("partial_rotary_factor", 1.0))
    if not 0 < size <= head_size or size % 2:
        where.fail("partial_rotary_factor", size / head_size, "one of an even number of channels")
    return size % head_size


def hf_rotations(fields: Fields, local_theta: float) -> tuple[Fields, float]:
    """Returns ``fields`` with the rotation of the layers without a window, and the others' base.

    transformers 5 has a table for each kind of layer, 4 one for all.

    local_theta: the others' base where there are no such tables.
    """
    rope = fields.table("rope_parameters", {})
    if rope.get("full_attention") is None:
        return fields, local_theta
    local = rope.table("sliding_attention")
    local.refuse("rope_type", "default")
    whole = {**rope.table("full_attention").values, **fields.table("rope_scaling", {}).values}
    values = {**fields.values, "rope_parameters": whole, "rope_scaling": None}
    return Fields(values, fields.origin, CheckpointError), local.number("rope_theta", local_theta)


def hf_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with the sliding windows that ``layer_types`` and the like state."""
    types = hf_layer_types(fields, config.n_layers)
    if types is None:
        window = fields.integer("sliding_window", 0, least=0)
        return with_windows(config, window, range(config.n_layers))
    layers = [i for i, is_local in enumerate(types) if is_local]
    return with_windows(config, hf_window(fields, types), layers)


def hf_window(fields: Fields, is_local: Sequence[bool]) -> int:
    """Returns the window that local layers have; 0 where it is not stated and none is local."""
    window = fields.integer("sliding_window", 0, least=0)
    if any(is_local) and not window:
        fields.refuse_with("sliding_window", "is missing, but layer_types has windows")
    return window


def hf_optional_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Returns ``config`` with the windows of Qwen: none unless ``use_sliding_window`` says so.

    They are in the layers that ``layer_types`` names, or in all from ``max_window_layers`` on.
    """
    if not fields.flag("use_sliding_window", False):
        return config
    fields = with_defaults(fields, sliding_window=4096)
    if fields.get("layer_types") is not None:
        return hf_windows(fields, config)
    window, first = fields.integer("sliding_window", 0, 0), fields.integer("max_window_layers")
    return with_windows(config, window, range(first, config.n_layers))


def hf_layer_types(fields: Fields, n_layers: int) -> list[bool] | None:
    """Returns which layers have a sliding window; None where it is not stated layer by layer."""
    if fields.get("layer_types") is None:
        return None
    types = fields.texts("layer_types")
    if len(types) != n_layers:
        fields.fail("layer_types", types, f"a list of {n_layers}")
    known = ("full_attention", "sliding_attention")
    if (other := next((kind for kind in types if kind not in known), None)) is not None:
        raise UnsupportedModelError(
            f"{fields.origin}: layer_types has {shown(other)}, only {' and '.join(known)} are "
            f"supported"
        )
    return [kind == "sliding_attention" for kind in types]


def with_windows(config: ModelConfig, window: int, layers: Collection[int]) -> ModelConfig:
    """Returns ``config`` with a window in some layers; none where it is as long as the context."""
    if not layers or not 0 < window < config.max_positions:
        return config
    return dataclasses.replace(
        config,
        layers=tuple(
            dataclasses.replace(config.layer(i), window=window if i in layers else 0)
            for i in range(config.n_layers)
        ),
    )


def hf_mixers(fields: Fields, n_layers: int, recurrent: Sequence[str]) -> list[int]:
    """Returns the layers whose ``layer_types`` are ``recurrent``; the others have attention."""
    types = fields.texts("layer_types")
    if len(types) != n_layers:
        fields.fail("layer_types", types, f"a list of {n_layers}")
    known = (*recurrent, "full_attention", "attention")
    if (other := next((kind for kind in types if kind not in known), None)) is not None:
        raise UnsupportedModelError(
            f"{fields.origin}: layer_types has {shown(other)}, only {', '.join(known)} are "
            f"supported"
        )
    return [i for i, kind in enumerate(types) if kind in recurrent]


def with_recurrence(
    config: ModelConfig, recurrence: Recurrence, layers: Collection[int]
) -> ModelConfig:
    """Returns ``config`` with a recurrence in place of attention in ``layers``."""
    if not layers:
        return config
    layers_config = (
        dataclasses.replace(config.layer(i), mixer="recurrence" if i in layers else "attention")
        for i in range(config.n_layers)
    )
    return dataclasses.replace(config, layers=tuple(layers_config), recurrence=recurrence)


def positive(fields: Fields, key: str, default: float | None = None) -> float:
    """Returns a number above 0."""
    value = fields.number(key, default)
    if value <= 0:
        fields.fail(key, value, "a positive number")
    return value


def hf_name(name: str) -> str:
    """Returns the Hugging Face name of our weight ``name``: ``model.`` before all but the head."""
    return name if name == "lm_head.weight" else f"model.{name}"
