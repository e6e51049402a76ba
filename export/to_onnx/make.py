"""Parts of ONNX models made from Python values, and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.to_onnx.messages import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)

Array = npt.NDArray[np.generic]

_ELEMENTS: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint16): TensorProto.UINT16,
    np.dtype(np.int16): TensorProto.INT16,
    np.dtype(np.uint32): TensorProto.UINT32,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.uint64): TensorProto.UINT64,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.bool_): TensorProto.BOOL,
}
_DTYPES = {element: dtype for dtype, element in _ELEMENTS.items()}

_KINDS = (
    (int, AttributeProto.INT, AttributeProto.INTS),
    ((float, np.floating), AttributeProto.FLOAT, AttributeProto.FLOATS),
    (bytes, AttributeProto.STRING, AttributeProto.STRINGS),
    (TensorProto, AttributeProto.TENSOR, AttributeProto.TENSORS),
    (GraphProto, AttributeProto.GRAPH, AttributeProto.GRAPHS),
)
"""A type of Python, and the type of an attribute that is one such value, or a list of them."""
_LISTS = frozenset(several for _, _, several in _KINDS)
_FIELDS: dict[int, str] = {
    AttributeProto.INT: "i", AttributeProto.INTS: "ints",
    AttributeProto.FLOAT: "f", AttributeProto.FLOATS: "floats",
    AttributeProto.STRING: "s", AttributeProto.STRINGS: "strings",
    AttributeProto.TENSOR: "t", AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPH: "g", AttributeProto.GRAPHS: "graphs",
}  # fmt: skip
"""Type of an attribute -> the field that has its value."""


def element_of(dtype: npt.DTypeLike) -> int:
    """Returns the `TensorProto` data type of a NumPy type; KeyError if ONNX has none."""
    return _ELEMENTS[np.dtype(dtype)]


def make_tensor(name: str, element: int, dims: Sequence[int], values: npt.ArrayLike) -> TensorProto:
    """Returns a tensor [dims] of ``values``, turned into the data type ``element``."""
    return tensor_of(np.asarray(values, _DTYPES[element]).reshape(dims), name)


def tensor_of(values: Array, name: str = "") -> TensorProto:
    """Returns a tensor that holds ``values``."""
    element = element_of(values.dtype)
    tensor = TensorProto(name=name or None, data_type=element, dims=values.shape)
    tensor.raw_data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return tensor


def array_of(tensor: TensorProto) -> Array:
    """Returns the values of a tensor that `tensor_of` or `make_tensor` made."""
    dtype = _DTYPES[tensor.data_type].newbyteorder("<")
    return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))


def make_attribute(name: str, value: Any) -> AttributeProto:
    """Returns an attribute: a number, text, tensor, graph, or a sequence of one of these.

    Raises:
        TypeError: The value is none of these, or a sequence of none or of several kinds.
    """
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    elements = value if is_list else [value]
    values = [_plain(element) for element in elements]
    kinds = {kind for element in values for kind in _KINDS if isinstance(element, kind[0])}
    if len(kinds) != 1:
        raise TypeError(f"attribute {name}: got {value!r}, expected values of one kind")
    _, single, several = kinds.pop()
    kind = several if is_list else single
    fields: dict[str, Any] = {_FIELDS[kind]: values if is_list else values[0]}
    return AttributeProto(name=name, type=kind, **fields)


def _plain(value: Any) -> Any:
    """Returns a value as protobuf takes it."""
    if isinstance(value, str):
        return value.encode()
    return int(value) if isinstance(value, (bool, np.integer)) else value


def attribute_value(attribute: AttributeProto) -> Any:
    """Returns an attribute's value; text is bytes, a sequence a list."""
    value = getattr(attribute, _FIELDS[attribute.type])
    return list(value) if attribute.type in _LISTS else value


def make_node(
    op_type: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    name: str = "",
    domain: str = "",
    **attributes: Any,
) -> NodeProto:
    """Returns a node; attributes that are None are left out."""
    node = NodeProto(
        op_type=op_type, input=inputs, output=outputs, name=name or None, domain=domain or None
    )
    present = ((key, value) for key, value in sorted(attributes.items()) if value is not None)
    node.attribute.extend(make_attribute(key, value) for key, value in present)
    return node


def make_port(name: str, element: int, dims: Iterable[int | str]) -> ValueInfoProto:
    """Returns an input or output of a graph; a name stands for a size that passes differ in."""
    port = ValueInfoProto(name=name)
    tensor = port.type.tensor_type
    tensor.elem_type = element
    tensor.shape.SetInParent()  # no sizes at all are a scalar's shape
    for size in dims:
        tensor.shape.dim.add(**{"dim_param" if isinstance(size, str) else "dim_value": size})
    return port


def make_opset(domain: str, version: int) -> OperatorSetIdProto:
    """Returns the version of a domain's operators, "" for ONNX's own."""
    return OperatorSetIdProto(domain=domain, version=version)


def make_function(
    domain: str,
    name: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    nodes: Iterable[NodeProto],
    opsets: Iterable[OperatorSetIdProto],
) -> FunctionProto:
    """Returns a function that nodes of its name and domain call."""
    return FunctionProto(
        domain=domain, name=name, input=inputs, output=outputs, node=nodes, opset_import=opsets
    )


def make_model(
    graph: GraphProto,
    opsets: Iterable[OperatorSetIdProto],
    ir_version: int,
    functions: Iterable[FunctionProto] = (),
) -> ModelProto:
    """Returns a model of edgedec's."""
    return ModelProto(
        graph=graph,
        opset_import=opsets,
        ir_version=ir_version,
        functions=functions,
        producer_name="edgedec",
    )


def make_graph(
    nodes: Iterable[NodeProto],
    name: str,
    inputs: Iterable[ValueInfoProto],
    outputs: Iterable[ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
) -> GraphProto:
    """Returns a graph; each node comes after the makers of its inputs."""
    return GraphProto(node=nodes, name=name, input=inputs, output=outputs, initializer=initializers)


def set_entries(field: Any, entries: Mapping[str, str]) -> None:
    """Makes a repeated field of keys and values hold ``entries`` alone."""
    del field[:]
    for key, value in entries.items():
        field.add(key=key, value=value)
