"""Classes of protobuf messages, from a schema in the words of .proto files.

The library that reads and writes the bytes is `protobuf`; no generated code and no package of the
format's own is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_FIELD = re.compile(r"(repeated |)([\w.]+) (\w+) = (\d+)(?: \[(packed|default) = ([\w.-]+)\])?")
_PRIMITIVE = frozenset({
    "bool", "bytes", "double", "float", "int32", "int64", "string", "uint64",
})  # fmt: skip


def message_classes(
    package: str, messages: Mapping[str, str], enums: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, Any]:
    """Returns the classes of a schema, by name.

    Args:
        messages: name of a message -> its fields, as ``string name = 1; repeated Part parts = 2``,
            ``[packed = true]`` or ``[default = 3]`` behind them. Fields that are left out are kept
            when a message is read and written.
        enums: ``Message.Enum`` -> names of the values 0, 1, 2 ... Its fields have type int32.

    Raises:
        ValueError: The schema cannot be read.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name=f"edgedec/{package}.proto", package=package, syntax="proto2"
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in _fields(fields, package):
            message.field.add(**field)
        for path, values in (enums or {}).items():
            owner, _, enum = path.partition(".")
            if owner == name:
                kind = message.enum_type.add(name=enum)
                for number, value in enumerate(values):
                    kind.value.add(name=value, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in messages}
    return {name: message_factory.GetMessageClass(kind) for name, kind in classes.items()}


def _fields(text: str, package: str) -> Iterator[dict[str, Any]]:
    """Yields what `FieldDescriptorProto` takes for each field of a message."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Kinds

    for line in text.split(";"):
        match = _FIELD.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"got the field '{line.strip()}', expected 'type name = number'")
        repeated, kind, name, number, option, value = match.groups()
        label = Kinds.LABEL_REPEATED if repeated else Kinds.LABEL_OPTIONAL
        field = {"name": name, "number": int(number), "label": label}
        if kind in _PRIMITIVE:
            field["type"] = Kinds.Type.Value(f"TYPE_{kind.upper()}")
        else:
            field.update(type=Kinds.TYPE_MESSAGE, type_name=f".{package}.{kind}")
        if option == "default":
            field["default_value"] = value
        elif option == "packed":
            field["options"] = {"packed": value == "true"}
        yield field
