"""The norms of the heads of queries, of keys and of values become one node."""

from __future__ import annotations

from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.export.to_onnx.make import make_attribute, make_node
from edgedec.export.to_onnx.messages import ModelProto, NodeProto
from edgedec.models.config import ModelConfig

_QUERIES = "q_norm"


def fuse_head_norm(model: ModelProto, config: ModelConfig) -> None:
    """Norms the heads where they lie, so that attention still reads q, k and v in a row.

    Before:
        q, k, v = Split(qkv);  Reshape(RMSNormalization(Reshape(q), gq)) -> q'
                               Reshape(RMSNormalization(Reshape(k), gk)) -> k'
    After:
        q', k', v = Split(HeadNorm(qkv, gq, gk))
        (likewise with v', whose norm has ones for weights: value_norm=1; and of queries alone)
    """
    editor = GraphEditor(model)
    for split in editor.nodes("Split"):
        norms = [_norm_of(editor, value) for value in split.output]
        match norms:
            case [[*q, q_last], [*k, k_last], v] if q and k:
                weights = q[1].input[1], k[1].input[1]
                fused = _head_norm(config, split.input[0], weights, config.n_kv_heads, q[1])
                if v:
                    fused.attribute.append(make_attribute("value_norm", 1))
                again = NodeProto()
                again.CopyFrom(split)
                again.input[0] = fused.output[0]
                last = v[-1] if v else None
                value = split.output[2] if last is None else last.output[0]
                again.output[:] = [q_last.output[0], k_last.output[0], value]
                editor.replace([split, *q, q_last, *k, k_last, *v], [fused, again])
    for linear in editor.nodes("Linear"):
        if norm := _norm_of(editor, value := linear.output[0]):
            weight = norm[1].input[1]
            if f".{_QUERIES}." not in weight:
                continue
            fused = _head_norm(config, value, (weight, weight), 0, norm[1])
            fused.output[0] = norm[-1].output[0]
            editor.replace(norm, [fused])
    editor.finish()


def _head_norm(
    config: ModelConfig, x: str, weights: tuple[str, str], n_kv_heads: int, norm: NodeProto
) -> NodeProto:
    name = f"{x}.normed"
    return make_node(
        "HeadNorm",
        [x, *weights],
        [name],
        name=name,
        domain=DOMAIN,
        n_heads=config.n_heads,
        n_kv_heads=n_kv_heads,
        epsilon=attributes(norm)["epsilon"],
    )


def _norm_of(editor: GraphEditor, value: str) -> list[NodeProto]:
    """Returns the nodes that norm the heads of ``value`` if nothing else reads it, in order."""
    norms: list[NodeProto] = []
    for op_type in ("Reshape", "RMSNormalization", "Reshape"):
        if (node := editor.only_reader(value, op_type)) is None:
            return []
        norms.append(node)
        value = node.output[0]
    return norms
