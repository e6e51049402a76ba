"""Gemma 4, its text models: inputs of layers, heads of two sizes, shared keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from edgedec.models.blocks import (
    Ops,
    attention_half,
    decoder_head,
    decoder_shapes,
    embedded,
    mlp_half,
)
from edgedec.models.config import LayerConfig, ModelConfig, RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._hf import hf_decoder, hf_layer_types, positive, with_defaults
from edgedec.models.families._layer_inputs import (
    layer_input_weight,
    with_layer_inputs,
    with_shared_kv,
)
from edgedec.models.families.gemma2 import ACTIVATION
from edgedec.models.fields import Fields
from edgedec.models.layer_inputs import layer_input_shapes, layer_inputs, of_layer_input
from edgedec.models.weights import Weight

T = TypeVar("T")

_PERIOD = 6
"""Every so many layers one sees all tokens."""
_STILL = 1e30
"""What frequencies are divided by whose channels keep still, as in GGUF files."""
_LOCAL_THETA = 10000.0
_FULL_ROTATION = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
"""Of layers without a window, where nothing is stated."""
_IN_GGUF = {"layer_scalar": "layer_output_scale"}


def recipe(ops: Ops[T], config: ModelConfig, layer_gates: Sequence[bool] | None = None) -> T:
    """Returns the logits of the selected rows.

    Raises:
        UnsupportedModelError: Sub-layers shall be left out.
    """
    if layer_gates is not None:
        raise UnsupportedModelError(f"{config.family} has no sub-layers that can be left out")
    x = embedded(ops, config)
    layer_inputs_ = layer_inputs(ops, config, x) if config.layer_input_size else ()
    for layer in range(config.n_layers):
        x = attention_half(ops, config, layer, x)
        x = mlp_half(ops, config, layer, x)
        if layer_inputs_:
            x = ops.add(x, of_layer_input(ops, layer, x, layer_inputs_[layer]))
        if config.has_layer_scales:
            x = ops.scale_channels(x, f"layers.{layer}.layer_scalar")
        ops.hidden(x, layer + 1)
    return decoder_head(ops, config, x)


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields.refuse("attention_bias", False)
    fields.refuse("attention_k_eq_v", False)
    fields.refuse("enable_moe_block", False)
    fields.refuse("hidden_activation", ACTIVATION)
    fields.refuse("use_bidirectional_attention", "vision")  # of images alone
    fields = with_defaults(
        fields,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131072,
        sliding_window=512,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262144,
        tie_word_embeddings=True,
    )
    n_layers = fields.integer("num_hidden_layers", least=1)
    local = hf_layer_types(fields, n_layers) or [(i + 1) % _PERIOD != 0 for i in range(n_layers)]
    local[-1] = False  # as the class has it, whatever is stated
    of_local, of_full = _hf_rotations(fields)
    plain = {**fields.values, "rope_parameters": {"rope_theta": of_full.number("rope_theta", 1e6)}}
    config = hf_decoder(
        Fields(plain, fields.origin, CheckpointError),
        "gemma4",
        has_qk_norm=True,
        hidden_act=ACTIVATION,
    )
    size, n_shared = _hf_head_size(fields, local), fields.integer("num_kv_shared_layers", 0, 0)
    config = with_layer_inputs(
        dataclasses.replace(
            config,
            head_size=size,
            rope_scaling=_hf_scaling(of_full, size),
            has_layer_scales=True,
        ),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
        layer_input_size=fields.integer("hidden_size_per_layer_input", 0, least=0),
        layer_input_tokens=fields.integer("vocab_size_per_layer_input", least=1),
    )
    theta, window = of_local.number("rope_theta", _LOCAL_THETA), fields.integer("sliding_window", 1)
    config = _with_local_layers(config, local, window, theta, fields.integer("head_dim"))
    if fields.flag("use_double_wide_mlp", False):
        config = _with_wide_mlps(config, n_shared)
    return with_shared_kv(config, n_shared)


def _hf_rotations(fields: Fields) -> tuple[Fields, Fields]:
    """Returns what is stated of the rotation of layers with a window, and of the others."""
    rope = fields.table("rope_parameters", {})
    of_local = rope.table("sliding_attention", {})
    of_local.refuse("rope_type", "default")
    of_local.refuse("partial_rotary_factor", 1, 1.0)
    of_full = rope.table("full_attention", _FULL_ROTATION)
    of_full.refuse("rope_type", "proportional", "default")
    return of_local, of_full


def _hf_scaling(of_full: Fields, head_size: int) -> RopeScaling:
    """Returns the scaling by which channels keep still that do not rotate.

    Source: transformers ``modeling_rope_utils.py`` ``_compute_proportional_rope_parameters``.
    """
    if of_full.text("rope_type", "default") == "default":
        of_full.refuse("partial_rotary_factor", 1, 1.0)
        return RopeScaling()
    n_turning = int(of_full.number("partial_rotary_factor", 1.0) * head_size // 2)
    if not 0 < n_turning <= head_size // 2:
        of_full.fail("partial_rotary_factor", 2 * n_turning / head_size, "a share of the channels")
    factors = (positive(of_full, "factor", 1.0),) * n_turning
    return RopeScaling("factors", factors=factors + (_STILL,) * (head_size // 2 - n_turning))


def _hf_head_size(fields: Fields, local: Sequence[bool]) -> int:
    """Returns the size of heads in layers without a window.

    Files state it as ``global_head_dim``, or layer by layer as transformers 5 saves it.
    """
    if fields.get("per_layer_config") is None:
        return fields.integer("global_head_dim", 512, least=2)
    sizes = {}
    for name, layer_fields in fields.tables("per_layer_config"):
        layer_fields.refuse("num_key_value_heads", fields.integer("num_key_value_heads"))
        sizes[name] = layer_fields.integer("head_dim", fields.integer("head_dim"), least=2)
    own_sizes = [sizes.get(str(i), fields.integer("head_dim")) for i in range(len(local))]
    of_full = {size for size, is_local in zip(own_sizes, local, strict=True) if not is_local}
    of_local = {size for size, is_local in zip(own_sizes, local, strict=True) if is_local}
    if len(of_full) != 1 or of_local - {fields.integer("head_dim")}:
        raise UnsupportedModelError(
            f"{fields.origin}: per_layer_config has heads of {sorted(of_full | of_local)}, only "
            f"one size for layers with a window and one for the others are supported"
        )
    return of_full.pop()


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/gemma4.cpp``, ``conversion/gemma.py`` (MIT).
    """
    fields, name = facts.fields, "gemma4"
    config = gguf_decoder(facts, name, has_qk_norm=True, has_windows=True)
    head_size = fields.integer(f"{name}.attention.key_length_swa", config.head_size, least=2)
    fields.refuse(f"{name}.attention.value_length_swa", head_size)
    fields.refuse(f"{name}.rope.dimension_count_swa", head_size)
    config = with_layer_inputs(
        dataclasses.replace(config, has_layer_scales=True),
        logit_softcap=fields.number(f"{name}.final_logit_softcapping", 0.0),
        layer_input_size=fields.integer(f"{name}.embedding_length_per_layer_input", 0, least=0),
        layer_input_tokens=facts.shapes.get("per_layer_token_embd.weight", (0,))[0],
    )
    pattern = f"{name}.attention.sliding_window_pattern"
    config = _with_local_layers(
        config,
        gguf_windowed(fields, pattern, config.n_layers, _PERIOD),
        fields.integer(f"{name}.attention.sliding_window", least=1),
        fields.number(f"{name}.rope.freq_base_swa", _LOCAL_THETA),
        head_size,
    )
    return with_shared_kv(config, fields.integer(f"{name}.attention.shared_kv_layers", 0, least=0))


