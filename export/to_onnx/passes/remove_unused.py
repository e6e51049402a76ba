"""Whatever no output needs goes away."""

from __future__ import annotations

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.messages import ModelProto


def remove_unused(model: ModelProto) -> None:
    """Removes nodes and initializers nobody reads.

    Before:
        y = Linear(x, ...);  z = Neg(y);  sizes = [4, 2, 2];  outputs: y
    After:
        y = Linear(x, ...);  outputs: y
    """
    editor = GraphEditor(model)
    for node in reversed(list(model.graph.node)):
        if not any(editor.readers(value) or editor.is_output(value) for value in node.output):
            editor.replace([node], [])
    editor.finish()
    used = [t for t in model.graph.initializer if editor.readers(t.name)]
    del model.graph.initializer[:]
    model.graph.initializer.extend(used)
