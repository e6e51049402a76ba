"""Encoders whose rows are texts' hidden states: the recipe of BERT's kind, norms behind sub-layers.

Source: arXiv:1810.04805; transformers ``modeling_bert.py`` (Apache-2.0).
"""

from __future__ import annotations

from typing import TypeVar

from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig

T = TypeVar("T")


def post_norm_encoder(ops: Ops[T], config: ModelConfig, first_position: int = 0) -> T:
    """Returns the hidden states of the selected rows.

    first_position: row of the table of positions that the first token has.
    """
    x = ops.add(
        ops.embed("embed_tokens.weight"),
        ops.embed_positions("embed_positions.weight", first_position),
    )
    x = _norm(ops, ops.shift_channels(x, "token_type"), "embed_norm")
    for layer in range(config.n_layers):
        x = _layer(ops, layer, x)
    return ops.select_rows(x)


def _layer(ops: Ops[T], layer: int, x: T) -> T:
    attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
    q, k, v = (_linear(ops, x, f"{attention}.{part}_proj") for part in "qkv")
    heads = ops.attention(q, k, v, layer)
    x = _norm(ops, ops.add(x, _linear(ops, heads, f"{attention}.o_proj")), f"{attention}.norm")
    inner = ops.activate(_linear(ops, x, f"{mlp}.up_proj"))
    return _norm(ops, ops.add(x, _linear(ops, inner, f"{mlp}.down_proj")), f"{mlp}.norm")


def _linear(ops: Ops[T], x: T, stem: str) -> T:
    return ops.linear(x, f"{stem}.weight", f"{stem}.bias")


def _norm(ops: Ops[T], x: T, stem: str) -> T:
    return ops.layer_norm(x, f"{stem}.weight", f"{stem}.bias")


def post_norm_shapes(config: ModelConfig, n_positions: int) -> dict[str, tuple[int, ...]]:
    """Returns every weight that `post_norm_encoder` reads, with its shape (matrices [N, K]).

    n_positions: rows of the table of positions.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, hidden),
        "embed_positions.weight": (n_positions, hidden),
        "token_type": (hidden,),
        **_pair("embed_norm", (hidden,), hidden),
    }
    for layer in range(config.n_layers):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes |= _pair(f"{attention}.{part}", (hidden, hidden), hidden)
        shapes |= _pair(f"{attention}.norm", (hidden,), hidden)
        shapes |= _pair(f"{mlp}.up_proj", (inner, hidden), inner)
        shapes |= _pair(f"{mlp}.down_proj", (hidden, inner), hidden)
        shapes |= _pair(f"{mlp}.norm", (hidden,), hidden)
    return shapes


def _pair(stem: str, shape: tuple[int, ...], n: int) -> dict[str, tuple[int, ...]]:
    return {f"{stem}.weight": shape, f"{stem}.bias": (n,)}


def pre_norm_encoder(ops: Ops[T], config: ModelConfig) -> T:
    """Returns the hidden states of the selected rows: ModernBERT's recipe, without biases.

    The norm of the embeddings is that of the first layer's attention.

    Source: arXiv:2412.13663; transformers ``modeling_modernbert.py`` (Apache-2.0).
    """
    x = ops.layer_norm(ops.embed("embed_tokens.weight"), "embed_norm.weight")
    for layer in range(config.n_layers):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        h = ops.layer_norm(x, f"{attention}.norm.weight") if layer else x
        q, k, v = (ops.linear(h, f"{attention}.{part}_proj.weight") for part in "qkv")
        heads = ops.attention(q, k, v, layer)
        x = ops.add(x, ops.linear(heads, f"{attention}.o_proj.weight"))
        h = ops.layer_norm(x, f"{mlp}.norm.weight")
        gate, up = (ops.linear(h, f"{mlp}.{part}_proj.weight") for part in ("gate", "up"))
        x = ops.add(x, ops.linear(ops.gate(gate, up), f"{mlp}.down_proj.weight"))
    return ops.layer_norm(ops.select_rows(x), "norm.weight")


def pre_norm_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns every weight that `pre_norm_encoder` reads, with its shape (matrices [N, K])."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, hidden),
        "embed_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config.n_layers):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{attention}.{part}.weight"] = (hidden, hidden)
        for part in ("gate_proj", "up_proj"):
            shapes[f"{mlp}.{part}.weight"] = (inner, hidden)
        shapes[f"{mlp}.down_proj.weight"] = (hidden, inner)
        if layer:
            shapes[f"{attention}.norm.weight"] = (hidden,)
        shapes[f"{mlp}.norm.weight"] = (hidden,)
    return shapes
