"""Nodes of a graph that TVM compiles: which of edgedec's operators, with which attributes.

The compiled program calls ``edgedec.run(number, inputs..., outputs...)``; the list that
`listing` writes tells kernels/src/tvm_ops.h what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from edgedec.export.weights_file import StoredTensor

Attribute: TypeAlias = int | float | tuple[int, ...]

_FLOAT, _UINT8 = 1, 2
"""Element types as the operators number them."""


@dataclass(frozen=True)
class Node:
    """One operator. inputs: ports of what changes with every call. constants: weights by port."""

    op: str
    inputs: tuple[int, ...]
    constants: Mapping[int, StoredTensor] = field(default_factory=dict)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def line(self, offsets: Mapping[str, int]) -> str:
        """Returns the node as text. offsets: of every weight in their file."""
        words = [self.op, f"inputs={_text(self.inputs)}"]
        for port, tensor in self.constants.items():
            kind = _UINT8 if tensor.is_packed else _FLOAT
            place = (kind, offsets[tensor.name], *tensor.dims)
            words.append(f"constant.{port}={_text(place)}")
        words += [f"{name}={_text(value)}" for name, value in self.attributes.items()]
        return " ".join(words)


def listing(nodes: Sequence[Node], offsets: Mapping[str, int]) -> str:
    """Returns all ``nodes`` as text, one a line, in the order of their numbers."""
    return "\n".join(node.line(offsets) for node in nodes)


def _text(value: Attribute) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value.hex() if isinstance(value, float) else str(value)
