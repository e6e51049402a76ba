"""The files a graph reads, against the onnx package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgedec.models.errors import BundleError
from edgedec.models.onnx_locations import locations, locations_in

pytestmark = pytest.mark.robustness


def external(name: str, location: str) -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "12")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def graph_with(tensors: list[TensorProto], nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    graph = helper.make_graph(nodes, "g", [], [])
    graph.initializer.extend(tensors)
    return graph


def test_every_place_of_a_tensor_is_found(tmp_path: Path) -> None:
    inner = graph_with([external("a", "inner.bin")], [])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=external("b", "constant.bin")),
        helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=graph_with([], [])),
        helper.make_node("Odd", [], ["z"], many=[external("d", "list.bin")]),
    ]
    graph = graph_with([external("w", "weights.bin"), external("v", "../up.bin")], nodes)
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(external("s", "sparse.bin"))
    model = helper.make_model(graph)
    function = model.functions.add(name="f", domain="d")
    function.node.append(helper.make_node("C", [], ["q"], value=external("e", "function.bin")))
    expected = {
        "inner.bin", "constant.bin", "list.bin", "weights.bin", "../up.bin", "sparse.bin",
        "function.bin",
    }  # fmt: skip
    assert locations_in(model.SerializeToString()) == expected
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert locations(tmp_path / "m.onnx") == expected


@pytest.mark.slow
def test_an_exported_graph_reads_its_weights_only(smollm2_bundle: Path) -> None:
    assert locations(smollm2_bundle / "target" / "model.onnx") == {"weights.bin"}


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_name_nothing(content: bytes) -> None:
    try:
        locations_in(content)
    except ValueError:
        return


@pytest.mark.parametrize("content", [b"\xff" * 20, b"\x3a\x05\x08", b"\x0b"])
def test_broken_graphs_are_no_graphs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(BundleError, match="is not an ONNX graph"):
        locations(tmp_path / "m.onnx")


def test_a_long_chain_of_graphs_takes_no_stack() -> None:
    content = b""
    for _ in range(3000):
        for key in (b"\x32", b"\x2a", b"\x0a"):  # attribute.g, node.attribute, graph.node
            size = len(content)
            length = b""
            while size >= 0x80:
                length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
            content = key + length + bytes([size]) + content
    assert locations_in(content) == set()
