"""The residual stream is added where the projection onto it is made."""

from __future__ import annotations

from dataclasses import replace

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.linear_node import LinearNode
from edgedec.export.to_onnx.messages import ModelProto


def fold_residual(model: ModelProto) -> None:
    """Moves the addition of the residual stream into the Linear before it.

    Before:
        Add(x, Linear(y, -, -, W))
    After:
        Linear(y, -, x, W)
    """
    editor = GraphEditor(model)
    for add in editor.nodes("Add"):
        stream, product = add.input
        node = editor.producer(product, "Linear")
        if node is None or editor.only_reader(product, "Add") is None:
            continue
        linear = LinearNode.read(node)
        if linear.residual or linear.is_gated:
            continue
        folded = replace(linear, output=add.output[0], residual=stream)
        editor.replace([node, add], [folded.write()])
    editor.finish()
