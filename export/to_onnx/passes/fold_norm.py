"""A norm is computed by the projection that reads it."""

from __future__ import annotations

from dataclasses import replace

from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.linear_node import LinearNode
from edgedec.export.to_onnx.messages import ModelProto


def fold_norm(model: ModelProto) -> None:
    """Moves a norm whose only reader is a Linear into it.

    Before:
        Linear(RMSNormalization(x, g), -, -, W...)
    After:
        Linear(x, g, -, W...)
    """
    editor = GraphEditor(model)
    for norm in editor.nodes("RMSNormalization"):
        reader = editor.only_reader(norm.output[0], "Linear")
        if reader is None:
            continue
        x, weight = norm.input
        folded = replace(
            LinearNode.read(reader), x=x, norm_weight=weight, epsilon=attributes(norm)["epsilon"]
        )
        editor.replace([norm, reader], [folded.write()])
    editor.finish()
