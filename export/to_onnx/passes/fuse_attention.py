"""Attention reads and writes KV caches that stay where they are."""

from __future__ import annotations

from typing import Any

from edgedec.export.kv_panels import kv_place
from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.export.to_onnx.make import element_of, make_node, make_port
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto, ValueInfoProto
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    ATTENTION_BIAS,
    K_CACHE,
    K_RING,
    PARENTS,
    RING_SEQUENCES,
    SEQUENCE_FIELDS,
    SEQUENCES,
    V_CACHE,
    V_RING,
    is_past_port,
    layer_of_past,
    present_port,
)
from edgedec.models.kv_formats import kv_panels_of


def fuse_attention(model: ModelProto, config: ModelConfig) -> None:
    """Replaces rotation, attention and the KV cache in and out of every layer.

    Before:
        q, k, v = Split(qkv)
        Attention(Rotary(q), Rotary(k), v, attention_bias, past_key, past_value)
            -> y, present_key, present_value
        Where(..., attention_bias) in place of attention_bias for a layer with a window
        (or Attention(Rotary(norm(q)), Rotary(norm(k)), v, ...), whose qkv is then a Concat)
        (or, with sinks, Attention(Rotary(q), Rotary(k), v,
            Concat(Expand(Reshape(sinks)), Expand(attention_bias)), Concat(zeros, past_key),
            Concat(zeros, past_value)), the row of zeros cut off what comes out)
    After:
        Attention(qkv, position_ids, parents, sequences, cos, sin, k_cache, v_cache) -> y
        where the last T of the P parents belong to the rows of qkv, the others to nodes of the
        pending tree whose keys and values are in the KV cache. All layers share
        k_cache f16 [L, n_kv_heads, capacity / 16, head_size, 16] and
        v_cache f16 [L, n_kv_heads, capacity, head_size], written in place; but those with a window
        share ring_sequences, k_ring and v_ring, which are alike. Scale, softcap and window are
        attributes, where the layer has them. Sinks are an input behind that of the layer gates.
    """
    editor = GraphEditor(model)
    for attend in editor.nodes("Attention"):
        _fuse_layer(editor, attend, config)
    editor.finish()
    _replace_interface(model, config)


def _fuse_layer(editor: GraphEditor, attend: NodeProto, config: ModelConfig) -> None:
    rotations = [editor.producer(value, "RotaryEmbedding") for value in attend.input[:2]]
    q, k = [node for node in rotations if node is not None]
    _, cos, sin, position_ids = q.input
    heads = attributes(attend)
    longer = editor.producer(attend.input[4], "Concat")
    layer = layer_of_past(attend.input[4] if longer is None else longer.input[1])
    sinks, around = _sinks(editor, attend)
    of_layer: dict[str, Any] = {
        "scale": heads.get("scale"),
        "softcap": heads.get("softcap"),
        "window": config.layer(layer).window or None,
    }
    place = kv_place(config, layer)
    split, joined, qkv = _join(editor, [q.input[0], k.input[0], attend.input[2]], attend.name)
    fused = make_node(
        "Attention",
        [qkv, position_ids, PARENTS, place.sequences, cos, sin, *place.caches, *sinks],
        [attend.output[0]],
        name=attend.name,
        domain=DOMAIN,
        layer=place.layer,
        n_heads=heads["q_num_heads"],
        n_kv_heads=heads["kv_num_heads"],
        head_size=config.head_size,
        **of_layer,
    )
    editor.replace([*split, q, k, attend, *around], [*joined, fused])


def _sinks(editor: GraphEditor, attend: NodeProto) -> tuple[list[str], list[NodeProto]]:
    """Returns the inputs that the sinks of ``attend`` become, and the nodes they no longer need."""
    bias = editor.producer(attend.input[3], "Concat")
    if bias is None:
        return [], []
    scores = editor.producer(bias.input[0], "Expand")
    column = scores and editor.producer(scores.input[0], "Reshape")
    assert scores is not None
    assert column is not None
    longer = [editor.producer(value, "Concat") for value in attend.input[4:6]]
    cuts = [editor.only_reader(value, "Slice") for value in attend.output[1:]]
    around = [bias, scores, column, *longer, *cuts]
    return ["", column.input[0]], [node for node in around if node is not None]


def _join(
    editor: GraphEditor, parts: list[str], name: str
) -> tuple[list[NodeProto], list[NodeProto], str]:
    """Returns the nodes to remove, the nodes to add, and the value that is q, k and v in a row.

    Where something happens to q or k between projection and rotation, they are joined again.
    """
    split = editor.producer(parts[2], "Split")
    if split is not None and list(split.output) == parts:
        return [split], [], split.input[0]
    qkv = f"{name}.qkv"
    return [], [make_node("Concat", parts, [qkv], name=qkv, axis=-1)], qkv


def _replace_interface(model: ModelProto, config: ModelConfig) -> None:
    graph = model.graph
    replaced = {ATTENTION_BIAS} | {v.name for v in graph.input if is_past_port(v.name)}
    kept = [v for v in graph.input if v.name not in replaced]
    added = [
        make_port(PARENTS, TensorProto.INT64, (1, "P")),
        *kv_cache_inputs(config, "float16"),
    ]
    past = {present_port(v.name) for v in graph.input if is_past_port(v.name)}
    outputs = [v for v in graph.output if v.name not in past]
    del graph.input[:], graph.output[:]
    graph.input.extend([*kept, *added])
    graph.output.extend(outputs)


def kv_cache_inputs(config: ModelConfig, kv_format: str) -> list[ValueInfoProto]:
    """Returns the inputs of sequences, and of keys and values, which are written in place."""
    n_rings = len(config.windowed_layers)
    inputs = [
        _sequences_input(SEQUENCES),
        *_panel_inputs(
            config,
            kv_format,
            (K_CACHE, V_CACHE),
            len(config.attention_layers) - n_rings,
            "capacity",
        ),
    ]
    if n_rings:
        inputs.append(_sequences_input(RING_SEQUENCES))
        inputs += _panel_inputs(config, kv_format, (K_RING, V_RING), n_rings, "ring")
    return inputs


def _sequences_input(name: str) -> ValueInfoProto:
    return make_port(name, TensorProto.INT64, (f"n_{name}", SEQUENCE_FIELDS))


def _panel_inputs(
    config: ModelConfig, kv_format: str, names: tuple[str, str], n_layers: int, size: str
) -> list[ValueInfoProto]:
    heads, d = (n_layers, config.n_kv_heads), config.head_size
    panels = kv_panels_of(kv_format)
    element = element_of(panels.element)
    return [
        make_port(name, element, (*heads, *shape))
        for name, shape in zip(names, panels.shapes(f"{size}/16", size, d), strict=True)
    ]
