"""The `edgedec.Linear` node as a value: read one, change fields, write it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from edgedec.export.to_onnx.graph import GraphEditor, attributes
from edgedec.export.to_onnx.make import make_node, make_opset
from edgedec.export.to_onnx.messages import ModelProto, NodeProto
from edgedec.models.graph import LAYER_GATES

DOMAIN = "edgedec"
MAX_MATRICES = 3

_GATES_PORT = 3 + 2 * MAX_MATRICES


@dataclass(frozen=True)
class LinearMatrix:
    """One packed matrix [n, k] of a Linear. ``bias`` may be empty."""

    weight: str
    format: int
    n: int
    bias: str = ""


@dataclass(frozen=True)
class LinearNode:
    """``concat_i(W_i norm(x) + b_i) + residual``, or ``silu(W_0 h) * (W_1 h)``.

    Empty names mean absent inputs. gate_index: entry of the layer gates that decides whether the
    node runs; -1 when it always does.
    """

    output: str
    x: str
    k: int
    matrices: tuple[LinearMatrix, ...]
    norm_weight: str = ""
    epsilon: float = 0.0
    residual: str = ""
    is_gated: bool = False
    gate_index: int = -1

    @property
    def n_out(self) -> int:
        """Size of a row of the output."""
        return self.matrices[0].n if self.is_gated else sum(m.n for m in self.matrices)

    @classmethod
    def read(cls, node: NodeProto) -> Self:
        """Returns what ``node`` says."""
        a = attributes(node)
        inputs = [*node.input, ""]  # the last bias may be left out
        pairs = list(zip(inputs[3::2], inputs[4::2], strict=False))[: len(a["n"])]
        matrices = tuple(
            LinearMatrix(weight, fmt, n, bias)
            for (weight, bias), fmt, n in zip(pairs, a["formats"], a["n"], strict=True)
        )
        return cls(
            node.output[0], inputs[0], a["k"], matrices, inputs[1], a["epsilon"], inputs[2],
            bool(a["gate"]), a["gate_index"],
        )  # fmt: skip

    def write(self) -> NodeProto:
        """Returns the node."""
        inputs = [self.x, self.norm_weight, self.residual]
        for matrix in self.matrices:
            inputs += [matrix.weight, matrix.bias]
        if self.gate_index >= 0:
            inputs += [""] * (_GATES_PORT - len(inputs)) + [LAYER_GATES]
        while not inputs[-1]:
            inputs.pop()
        return make_node(
            "Linear",
            inputs,
            [self.output],
            name="+".join(m.weight.removesuffix(".weight") for m in self.matrices),
            domain=DOMAIN,
            formats=[m.format for m in self.matrices],
            n=[m.n for m in self.matrices],
            k=self.k,
            epsilon=self.epsilon,
            gate=int(self.is_gated),
            gate_index=self.gate_index,
        )


def linear_nodes(editor: GraphEditor) -> list[tuple[NodeProto, LinearNode]]:
    """Returns every Linear of the graph, with what it says."""
    return [(node, LinearNode.read(node)) for node in editor.nodes("Linear")]


def import_domain(model: ModelProto) -> None:
    """Lets ``model`` have edgedec's own operators."""
    if all(opset.domain != DOMAIN for opset in model.opset_import):
        model.opset_import.append(make_opset(DOMAIN, 1))
