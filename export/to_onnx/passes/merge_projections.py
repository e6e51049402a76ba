"""Projections of one input become one node."""

from __future__ import annotations

from dataclasses import replace

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.linear_node import MAX_MATRICES, LinearNode, linear_nodes
from edgedec.export.to_onnx.make import make_node, make_tensor
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto


def merge_projections(model: ModelProto) -> None:
    """Merges plain Linears that read the same value, of one part of a layer (q, k, v; gate, up).

    Before:
        Linear(x, -, -, Wq, bq);  Linear(x, -, -, Wk, bk);  Linear(x, -, -, Wv, bv)
    After:
        Split(Linear(x, -, -, Wq, bq, Wk, bk, Wv, bv), [Nq, Nk, Nv])
    """
    editor = GraphEditor(model)
    groups: dict[tuple[str, str], list[tuple[NodeProto, LinearNode]]] = {}
    for node, linear in linear_nodes(editor):
        if not linear.residual and not linear.norm_weight:
            part = linear.matrices[0].weight.removesuffix(".weight").rpartition(".")[0]
            groups.setdefault((linear.x, part), []).append((node, linear))
    for group in groups.values():
        if 1 < len(group) <= MAX_MATRICES:
            _merge(editor, [node for node, _ in group], [linear for _, linear in group])
    editor.finish()


def _merge(editor: GraphEditor, nodes: list[NodeProto], linears: list[LinearNode]) -> None:
    matrices = tuple(matrix for linear in linears for matrix in linear.matrices)
    joined = replace(linears[0], output=f"{linears[0].output}.joined", matrices=matrices)
    sizes = make_tensor(
        f"{joined.output}.sizes", TensorProto.INT64, [len(linears)], [m.n_out for m in linears]
    )
    editor.graph.initializer.append(sizes)
    split = make_node(
        "Split",
        [joined.output, sizes.name],
        [linear.output for linear in linears],
        name=f"{joined.output}.split",
        axis=-1,
    )
    editor.replace(nodes, [joined.write(), split])
