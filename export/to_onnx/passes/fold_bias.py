"""A bias is added where its product is made."""

from __future__ import annotations

from dataclasses import replace

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.linear_node import linear_nodes
from edgedec.export.to_onnx.messages import ModelProto


def fold_bias(model: ModelProto) -> None:
    """Moves the addition of a constant vector into the Linear before it.

    Before:
        Add(Linear(x, -, -, W), b f32 [N])
    After:
        Linear(x, -, -, W, b)
    """
    editor = GraphEditor(model)
    for node, linear in linear_nodes(editor):
        add = editor.only_reader(linear.output, "Add")
        if add is None or add.input[1] not in editor.initializers:
            continue
        (matrix,) = linear.matrices
        folded = replace(
            linear, output=add.output[0], matrices=(replace(matrix, bias=add.input[1]),)
        )
        editor.replace([node, add], [folded.write()])
    editor.finish()
