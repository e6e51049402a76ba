"""Attention reads and writes KV caches that stay where they are."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper

from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.kernels import PANEL, kv_block_nbytes
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    INPUT_IDS,
    K_CACHE,
    LOGIT_ROWS,
    PARENTS,
    PAST_LENGTH,
    POSITION_IDS,
    V_CACHE,
    KVFormat,
    is_past_port,
    layer_of_past,
    present_port,
)


def fuse_attention(model: onnx.ModelProto, config: ModelConfig) -> None:
    """Replaces rotation, attention and the KV cache in and out of every layer.

    Before:
        q, k, v = Split(qkv)
        Attention(Rotary(q), Rotary(k), v, attention_bias, past_key, past_value)
            -> y, present_key, present_value
        Where(..., attention_bias) in place of attention_bias for a layer with a window
        (or Attention(Rotary(norm(q)), Rotary(norm(k)), v, ...), whose qkv is then a Concat)
    After:
        Attention(qkv, position_ids, parents, past_length, cos, sin, k_cache, v_cache) -> y
        where the last T of the P parents belong to the rows of qkv, the others to nodes of the
        pending tree whose keys and values are in the KV cache. All layers share
        k_cache f16 [L, n_kv_heads, capacity / 16, head_size, 16] and
        v_cache f16 [L, n_kv_heads, capacity, head_size], written in place. Scale, softcap and
        window are attributes, where the layer has them.
    """
    editor = GraphEditor(model)
    for attend in editor.nodes("Attention"):
        _fuse_layer(editor, attend, config)
    editor.finish()
    _replace_interface(model, config)


def _fuse_layer(editor: GraphEditor, attend: onnx.NodeProto, config: ModelConfig) -> None:
    rotations = [editor.producer(value, "RotaryEmbedding") for value in attend.input[:2]]
    q, k = [node for node in rotations if node is not None]
    _, cos, sin, position_ids = q.input
    heads = attributes(attend)
    layer = layer_of_past(attend.input[4])
    of_layer: dict[str, Any] = {
        "scale": heads.get("scale"),
        "softcap": heads.get("softcap"),
        "window": config.layer(layer).window or None,
    }
    split, joined, qkv = _join(editor, [q.input[0], k.input[0], attend.input[2]], attend.name)
    fused = helper.make_node(
        "Attention",
        [qkv, position_ids, PARENTS, PAST_LENGTH, cos, sin, K_CACHE, V_CACHE],
        [attend.output[0]],
        name=attend.name,
        domain=DOMAIN,
        layer=layer,
        n_heads=heads["q_num_heads"],
        n_kv_heads=heads["kv_num_heads"],
        head_size=config.head_size,
        **of_layer,
    )
    editor.replace([*split, q, k, attend], [*joined, fused])


def _join(
    editor: GraphEditor, parts: list[str], name: str
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto], str]:
    """Returns the nodes to remove, the nodes to add, and the value that is q, k and v in a row.

    Where something happens to q or k between projection and rotation, they are joined again.
    """
    split = editor.producer(parts[2], "Split")
    if split is not None and list(split.output) == parts:
        return [split], [], split.input[0]
    qkv = f"{name}.qkv"
    return [], [helper.make_node("Concat", parts, [qkv], name=qkv, axis=-1)], qkv


def _replace_interface(model: onnx.ModelProto, config: ModelConfig) -> None:
    graph = model.graph
    kept = [v for v in graph.input if v.name in (INPUT_IDS, POSITION_IDS, LOGIT_ROWS)]
    added = [
        helper.make_tensor_value_info(PARENTS, TensorProto.INT64, (1, "P")),
        helper.make_tensor_value_info(PAST_LENGTH, TensorProto.INT64, (1,)),
        *kv_cache_inputs(config, "float16"),
    ]
    past = {present_port(v.name) for v in graph.input if is_past_port(v.name)}
    outputs = [v for v in graph.output if v.name not in past]
    del graph.input[:], graph.output[:]
    graph.input.extend([*kept, *added])
    graph.output.extend(outputs)


def kv_cache_inputs(config: ModelConfig, kv_format: KVFormat) -> list[onnx.ValueInfoProto]:
    """Returns the graph's inputs of keys and of values, which are written in place."""
    heads, d = (config.n_layers, config.n_kv_heads), config.head_size
    if kv_format == "int8":
        blocks = (*heads, "capacity/16", kv_block_nbytes(d))
        return [
            helper.make_tensor_value_info(name, TensorProto.UINT8, blocks)
            for name in (K_CACHE, V_CACHE)
        ]
    keys, values = (*heads, "capacity/16", d, PANEL), (*heads, "capacity", d)
    return [
        helper.make_tensor_value_info(K_CACHE, TensorProto.FLOAT16, keys),
        helper.make_tensor_value_info(V_CACHE, TensorProto.FLOAT16, values),
    ]
