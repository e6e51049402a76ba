"""Gemma 3n, its text models: streams side by side, inputs of layers, shared keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from edgedec.models.config import LayerConfig, ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families._altup import altup_decoder, altup_shapes
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._hf import hf_decoder, hf_layer_types, hf_rotations, with_defaults
from edgedec.models.families._layer_inputs import (
    layer_input_weight,
    with_layer_inputs,
    with_shared_kv,
)
from edgedec.models.families._windows import with_local_layers
from edgedec.models.families.gemma2 import ACTIVATION
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight, Weight

recipe = altup_decoder

_PERIOD = 5
"""Every so many layers one sees all tokens."""
_LOCAL_THETA = 10000.0
_SPARSITY, _SPARSE_LAYERS = 0.95, 10
"""Of the gates of the first layers, where nothing is stated."""
_IN_HF = {"altup.router": "altup.modality_router"}
_IN_GGUF = {
    "altup.router": "altup_router", "altup.router_norm": "altup_router_norm",
    "altup.correct_output_scale": "altup_correct_scale",
    "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef",
    "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
}  # fmt: skip


def read_hf(fields: Fields) -> ModelConfig:
    """Returns the config that ``config.json`` states."""
    fields.refuse("attention_bias", False)
    fields.refuse("hidden_activation", ACTIVATION)
    fields.refuse("altup_active_idx", 0)
    fields.refuse("altup_correct_scale", True)
    fields = with_defaults(
        fields,
        num_key_value_heads=2,
        head_dim=256,
        max_position_embeddings=32768,
        rope_theta=1e6,
        sliding_window=512,
        num_kv_shared_layers=15,
        final_logit_softcapping=30.0,
        intermediate_size=16384,
        tie_word_embeddings=True,
    )
    n_layers = fields.integer("num_hidden_layers", least=1)
    fields, widths = _hf_widths(fields, n_layers)
    fields, local_theta = hf_rotations(fields, fields.number("rope_local_base_freq", _LOCAL_THETA))
    config = hf_decoder(fields, "gemma3n", has_qk_norm=True, hidden_act=ACTIVATION)
    local = hf_layer_types(fields, n_layers)
    config = with_layer_inputs(
        config,
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
        layer_input_size=fields.integer("hidden_size_per_layer_input", 256, least=1),
        layer_input_tokens=fields.integer("vocab_size_per_layer_input", 262144, least=1),
    )
    config = dataclasses.replace(
        config,
        n_streams=fields.integer("altup_num_inputs", 4, least=2),
        laurel_rank=fields.integer("laurel_rank", 64, least=1),
    )
    config = with_local_layers(
        config,
        [(i + 1) % _PERIOD != 0 for i in range(n_layers)] if local is None else local,
        fields.integer("sliding_window", 0),
        local_theta,
    )
    config = _with_mlps(config, widths, _hf_sparsity(fields, n_layers))
    return with_shared_kv(config, fields.integer("num_kv_shared_layers", least=0))


def _hf_widths(fields: Fields, n_layers: int) -> tuple[Fields, Sequence[int]]:
    """Returns ``fields`` with one width for all MLPs, and the width of each."""
    if not isinstance(fields.get("intermediate_size"), list):
        return fields, (fields.integer("intermediate_size", least=1),) * n_layers
    widths = fields.integers("intermediate_size", least=1)
    if len(widths) != n_layers:
        fields.fail("intermediate_size", list(widths), f"a number, or {n_layers} of them")
    values = {**fields.values, "intermediate_size": widths[0]}
    return Fields(values, fields.origin, CheckpointError), widths


def _hf_sparsity(fields: Fields, n_layers: int) -> Sequence[float]:
    pattern = fields.get("activation_sparsity_pattern")
    if pattern is None:
        n_sparse = _SPARSE_LAYERS if n_layers > _SPARSE_LAYERS else 0
        return [_SPARSITY] * n_sparse + [0.0] * (n_layers - n_sparse)
    if not isinstance(pattern, list):
        return [fields.number("activation_sparsity_pattern")] * n_layers
    shares = fields.numbers("activation_sparsity_pattern")
    if len(shares) != n_layers:
        fields.fail("activation_sparsity_pattern", list(shares), f"a list of {n_layers}")
    return shares


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/gemma3n.cpp``, ``conversion/gemma.py`` (MIT).
    """
    fields, name = facts.fields, "gemma3n"
    config = gguf_decoder(facts, name, has_qk_norm=True, has_windows=True)
    fields.refuse(f"{name}.altup.active_idx", 0)
    n_layers, widths = config.n_layers, [config.layer(i) for i in range(config.n_layers)]
    config = with_layer_inputs(
        config,
        logit_softcap=fields.number(f"{name}.final_logit_softcapping", 30.0),
        layer_input_size=fields.integer(f"{name}.embedding_length_per_layer_input", least=1),
        layer_input_tokens=facts.shapes.get("per_layer_token_embd.weight", (0,))[0],
    )
    config = dataclasses.replace(
        config,
        n_streams=fields.integer(f"{name}.altup.num_inputs", 4, least=2),
        laurel_rank=facts.shapes.get("blk.0.laurel_l.weight", (0,))[0],
    )
    local = gguf_windowed(fields, f"{name}.attention.sliding_window_pattern", n_layers, _PERIOD)
    config = with_local_layers(
        config,
        local,
        fields.integer(f"{name}.attention.sliding_window"),
        fields.number(f"{name}.rope.freq_base_swa", _LOCAL_THETA),
    )
    sparsity = _gguf_sparsity(fields, f"{name}.activation_sparsity_scale", n_layers)
    config = _with_mlps(config, [layer.intermediate_size for layer in widths], sparsity)
    return with_shared_kv(config, fields.integer(f"{name}.attention.shared_kv_layers", 0, least=0))


def _gguf_sparsity(fields: Fields, key: str, n_layers: int) -> Sequence[float]:
    """Returns the shares that correspond to the stated numbers of standard deviations."""
    shares = fields.get(key)
    if shares is None:
        return [_SPARSITY] * min(_SPARSE_LAYERS, n_layers) + [0.0] * (n_layers - _SPARSE_LAYERS)
    if not isinstance(shares, np.ndarray) or len(shares) != n_layers:
        fields.fail(key, shares, f"a list of {n_layers}")
    deviations = [float(x) for x in shares]  # of a share of 0 they are minus infinity
    return [NormalDist().cdf(x) if np.isfinite(x) else 0.0 for x in deviations]


def _with_mlps(
    config: ModelConfig, widths: Sequence[int], sparsity: Sequence[float]
) -> ModelConfig:
    layers: list[LayerConfig] = [
        dataclasses.replace(config.layer(i), intermediate_size=width, gate_sparsity=share)
        for i, (width, share) in enumerate(zip(widths, sparsity, strict=True))
    ]
    return dataclasses.replace(config, layers=tuple(layers))


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies."""
    return {
        name: Weight(shape, *_places(config, name)) for name, shape in altup_shapes(config).items()
    }


def _places(config: ModelConfig, name: str) -> tuple[SourceWeight, SourceWeight]:
    kind, _, number = name.removesuffix(".weight").partition(".")
    if kind in ("altup_projections", "altup_unembed_projections"):
        theirs = kind.replace("projections", "proj").replace("unembed", "unembd")
        return SourceWeight(f"model.{name}"), SourceWeight(f"{theirs}.weight", entry=int(number))
    return layer_input_weight(config, name, _IN_HF, _IN_GGUF)
