"""Matrices become packed bytes, read by our own operators."""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.export.to_onnx.graph import GraphEditor, attributes, external_tensor
from edgedec.export.to_onnx.linear_node import DOMAIN, LinearMatrix, LinearNode, import_domain
from edgedec.export.to_onnx.make import make_node
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto
from edgedec.kernels import packed_nbytes
from edgedec.models.quant import QuantFormat


def pack_matrices(model: ModelProto, formats: Mapping[str, QuantFormat]) -> None:
    """Replaces every read of a weight matrix; one tied tensor serves both operators.

    Before:
        MatMul(x, W f32 [K, N]);  Transpose(Gather(W f32 [K, N], ids, axis=1), [1, 2, 0])
    After:
        Linear(x, -, -, W uint8 [bytes]);  Embed(ids, W uint8 [bytes])
    """
    editor = GraphEditor(model)
    for node in editor.nodes("MatMul"):
        weight = editor.initializers.get(node.input[1])
        if weight is not None and _is_matrix(weight):
            k, n = weight.dims
            matrix = LinearMatrix(weight.name, formats[weight.name].index, n)
            linear = LinearNode(node.output[0], node.input[0], k, (matrix,))
            editor.replace([node], [linear.write()])
    for node in editor.nodes("Gather"):
        table = editor.initializers.get(node.input[0])
        if table is not None and table.name in formats:
            transpose = editor.only_reader(node.output[0], "Transpose")
            assert transpose is not None
            assert attributes(transpose)["perm"] == [1, 2, 0]
            editor.replace([node, transpose], [_embed(node, transpose, table, formats)])
    editor.finish()
    _pack_initializers(model, formats)
    import_domain(model)


def _embed(
    gather: NodeProto,
    transpose: NodeProto,
    table: TensorProto,
    formats: Mapping[str, QuantFormat],
) -> NodeProto:
    k, n = table.dims
    return make_node(
        "Embed",
        [gather.input[1], table.name],
        [transpose.output[0]],
        name=transpose.name,
        domain=DOMAIN,
        format=formats[table.name].index,
        n=n,
        k=k,
    )


def _pack_initializers(model: ModelProto, formats: Mapping[str, QuantFormat]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in formats and _is_matrix(tensor):
            k, n = tensor.dims
            nbytes = packed_nbytes(formats[tensor.name].index, n, k)
            tensor.CopyFrom(external_tensor(tensor.name, TensorProto.UINT8, [nbytes]))


def _is_matrix(tensor: TensorProto) -> bool:
    """Says whether ``tensor`` is one plain matrix: not those of experts, nor packed already."""
    return len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT
