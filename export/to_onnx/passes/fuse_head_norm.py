"""The norms of the heads of queries and of keys become one node."""

from __future__ import annotations

from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.export.to_onnx.make import make_node
from edgedec.export.to_onnx.messages import ModelProto, NodeProto
from edgedec.models.config import ModelConfig


def fuse_head_norm(model: ModelProto, config: ModelConfig) -> None:
    """Norms the heads where they lie, so that attention still reads q, k and v in a row.

    Before:
        q, k, v = Split(qkv);  Reshape(RMSNormalization(Reshape(q), gq)) -> q'
                               Reshape(RMSNormalization(Reshape(k), gk)) -> k'
    After:
        q', k', v = Split(HeadNorm(qkv, gq, gk))
    """
    editor = GraphEditor(model)
    for split in editor.nodes("Split"):
        norms = [_norm_of(editor, value) for value in split.output]
        match norms:
            case [[*q, q_last], [*k, k_last], []] if q and k:
                normed = f"{split.name}.normed"
                fused = make_node(
                    "HeadNorm",
                    [split.input[0], q[1].input[1], k[1].input[1]],
                    [normed],
                    name=normed,
                    domain=DOMAIN,
                    n_heads=config.n_heads,
                    n_kv_heads=config.n_kv_heads,
                    epsilon=attributes(q[1])["epsilon"],
                )
                again = NodeProto()
                again.CopyFrom(split)
                again.input[0] = normed
                again.output[:] = [q_last.output[0], k_last.output[0], split.output[2]]
                editor.replace([split, *q, q_last, *k, k_last], [fused, again])
    editor.finish()


def _norm_of(editor: GraphEditor, value: str) -> list[NodeProto]:
    """Returns the nodes that norm the heads of ``value`` if nothing else reads it, in order."""
    found: list[NodeProto] = []
    for op_type in ("Reshape", "RMSNormalization", "Reshape"):
        if (node := editor.only_reader(value, op_type)) is None:
            return []
        found.append(node)
        value = node.output[0]
    return found
