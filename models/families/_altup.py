"""AltUp, LAuReL and inputs of layers: the recipe of Gemma 3n.

A token has several residual streams. A layer computes on one of them; what the others become is
predicted beforehand and corrected afterwards, by how far the prediction of that one was off. Beside
attention there is a product of low rank.

Source: arXiv:2301.13310 (AltUp), arXiv:2411.07501 (LAuReL); transformers ``modeling_gemma3n.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from edgedec.models.blocks import (
    Ops,
    add_attention,
    decoder_head,
    decoder_shapes,
    embedded,
    mlp_half,
)
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.layer_inputs import layer_input_shapes, layer_inputs, of_layer_input

T = TypeVar("T")


def altup_decoder(ops: Ops[T], config: ModelConfig, layer_gates: Sequence[bool] | None = None) -> T:
    """Returns the logits of the selected rows.

    Of the hidden states between layers those of the stream are noted on which layers compute.

    Raises:
        UnsupportedModelError: Sub-layers shall be left out.
    """
    if layer_gates is not None:
        raise UnsupportedModelError(f"{config.family} has no sub-layers that can be left out")
    x = embedded(ops, config)
    inputs = layer_inputs(ops, config, x)
    others = range(1, config.n_streams)
    streams = [
        x, *(ops.match_size(ops.linear(x, f"{_project(i)}.weight"), x) for i in others)
    ]  # fmt: skip
    for layer in range(config.n_layers):
        streams = _layer(ops, config, layer, streams, inputs[layer])
        if layer + 1 < config.n_layers:
            ops.hidden(streams[0], layer + 1)
    x = streams[0]
    for i in others:
        back = ops.linear(streams[i], f"{_project(i, 'unembed_')}.weight")
        x = ops.add(x, ops.match_size(back, streams[0]))
    x = ops.scale(x, 1 / config.n_streams)
    ops.hidden(x, config.n_layers)
    return decoder_head(ops, config, x)


def _project(stream: int, kind: str = "") -> str:
    return f"altup_{kind}projections.{stream - 1}"


def _layer(
    ops: Ops[T], config: ModelConfig, layer: int, streams: Sequence[T], layer_input: T
) -> list[T]:
    """Returns what ``layer`` makes of all streams."""
    prefix = f"layers.{layer}"
    weights = ops.linear(
        _routed(ops, config, layer, streams[0]), f"{prefix}.altup.prediction_coefs.weight"
    )
    predicted = ops.mix(streams, streams, weights)
    x = predicted[0]
    h = ops.rms_norm(x, f"{prefix}.input_layernorm.weight")
    x = ops.add(add_attention(ops, config, layer, x, h), _laurel(ops, layer, h))
    x = mlp_half(ops, config, layer, ops.scale(x, 2**-0.5))
    off = ops.add(x, ops.scale(predicted[0], -1.0))
    weights = ops.linear(_routed(ops, config, layer, x), f"{prefix}.altup.correction_coefs.weight")
    corrected = ops.mix([ops.add(prediction, off) for prediction in predicted], [off], weights)
    scaled = ops.scale_channels(corrected[0], f"{prefix}.altup.correct_output_scale")
    added = of_layer_input(ops, layer, scaled, layer_input)
    return [corrected[0], *(ops.add(correction, added) for correction in corrected[1:])]


def _routed(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Returns what the weights between streams are made of [T, n_streams]."""
    prefix = f"layers.{layer}.altup"
    normed = ops.rms_norm(x, f"{prefix}.router_norm.weight")
    return ops.tanh(
        ops.scale(ops.linear(normed, f"{prefix}.router.weight"), 1 / config.hidden_size)
    )


def _laurel(ops: Ops[T], layer: int, h: T) -> T:
    """Returns ``h`` plus a product of low rank."""
    prefix = f"layers.{layer}.laurel"
    y = ops.linear(ops.linear(h, f"{prefix}.linear_left.weight"), f"{prefix}.linear_right.weight")
    return ops.add(h, ops.rms_norm(y, f"{prefix}.post_laurel_norm.weight"))


def altup_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns every weight that `altup_decoder` reads, with its shape (matrices [N, K])."""
    hidden, n = config.hidden_size, config.n_streams
    shapes = decoder_shapes(config) | layer_input_shapes(config)
    for i in range(1, n):
        shapes |= {f"{_project(i, kind)}.weight": (hidden, hidden) for kind in ("", "unembed_")}
    if n == 1:
        return shapes
    for i in range(config.n_layers):
        altup, laurel = f"layers.{i}.altup", f"layers.{i}.laurel"
        shapes |= {
            f"{altup}.router_norm.weight": (hidden,),
            f"{altup}.router.weight": (n, hidden),
            f"{altup}.prediction_coefs.weight": (n * n, n),
            f"{altup}.correction_coefs.weight": (n, n),
            f"{altup}.correct_output_scale": (hidden,),
            f"{laurel}.linear_left.weight": (config.laurel_rank, hidden),
            f"{laurel}.linear_right.weight": (hidden, config.laurel_rank),
            f"{laurel}.post_laurel_norm.weight": (hidden,),
        }
    return shapes
