"""What layers get of a token itself, besides the residual stream: embeddings of its own for each.

The table of these embeddings is often larger than all other weights together, and a token reads
few kilobytes of it. So it is a matrix of ``n_layers`` short rows for each token, which lie
together: what is mapped and not read takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig

T = TypeVar("T")

LAYER_TABLE = "embed_tokens_per_layer.weight"
"""The table [layer_input_tokens * n_layers, layer_input_size]."""


def layer_inputs(ops: Ops[T], config: ModelConfig, x: T) -> Sequence[T]:
    """Returns the input of every layer, of the tokens and of their embeddings ``x``."""
    size = config.layer_input_size
    of_stream = ops.scale(
        ops.linear(x, "per_layer_model_projection.weight"), config.hidden_size**-0.5
    )
    of_stream = ops.head_norm(of_stream, "per_layer_projection_norm.weight")
    of_token = ops.scale(ops.embed_layers(LAYER_TABLE), size**0.5)
    return ops.parts(ops.scale(ops.add(of_stream, of_token), 2**-0.5), config.n_layers)


def of_layer_input(ops: Ops[T], layer: int, x: T, layer_input: T) -> T:
    """Returns what ``layer`` adds to ``x`` because of its input ``layer_input``."""
    prefix = f"layers.{layer}"
    gated = ops.gate(ops.linear(x, f"{prefix}.per_layer_input_gate.weight"), layer_input)
    y = ops.linear(gated, f"{prefix}.per_layer_projection.weight")
    return ops.rms_norm(y, f"{prefix}.post_per_layer_input_norm.weight")


def layer_input_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns every weight that is read here, with its shape; none without such inputs."""
    hidden, size, n_layers = config.hidden_size, config.layer_input_size, config.n_layers
    if not size:
        return {}
    shapes: dict[str, tuple[int, ...]] = {
        LAYER_TABLE: (config.layer_input_tokens * n_layers, size),
        "per_layer_model_projection.weight": (n_layers * size, hidden),
        "per_layer_projection_norm.weight": (size,),
    }
    for i in range(n_layers):
        shapes |= {
            f"layers.{i}.per_layer_input_gate.weight": (size, hidden),
            f"layers.{i}.per_layer_projection.weight": (hidden, size),
            f"layers.{i}.post_per_layer_input_norm.weight": (hidden,),
        }
    return shapes
