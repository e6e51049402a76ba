"""Attention reads and writes KV caches that stay where they are."""

from __future__ import annotations

from typing import Any

from edgedec.export.kv_panels import KV_FORMAT, kv_place
from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.key_offsets import remove_key_offsets
from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.export.to_onnx.make import element_of, make_attribute, make_node, make_port
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
    SOURCE_BIAS,
    SOURCES,
    V_CACHE,
    V_RING,
    is_past_port,
    layer_of_past,
    past_port,
    present_port,
)
from edgedec.models.kv_formats import kv_panels_of


def fuse_attention(model: ModelProto, config: ModelConfig, kv_format: str) -> None:
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
        (or, of a layer with another's keys, Reshape(Transpose(Attention(
            Transpose(Reshape(Rotary(q))), present_key, present_value, attention_bias))))
    After:
        Attention(qkv, position_ids, parents, sequences, cos, sin, k_cache, v_cache) -> y
        where the last T of the P parents belong to the rows of qkv, the others to nodes of the
        pending tree whose keys and values are in the KV cache. All layers share
        k_cache f16 [L, n_kv_heads, capacity / 16, head_size, 16] and
        v_cache f16 [L, n_kv_heads, capacity, head_size], written in place; but those with a window
        share ring_sequences, k_ring and v_ring, which are alike. Those are float16's; `KVPanels`
        says the shapes of other formats. The format's number is the attribute kv_format. Scale,
        softcap and window are attributes, where the layer has them. Sinks are an input behind that
        of the layer gates. A layer with another's keys reads q alone, and runs behind that one:
        shares_kv=1. So does attention to a source, whose bias is source_bias: sees_source=1. Where
        texts have sources, `sources` is an input behind those; and a table behind that where biases
        are looked up. Rows of a masked model see all nodes: sees_all=1.
    """
    editor = GraphEditor(model)
    for attend in editor.nodes("Attention"):
        apart = editor.producer(attend.input[0], "Transpose")
        if apart is None:
            _fuse_layer(editor, attend, config, kv_format)
        else:
            _fuse_shared(editor, attend, apart, config, kv_format)
    editor.finish()
    _replace_interface(model, config, kv_format)


def set_kv_format(model: ModelProto, config: ModelConfig, kv_format: str) -> None:
    """Gives the KV cache of a fused graph another format: nodes that state one, and the inputs.

    Offsets of keys go: those are for formats of codes.
    """
    remove_key_offsets(model)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == KV_FORMAT:
                attribute.i = kv_panels_of(kv_format).index
    new = {value.name: value for value in kv_cache_inputs(config, kv_format)}
    for value in model.graph.input:
        if value.name in new:
            value.CopyFrom(new[value.name])


def _fuse_layer(
    editor: GraphEditor, attend: NodeProto, config: ModelConfig, kv_format: str
) -> None:
    rotations = [editor.producer(value, "RotaryEmbedding") for value in attend.input[:2]]
    q, k = [node for node in rotations if node is not None]
    longer = editor.producer(attend.input[4], "Concat")
    layer = layer_of_past(attend.input[4] if longer is None else longer.input[1])
    sinks, around = _sinks(editor, attend)
    split, joined, qkv = _join(editor, [q.input[0], k.input[0], attend.input[2]], attend.name)
    fused = _attention(config, kv_format, layer, attend, q)
    fused.input[0] = qkv
    fused.input.extend(sinks)
    if config.encoder is not None:
        fused.input.extend(["", "", SOURCES, *_distance_table(editor, attend)])
    editor.replace([*split, q, k, attend, *around], [*joined, fused])


def _fuse_shared(
    editor: GraphEditor, attend: NodeProto, apart: NodeProto, config: ModelConfig, kv_format: str
) -> None:
    """Fuses attention over another layer's keys; ``apart`` puts the heads of its queries apart."""
    rows = editor.producer(apart.input[0], "Reshape")
    assert rows is not None
    q = editor.producer(rows.input[0], "RotaryEmbedding")
    by_row = editor.only_reader(attend.output[0], "Transpose")
    assert q is not None
    assert by_row is not None
    joined = editor.only_reader(by_row.output[0], "Reshape")
    assert joined is not None
    layers = {present_port(past_port(i, "key")): i for i in config.kv_layers}
    fused = _attention(config, kv_format, layers[attend.input[1]], attend, q)
    fused.output[0] = joined.output[0]
    fused.attribute.append(make_attribute("shares_kv", 1))
    if attend.input[3] == SOURCE_BIAS:
        fused.attribute.append(make_attribute("sees_source", 1))
        fused.input.extend(["", "", SOURCES])
    editor.replace([q, rows, apart, attend, by_row, joined], [fused])


def _attention(
    config: ModelConfig, kv_format: str, layer: int, attend: NodeProto, q: NodeProto
) -> NodeProto:
    """Returns the operator over the keys and values of ``layer``, which reads what ``q`` does."""
    place, (x, cos, sin, position_ids) = kv_place(config, layer), q.input
    of_node = attributes(attend)
    of_layer: dict[str, Any] = {
        "scale": of_node.get("scale"),
        "softcap": of_node.get("softcap"),
        "window": config.layer(layer).window or None,
        "sees_all": int(config.is_bidirectional and not config.layer(layer).is_causal) or None,
        KV_FORMAT: kv_panels_of(kv_format).index,
    }
    return make_node(
        "Attention",
        [x, position_ids, PARENTS, place.sequences, cos, sin, *place.caches],
        [attend.output[0]],
        name=attend.name,
        domain=DOMAIN,
        layer=place.layer,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_size=config.head_size_of(layer),
        **of_layer,
    )


def _distance_table(editor: GraphEditor, attend: NodeProto) -> list[str]:
    """Returns the table whose rows are added to scores by distance, if there is one."""
    value, bias = attend.input[3], None
    for op_type in ("Add", "Squeeze", "Transpose", "Gather"):
        if (bias := editor.producer(value, op_type)) is None:
            return []
        value = bias.input[0]
    return [value]


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


def _replace_interface(model: ModelProto, config: ModelConfig, kv_format: str) -> None:
    graph = model.graph
    replaced = {ATTENTION_BIAS, SOURCE_BIAS} | {v.name for v in graph.input if is_past_port(v.name)}
    kept = [v for v in graph.input if v.name not in replaced]
    added = [
        make_port(PARENTS, TensorProto.INT64, (1, "P")),
        *kv_cache_inputs(config, kv_format),
    ]
    if config.encoder is not None:
        added.append(make_port(SOURCES, TensorProto.INT64, ("n_sources",)))
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
            len(config.kv_layers) - n_rings,
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
    heads, d = (n_layers, config.n_kv_heads), config.kv_head_size(is_ring=size == "ring")
    panels = kv_panels_of(kv_format)
    element = element_of(panels.element)
    return [
        make_port(name, element, (*heads, *shape))
        for name, shape in zip(names, panels.shapes(f"{size}/16", size, d), strict=True)
    ]
