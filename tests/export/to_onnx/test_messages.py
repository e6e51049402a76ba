"""ONNX's messages as edgedec states them, against the onnx package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from edgedec.export.to_onnx import make, messages

OTHER_NAMES = {
    "TensorTypeProto": "TypeProto.Tensor",
    "DimensionProto": "TensorShapeProto.Dimension",
}
"""Messages that onnx states inside others."""


def stated(kind: Any) -> dict[str, tuple[Any, ...]]:
    """Returns what a message's description says of each field; enumerations count as int32."""
    return {
        field.name: (
            field.number,
            field.TYPE_INT32 if field.enum_type else field.type,
            field.is_repeated,
            field.is_packed,
        )
        for field in kind.fields
    }


def reached(kind: Any, seen: dict[str, Any]) -> dict[str, Any]:
    """Returns a message's description and those of all that it holds, by name."""
    seen[kind.name] = kind
    for field in kind.fields:
        if field.message_type and field.message_type.name not in seen:
            reached(field.message_type, seen)
    return seen


def test_fields_and_values_are_those_of_onnx() -> None:
    ours = reached(messages.ModelProto.DESCRIPTOR, {})
    assert len(ours) == 13
    for name, kind in ours.items():
        theirs: Any = onnx
        for part in OTHER_NAMES.get(name, name).split("."):
            theirs = getattr(theirs, part)
        expected = stated(theirs.DESCRIPTOR)
        for field, facts in stated(kind).items():
            assert expected[field] == facts, f"{name}.{field}"
        for enum in kind.enum_types:
            values = getattr(theirs, enum.name)
            for value in enum.values:
                assert values.Value(value.name) == value.number


def test_what_the_schema_leaves_out_survives(tmp_path: Path) -> None:
    model = helper.make_model(helper.make_graph([], "g", [], []))
    model.training_info.add().algorithm.name = "kept"
    model.graph.quantization_annotation.add().tensor_name = "kept"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    messages.save_model(messages.load_model(path), path)
    assert onnx.load(path) == model


def node_pairs() -> Iterator[tuple[Any, Any]]:
    cases: list[dict[str, Any]] = [
        {}, {"i": 3}, {"f": 0.1}, {"s": "tännh"}, {"b": b"\xff"}, {"none": None}, {"yes": True},
        {"ints": [1, -2]}, {"floats": (0.5, 2.0)}, {"strings": ["a", b"b"]}, {"n": np.int64(7)},
    ]  # fmt: skip
    for attributes in cases:
        for name, domain in (("", ""), ("n", "edgedec")):
            ours = make.make_node("Op", ["x", ""], ["y"], name, domain, **attributes)
            yield (
                ours,
                helper.make_node(
                    "Op", ["x", ""], ["y"], name or None, domain=domain or None, **attributes
                ),
            )


def test_nodes_are_those_of_the_package() -> None:
    for ours, theirs in node_pairs():
        assert onnx.NodeProto.FromString(ours.SerializeToString()) == theirs
        values = [make.attribute_value(attribute) for attribute in ours.attribute]
        assert values == [helper.get_attribute_value(attribute) for attribute in theirs.attribute]


@pytest.mark.parametrize("dims", [(), (1, "T"), ("n_past", 4, 0)])
def test_ports_are_those_of_the_package(dims: tuple[int | str, ...]) -> None:
    made = make.make_port("x", messages.TensorProto.FLOAT16, dims)
    expected = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, dims)
    assert onnx.ValueInfoProto.FromString(made.SerializeToString()) == expected


def test_a_model_is_that_of_the_package() -> None:
    """With a function, a graph in an attribute and an initializer."""

    def build(m: Any, model: Any, tensor: Any, graph: Any, ports: Any, opset: Any) -> Any:
        body = graph([m("Neg", ["x"], ["y"])], "body", [], [])
        nodes = [m("If", ["c"], ["z"], body=body, value=tensor, several=[tensor, tensor])]
        return model(graph(nodes, "g", ports, ports, [tensor]), opset)

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours = build(
        make.make_node,
        lambda graph, opset: make.make_model(
            graph, [opset], 11, [make.make_function("d", "F", ["x"], ["y"], [], [opset])]
        ),
        make.tensor_of(values, "w"),
        make.make_graph,
        [make.make_port("c", messages.TensorProto.BOOL, ())],
        make.make_opset("", 23),
    )
    theirs = build(
        helper.make_node,
        lambda graph, opset: helper.make_model(
            graph,
            opset_imports=[opset],
            ir_version=11,
            functions=[helper.make_function("d", "F", ["x"], ["y"], [], [opset])],
            producer_name="edgedec",
        ),
        numpy_helper.from_array(values, "w"),
        helper.make_graph,
        [helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, ())],
        helper.make_opsetid("", 23),
    )
    found = onnx.ModelProto.FromString(ours.SerializeToString())
    assert found == theirs


@given(
    dtype=st.sampled_from(sorted(make._ELEMENTS, key=str)),
    dims=st.lists(st.integers(0, 3), max_size=3),
    seed=st.integers(0, 99),
)
def test_tensors_read_back(dtype: np.dtype[Any], dims: list[int], seed: int) -> None:
    """By the package, and by us; from values of another type, too."""
    values = np.random.default_rng(seed).integers(0, 2, dims).astype(dtype)
    for made in (
        make.tensor_of(values, "t"),
        make.make_tensor("t", make.element_of(dtype), dims, values.astype(int).tolist()),
    ):
        theirs = onnx.TensorProto.FromString(made.SerializeToString())
        for read in (numpy_helper.to_array(theirs), make.array_of(made)):
            assert read.dtype == dtype
            np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("value", [object(), [], [1, "a"], [object()], {"a": 1}])
def test_attributes_of_other_kinds_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="attribute odd: got"):
        make.make_attribute("odd", value)
