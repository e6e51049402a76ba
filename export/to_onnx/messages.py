"""ONNX's messages, and files of them, without the onnx package: it takes 28 MB with what it needs.

Source: onnx ``onnx-ml.proto`` (names and numbers of fields and values), Apache-2.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.export.protobuf import message_classes

_MESSAGES = {
    "ModelProto": "int64 ir_version = 1; string producer_name = 2; string producer_version = 3; "
    "string domain = 4; int64 model_version = 5; string doc_string = 6; GraphProto graph = 7; "
    "repeated OperatorSetIdProto opset_import = 8; "
    "repeated StringStringEntryProto metadata_props = 14; repeated FunctionProto functions = 25",
    "GraphProto": "repeated NodeProto node = 1; string name = 2; "
    "repeated TensorProto initializer = 5; string doc_string = 10; "
    "repeated ValueInfoProto input = 11; repeated ValueInfoProto output = 12; "
    "repeated ValueInfoProto value_info = 13",
    "FunctionProto": "string name = 1; repeated string input = 4; repeated string output = 5; "
    "repeated string attribute = 6; repeated NodeProto node = 7; string doc_string = 8; "
    "repeated OperatorSetIdProto opset_import = 9; string domain = 10",
    "NodeProto": "repeated string input = 1; repeated string output = 2; string name = 3; "
    "string op_type = 4; repeated AttributeProto attribute = 5; string doc_string = 6; "
    "string domain = 7",
    "AttributeProto": "string name = 1; float f = 2; int64 i = 3; bytes s = 4; TensorProto t = 5; "
    "GraphProto g = 6; repeated float floats = 7; repeated int64 ints = 8; "
    "repeated bytes strings = 9; repeated TensorProto tensors = 10; "
    "repeated GraphProto graphs = 11; int32 type = 20",
    "TensorProto": "repeated int64 dims = 1; int32 data_type = 2; "
    "repeated float float_data = 4 [packed = true]; repeated int32 int32_data = 5 [packed = true]; "
    "repeated bytes string_data = 6; repeated int64 int64_data = 7 [packed = true]; "
    "string name = 8; bytes raw_data = 9; repeated double double_data = 10 [packed = true]; "
    "repeated uint64 uint64_data = 11 [packed = true]; string doc_string = 12; "
    "repeated StringStringEntryProto external_data = 13; int32 data_location = 14",
    "ValueInfoProto": "string name = 1; TypeProto type = 2; string doc_string = 3",
    "TypeProto": "TensorTypeProto tensor_type = 1",
    "TensorTypeProto": "int32 elem_type = 1; TensorShapeProto shape = 2",
    "TensorShapeProto": "repeated DimensionProto dim = 1",
    "DimensionProto": "int64 dim_value = 1; string dim_param = 2",
    "OperatorSetIdProto": "string domain = 1; int64 version = 2",
    "StringStringEntryProto": "string key = 1; string value = 2",
}

_ENUMS = {
    "AttributeProto.AttributeType": (
        "UNDEFINED", "FLOAT", "INT", "STRING", "TENSOR", "GRAPH",
        "FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS",
    ),
    "TensorProto.DataType": (
        "UNDEFINED", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING",
        "BOOL", "FLOAT16", "DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16",
        "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4",
    ),
    "TensorProto.DataLocation": ("DEFAULT", "EXTERNAL"),
}  # fmt: skip

if TYPE_CHECKING:  # the package states the same messages to type checkers
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        OperatorSetIdProto,
        StringStringEntryProto,
        TensorProto,
        ValueInfoProto,
    )
else:
    globals().update(message_classes("edgedec.onnx", _MESSAGES, _ENUMS))

__all__ = [
    "AttributeProto", "FunctionProto", "GraphProto", "ModelProto", "NodeProto",
    "OperatorSetIdProto", "StringStringEntryProto", "TensorProto", "ValueInfoProto",
    "load_model", "save_model",
]  # fmt: skip


def load_model(path: Path) -> ModelProto:
    """Returns the model in a file; bytes that lie in other files stay there.

    Raises:
        OSError: The file cannot be read.
        google.protobuf.message.DecodeError: It holds no model.
    """
    model = ModelProto()
    model.ParseFromString(path.read_bytes())
    return model


def save_model(model: ModelProto, path: Path) -> None:
    """Writes the model.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_bytes(model.SerializeToString())
