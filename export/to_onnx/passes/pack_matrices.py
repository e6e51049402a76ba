"""Matrices become packed bytes, read by our own operators."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from edgedec.export.to_onnx.graph import GraphEditor, attributes, external_tensor
from edgedec.export.to_onnx.linear_node import DOMAIN, LinearMatrix, LinearNode
from edgedec.kernels import packed_nbytes
from edgedec.models.quant import QuantFormat


def pack_matrices(model: onnx.ModelProto, formats: Mapping[str, QuantFormat]) -> None:
    """Replaces every read of a weight matrix; one tied tensor serves both operators.

    Before:
        MatMul(x, W f32 [K, N]);  Transpose(Gather(W f32 [K, N], ids, axis=1), [1, 2, 0])
    After:
        Linear(x, -, -, W uint8 [bytes]);  Embed(ids, W uint8 [bytes])
    """
    editor = GraphEditor(model)
    for node in editor.nodes("MatMul"):
        if (weight := editor.initializers.get(node.input[1])) is not None:
            k, n = weight.dims
            matrix = LinearMatrix(weight.name, formats[weight.name].index, n)
            linear = LinearNode(node.output[0], node.input[0], k, (matrix,))
            editor.replace([node], [linear.write()])
    for node in editor.nodes("Gather"):
        if (table := editor.initializers.get(node.input[0])) is not None:
            transpose = editor.only_reader(node.output[0], "Transpose")
            assert transpose is not None
            assert attributes(transpose)["perm"] == [1, 2, 0]
            editor.replace([node, transpose], [_embed(node, transpose, table, formats)])
    editor.finish()
    _pack_initializers(model, formats)
    if all(opset.domain != DOMAIN for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _embed(
    gather: onnx.NodeProto,
    transpose: onnx.NodeProto,
    table: onnx.TensorProto,
    formats: Mapping[str, QuantFormat],
) -> onnx.NodeProto:
    k, n = table.dims
    return helper.make_node(
        "Embed",
        [gather.input[1], table.name],
        [transpose.output[0]],
        name=transpose.name,
        domain=DOMAIN,
        format=formats[table.name].index,
        n=n,
        k=k,
    )


def _pack_initializers(model: onnx.ModelProto, formats: Mapping[str, QuantFormat]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in formats:
            k, n = tensor.dims
            nbytes = packed_nbytes(formats[tensor.name].index, n, k)
            tensor.CopyFrom(external_tensor(tensor.name, TensorProto.UINT8, [nbytes]))
