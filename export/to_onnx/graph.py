"""A small editor over ONNX graphs: who makes a value, who reads it, replace these by those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from graphlib import TopologicalSorter
from typing import Any

from edgedec.export.to_onnx.make import attribute_value, set_entries
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto, ValueInfoProto
from edgedec.export.weights_file import WEIGHTS_FILE


def external_tensor(name: str, element: int, dims: Sequence[int]) -> TensorProto:
    """Returns an initializer whose bytes will be in `WEIGHTS_FILE`; their place is not yet known.

    ``element`` is an `TensorProto` data type.
    """
    tensor = TensorProto(name=name, data_type=element, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    place(tensor, {"location": WEIGHTS_FILE})
    return tensor


def place(tensor: TensorProto, entries: dict[str, str]) -> None:
    """Sets where the external bytes of ``tensor`` are."""
    set_entries(tensor.external_data, entries)


def port_names(values: Iterable[ValueInfoProto]) -> tuple[str, ...]:
    """Returns the names of a graph's inputs or outputs."""
    return tuple(value.name for value in values)


def attributes(node: NodeProto) -> dict[str, Any]:
    """Returns the attributes of ``node`` as Python values."""
    return {a.name: attribute_value(a) for a in node.attribute}


class GraphEditor:
    """One pass's view of the main graph of ``model``. Edits reach the model on `finish`."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.initializers = {t.name: t for t in self.graph.initializer}
        self._outputs = {value.name for value in self.graph.output}
        self._nodes: dict[int, NodeProto] = {}
        self._producer: dict[str, NodeProto] = {}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            self._insert(node)

    def nodes(self, op_type: str) -> list[NodeProto]:
        """Returns the present nodes of one operator, a snapshot."""
        return [node for node in self._nodes.values() if node.op_type == op_type]

    def has(self, node: NodeProto) -> bool:
        """Says whether no edit has removed ``node``."""
        return id(node) in self._nodes

    def producer(self, value: str, op_type: str) -> NodeProto | None:
        """Returns the node that makes ``value`` if it is an ``op_type``."""
        node = self._producer.get(value)
        return node if node is not None and node.op_type == op_type else None

    def readers(self, value: str) -> list[NodeProto]:
        """Returns the nodes that read ``value``."""
        return list(self._readers.get(value, ()))

    def is_output(self, value: str) -> bool:
        """Says whether ``value`` is an output of the graph."""
        return value in self._outputs

    def only_reader(self, value: str, op_type: str) -> NodeProto | None:
        """Returns the single reader of a value nobody else needs, if it is an ``op_type``."""
        readers = self._readers.get(value, [])
        if self.is_output(value) or len(readers) != 1 or readers[0].op_type != op_type:
            return None
        return readers[0]

    def replace(self, old: Iterable[NodeProto], new: Iterable[NodeProto]) -> None:
        """Removes the nodes ``old`` and adds ``new``; the order is mended on `finish`."""
        for node in old:
            del self._nodes[id(node)]
            for value in node.output:
                del self._producer[value]
            for value in set(node.input):
                self._readers[value] = [n for n in self._readers[value] if n is not node]
        for node in new:
            self._insert(node)

    def finish(self) -> None:
        """Writes the nodes back, each after the makers of its inputs, under names of their own."""
        makers = {
            key: [id(self._producer[v]) for v in node.input if v in self._producer]
            for key, node in self._nodes.items()
        }
        nodes = [self._nodes[key] for key in TopologicalSorter(makers).static_order()]
        n_named: Counter[str] = Counter()
        for node in nodes:
            n_named[node.name] += 1
            if (n := n_named[node.name]) > 1:
                node.name = f"{node.name}.{n}"
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def _insert(self, node: NodeProto) -> None:
        self._nodes[id(node)] = node
        for value in node.output:
            self._producer[value] = node
        for value in set(node.input):
            self._readers.setdefault(value, []).append(node)


def op_counts(model: ModelProto) -> Counter[str]:
    """Returns how many nodes of each operator ``model`` has."""
    return Counter(node.op_type for node in model.graph.node)
