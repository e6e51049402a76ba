"""The gate of an MLP is applied by the projection that makes it."""

from __future__ import annotations

from dataclasses import replace

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.linear_node import LinearNode
from edgedec.export.to_onnx.messages import ModelProto


def fuse_gate(model: ModelProto) -> None:
    """Replaces silu and product by a gated Linear.

    Before:
        g, u = Split(Linear(x, n, -, Wg, -, Wu));  Mul(Mul(g, Sigmoid(g)), u)
    After:
        Linear(x, n, -, Wg, -, Wu, gate=1)
    """
    editor = GraphEditor(model)
    for sigmoid in editor.nodes("Sigmoid"):
        gate = sigmoid.input[0]
        split = editor.producer(gate, "Split")
        silu = editor.only_reader(sigmoid.output[0], "Mul")
        if split is None or silu is None or set(silu.input) != {gate, sigmoid.output[0]}:
            continue
        product = editor.only_reader(silu.output[0], "Mul")
        linear = editor.producer(split.input[0], "Linear")
        if product is None or linear is None or list(split.output) != [gate, product.input[1]]:
            continue
        pair = LinearNode.read(linear)
        if any(matrix.bias for matrix in pair.matrices):  # which gated kernels do not add
            continue
        gated = replace(pair, output=product.output[0], is_gated=True)
        editor.replace([linear, split, sigmoid, silu, product], [gated.write()])
    editor.finish()