def _with_local_layers(
    config: ModelConfig, is_local: Sequence[bool], window: int, theta: float, head_size: int
) -> ModelConfig:
    """Returns ``config`` with layers that have a window, and heads and rotation of their own.

    The window stays where it is longer than the context, so that heads of a size lie together.
    """
    local = LayerConfig(
        config.intermediate_size,
        theta,
        min(window, config.max_positions),
        has_rope_scaling=False,
        head_size=head_size if head_size != config.head_size else 0,
    )
    full = LayerConfig(config.intermediate_size, config.rope_theta)
    layers = tuple(
        dataclasses.replace(
            local if here else full, intermediate_size=config.layer(i).intermediate_size
        )
        for i, here in enumerate(is_local)
    )
    return dataclasses.replace(config, layers=layers)


def _with_wide_mlps(config: ModelConfig, n_shared: int) -> ModelConfig:
    """Returns ``config`` with MLPs twice as wide in its last ``n_shared`` layers."""
    first = config.n_layers - n_shared
    layers = tuple(
        layer
        if i < first
        else dataclasses.replace(layer, intermediate_size=2 * layer.intermediate_size)
        for i, layer in enumerate(config.layers)
    )
    return dataclasses.replace(config, layers=layers)


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    shapes = decoder_shapes(config) | layer_input_shapes(config)
    if config.has_layer_scales:
        shapes |= {f"layers.{i}.layer_scalar": (1,) for i in range(config.n_layers)}
    return {
        name: Weight(shape, *layer_input_weight(config, name, {}, _IN_GGUF))
        for name, shape in shapes.items()
    }
