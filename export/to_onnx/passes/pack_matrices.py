"""Matrices become packed bytes, read by our own operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from edgedec.export.to_onnx.graph import GraphEditor, attributes, external_tensor
from edgedec.export.to_onnx.linear_node import DOMAIN, LinearMatrix, LinearNode, import_domain
from edgedec.export.to_onnx.make import make_attribute, make_node
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto
from edgedec.kernels.cpu import packed_nbytes
from edgedec.models.quant import QuantFormat


def pack_matrices(model: ModelProto, formats: Mapping[str, QuantFormat]) -> None:
    """Replaces every read of a weight matrix; one tied tensor serves both operators.

    Before:
        MatMul(x, W f32 [K, N]);  Transpose(Gather(W f32 [K, N], ids, axis=1), [1, 2, 0])
        Gather(W f32 [N, K], ids, axis=0)
    After:
        Linear(x, -, -, W uint8 [bytes]);  Embed(ids, W uint8 [bytes])
        (of a table [N, K] few rows are ever read: scattered=1)
    """
    editor = GraphEditor(model)
    by_rows = set()
    for node in editor.nodes("MatMul"):
        weight = editor.initializers.get(node.input[1])
        if weight is not None and _is_matrix(weight):
            k, n = weight.dims
            matrix = LinearMatrix(weight.name, formats[weight.name].index, n)
            linear = LinearNode(node.output[0], node.input[0], k, (matrix,))
            editor.replace([node], [linear.write()])
    for node in editor.nodes("Gather"):
        table = editor.initializers.get(node.input[0])
        if table is None or table.name not in formats:
            continue
        if attributes(node)["axis"] == 0:
            by_rows.add(table.name)
            n, k = table.dims
            embed = _embed(node, node, n, k, formats[table.name])
            embed.attribute.append(make_attribute("scattered", 1))
            editor.replace([node], [embed])
        else:
            transpose = editor.only_reader(node.output[0], "Transpose")
            assert transpose is not None
            assert attributes(transpose)["perm"] == [1, 2, 0]
            k, n = table.dims
            embed = _embed(node, transpose, n, k, formats[table.name])
            editor.replace([node, transpose], [embed])
    editor.finish()
    _pack_initializers(model, formats, by_rows)
    import_domain(model)


def _embed(gather: NodeProto, last: NodeProto, n: int, k: int, fmt: QuantFormat) -> NodeProto:
    """Returns what replaces ``gather`` and all up to ``last``."""
    return make_node(
        "Embed",
        [gather.input[1], gather.input[0]],
        [last.output[0]],
        name=last.name,
        domain=DOMAIN,
        format=fmt.index,
        n=n,
        k=k,
    )


def _pack_initializers(
    model: ModelProto, formats: Mapping[str, QuantFormat], by_rows: Collection[str]
) -> None:
    """Replaces floats by bytes. by_rows: those that lie as [N, K]."""
    for tensor in model.graph.initializer:
        if tensor.name in formats and _is_matrix(tensor):
            k, n = tensor.dims[::-1] if tensor.name in by_rows else tensor.dims
            nbytes = packed_nbytes(formats[tensor.name].index, n, k)
            tensor.CopyFrom(external_tensor(tensor.name, TensorProto.UINT8, [nbytes]))


def _is_matrix(tensor: TensorProto) -> bool:
    """Says whether ``tensor`` is one plain matrix: not those of experts, nor packed already."""
    return len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT
