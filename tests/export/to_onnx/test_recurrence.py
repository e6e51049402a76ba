"""Recurrences in standard operators against NumPy, in ONNX Runtime and onnx's own evaluator."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from edgedec.export.to_onnx.emit import IR_VERSION, OPSET
from edgedec.export.to_onnx.make import make_graph, make_model, make_node, make_opset, make_port
from edgedec.export.to_onnx.messages import TensorProto
from edgedec.export.to_onnx.recurrence import DOMAIN, VECTORS, state_space
from edgedec.models.recurrence import Recurrence, state_outputs, state_walk

onnx = pytest.importorskip("onnx", reason="needs the dev extra")
reference = pytest.importorskip("onnx.reference")

Array = npt.NDArray[Any]
MAMBA = Recurrence("mamba2", 4, n_heads=6, head_size=5, n_groups=3, state_size=7)
DELTA = dataclasses.replace(MAMBA, kind="delta", conv_size=3)
RECURRENCES = {
    "mamba2": MAMBA,
    "mamba2, one group, biases": dataclasses.replace(MAMBA, n_groups=1, has_conv_bias=True),
    "delta": DELTA,
    "delta, heads apart": dataclasses.replace(DELTA, is_tiled=True),
}
N_BEFORE = 9
TREE = [-1, -1, 0, 1, 1, 2, 4, 4]
CHAIN = list(range(-1, 7))


@pytest.fixture(params=list(RECURRENCES))
def own(request: pytest.FixtureRequest) -> Recurrence:
    return RECURRENCES[request.param]


def vectors_of(own: Recurrence, rng: np.random.Generator) -> dict[str, Array]:
    """Draws the weights, under their names and in their order."""
    sizes = dict.fromkeys(VECTORS, (own.n_heads,))
    sizes["conv.weight"] = (own.conv_channels, 1, own.conv_size)
    sizes["conv.bias"] = (own.conv_channels,)
    left_out = {"conv.bias"} - ({"conv.bias"} if own.has_conv_bias else set())
    if own.kind == "delta":
        left_out.add("skip")
    return {
        name: rng.standard_normal(sizes[name]).astype(np.float32)
        for name in VECTORS
        if name not in left_out
    }


def graph_of(own: Recurrence, vectors: dict[str, Array]) -> bytes:
    """Returns a model that calls the function alone."""
    function = state_space(OPSET, own, list(vectors))
    made = ["taps", "trunk", "levels", "order"]
    inputs = [
        make_port(name, TensorProto.INT64 if name in made else TensorProto.FLOAT, ())
        for name in function.input
    ]
    outputs = [make_port(name, TensorProto.FLOAT, ()) for name in function.output]
    for port in (*inputs, *outputs):
        port.type.tensor_type.ClearField("shape")
    call = make_node(function.name, function.input, function.output, domain=DOMAIN)
    return make_model(
        make_graph([call], "g", inputs, outputs),
        [make_opset("", OPSET), make_opset(DOMAIN, 1)],
        IR_VERSION,
        [function],
    ).SerializeToString()


def run(
    session: Any,
    own: Recurrence,
    rows: Array,
    vectors: dict[str, Array],
    state: Array,
    walk: tuple[Array, ...],
    n_new: int,
) -> list[Array]:
    """Returns outputs [T, H * P], rows and the state that a pass over the last rows leaves."""
    names = list(state_space(OPSET, own, list(vectors)).input)
    new = rows[None, -n_new:]
    parts = np.split(new, np.arange(own.conv_channels, own.row_size, own.n_heads), axis=-1)
    feeds = dict(zip(names, [*parts, rows[None, :-n_new], walk[0], state], strict=False))
    feeds |= dict(zip(("trunk", "levels", "order"), walk[1:], strict=True))
    feeds |= dict(zip(names[len(feeds) :], vectors.values(), strict=True))
    y, present, left = session.run(None, feeds)
    np.testing.assert_array_equal(present[0], rows)
    return [y[0], left]


@pytest.mark.parametrize("parents", [TREE, CHAIN], ids=["tree", "chain"])
@pytest.mark.parametrize("n_known", [0, 3])
def test_outputs_and_states(own: Recurrence, parents: list[int], n_known: int) -> None:
    """A pass behind a state of some tokens, which replays the others, as all from the beginning."""
    rng = np.random.default_rng(1)
    vectors, before = vectors_of(own, rng), own.look_back
    graph = graph_of(own, vectors)
    session = onnxruntime.InferenceSession(graph)
    n = len(parents)
    rows = rng.standard_normal((before + N_BEFORE + n, own.row_size)).astype(np.float32)
    rows[:before] = 0
    expected = state_outputs(own, rows[before:], parents, vectors)
    state = np.zeros((own.n_heads, own.state_size, own.head_size), np.float32)
    base, is_chain = 5, parents == CHAIN
    first = state_walk(range(-1, base - 1), 0, 0, True, own.conv_size)
    _, state = run(session, own, rows[: before + base], vectors, state, first, base)
    walk = state_walk(parents, n_known, N_BEFORE - base, is_chain, own.conv_size)
    y, left = run(session, own, rows[base:], vectors, state, walk, n - n_known)
    np.testing.assert_allclose(y, expected[n_known:], atol=1e-4)
    if not is_chain:  # the evaluator has no loops of no step
        other = reference.ReferenceEvaluator(onnx.load_model_from_string(graph))
        theirs = run(other, own, rows[base:], vectors, state, walk, n - n_known)
        np.testing.assert_allclose(theirs[0], y, atol=1e-5)
        np.testing.assert_allclose(theirs[1], left, atol=1e-5)
    # The state that is left stands for the rows before it.
    n_in = N_BEFORE + (n if is_chain else 0)
    more = rng.standard_normal((1, own.row_size)).astype(np.float32)
    longer = np.concatenate([rows[: before + n_in], more])
    wanted = state_outputs(own, longer[before:], [-1], vectors)
    step = state_walk([-1], 0, 0, False, own.conv_size)
    y, _ = run(session, own, longer[n_in:], vectors, left, step, 1)
    np.testing.assert_allclose(y, wanted, atol=1e-4)


def test_the_walk_of_a_tree() -> None:
    taps, trunk, levels, order = state_walk(TREE, 2, 2, False, 3)
    assert trunk.tolist() == [0, 1]
    assert levels.tolist() == [
        [[2, 3, 2 - 2], [4, 5, 6], [7, 8, 9]],
        [[0, 0, 0], [0, 1, 1], [0, 2, 2]],
    ]
    assert order.tolist() == [2 + 3, 2 + 4, 2 + 5, 2 + 6, 2 + 7, 2 + 8]
    assert taps[-1].tolist() == [2 + 3, 2 + 6, 2 + 9]
