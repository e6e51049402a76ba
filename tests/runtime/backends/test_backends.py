"""The ONNX Runtime backends against the NumPy reference, on tiny random models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from graph_models import contract_of, open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.families import matrices
from edgedec.models.graph import GraphContract
from edgedec.models.reference import ReferenceModel
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.backends.ort import PassRunner, open_graph
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.cpu.run_fused import FusedModel
from edgedec.targets.ort.export_contrib import emit_contrib
from edgedec.targets.portable.run_portable import PortableModel

pytestmark = pytest.mark.parity

CONTEXT = 64
TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5, 19, 20, 21]
TREE = TokenTree((30, 31, 32, 33, 34, 35), (-1, 0, 0, 2, 2, 4))
HIDDEN = (0, 2)
MakeSession = Callable[..., TokenSequence]


@pytest.fixture(scope="module")
def source(make_source: Any) -> Any:
    return make_source(has_qkv_bias=True, head_size=16)


@pytest.fixture(scope="module", params=["portable", "fused", "ort"])
def make_session(
    request: pytest.FixtureRequest, source: Any, tmp_path_factory: pytest.TempPathFactory
) -> MakeSession:
    """Returns a maker of sessions over the tiny model, threads and context to choose."""
    model = emit_portable(source.config, HIDDEN)
    formats = {name: source.format(name) for name in matrices(source.config)}
    if request.param == "fused":
        if not library.has_library():
            pytest.skip("the kernel library is not built")
        model = fuse(model, source.config, formats)
    elif request.param == "ort":
        model = emit_contrib(source.config, formats, HIDDEN)
    folder = tmp_path_factory.mktemp(request.param)
    write_weights(model, source, folder)
    save_model(model, folder / "model.onnx")

    def make(threads: int = 1, context: int = CONTEXT) -> TokenSequence:
        model = open_graph_model(folder / "model.onnx", source.config, threads)
        return TokenSequence(model, context)

    return make


@pytest.fixture(scope="module")
def reference(source: Any) -> Callable[[Sequence[int]], npt.NDArray[Any]]:
    def logits(tokens: Sequence[int]) -> npt.NDArray[Any]:
        return ReferenceModel(source).forward(list(tokens)).logits

    return logits


def feed(session: TokenSequence, tokens: Sequence[int], *sizes: int) -> npt.NDArray[np.float32]:
    """Commits ``tokens`` in passes of ``sizes`` and returns all their logits."""
    rows, start = [], 0
    for size in sizes or (len(tokens),):
        chain = TokenTree.chain(tokens[start : start + size])
        rows.append(session.forward(chain, range(size)).logits.copy())
        session.commit(range(size))
        start += size
    return np.concatenate(rows)


# Keys and values are float16 in the fused backend.
CLOSE = {"rtol": 0, "atol": 5e-3}


@pytest.mark.parametrize("sizes", [(12,), (1,) * 12, (5, 1, 6)], ids=str)
def test_chain(make_session: MakeSession, reference: Any, sizes: tuple[int, ...]) -> None:
    session = make_session()
    logits = feed(session, TOKENS, *sizes)
    np.testing.assert_allclose(logits, reference(TOKENS), **CLOSE)
    assert list(session.tokens) == TOKENS
    assert (session.n_tokens, session.context, session.vocab_size) == (12, CONTEXT, 83)
    assert session.nbytes > 0


@pytest.mark.parametrize("path", [(), (0,), (0, 2), (0, 2, 4, 5), (0, 1)], ids=str)
def test_tree_and_commit(make_session: MakeSession, reference: Any, path: tuple[int, ...]) -> None:
    session = make_session()
    feed(session, TOKENS)
    rows = session.forward(TREE, range(len(TREE))).logits.copy()
    for i in range(len(TREE)):
        branch: list[int] = []
        node = i
        while node >= 0:
            branch.insert(0, TREE.tokens[node])
            node = TREE.parents[node]
        np.testing.assert_allclose(rows[i], reference([*TOKENS, *branch])[-1], **CLOSE)
    session.commit(path)
    kept = [*TOKENS, *(TREE.tokens[i] for i in path)]
    assert list(session.tokens) == kept
    after = feed(session, [50, 51])
    np.testing.assert_allclose(after, reference([*kept, 50, 51])[-2:], **CLOSE)


def test_truncate(make_session: MakeSession) -> None:
    session, fresh = make_session(), make_session()
    feed(session, TOKENS)
    session.truncate(5)
    again = feed(session, [1, 2, 3])
    feed(fresh, TOKENS[:5])
    np.testing.assert_allclose(again, feed(fresh, [1, 2, 3]), rtol=0, atol=1e-5)
    session.truncate(0)
    np.testing.assert_allclose(feed(session, TOKENS[:4]), feed(make_session(), TOKENS[:4]))


def test_uncommitted_pass_leaves_no_trace(make_session: MakeSession) -> None:
    session, fresh = make_session(), make_session()
    feed(session, TOKENS[:6])
    session.forward(TREE, (5,))
    session.forward(TokenTree.chain([9, 9, 9]), (0,))
    feed(fresh, TOKENS[:6])
    np.testing.assert_array_equal(feed(session, [4]), feed(fresh, [4]))


def test_rows_asked_for(make_session: MakeSession) -> None:
    session = make_session()
    chain = TokenTree.chain(TOKENS)
    whole = session.forward(chain, range(len(TOKENS))).logits.copy()
    some = session.forward(chain, (7, 2)).logits.copy()
    np.testing.assert_array_equal(some, whole[[7, 2]])
    assert session.forward(chain, ()).logits.shape == (0, 83)


def expect_stats(stats: RowStats, logits: npt.NDArray[Any]) -> None:
    expected = RowStats.of(logits)
    np.testing.assert_array_equal(stats.argmax, logits.argmax(axis=1))
    np.testing.assert_array_equal(stats.top_ids, expected.top_ids)
    np.testing.assert_array_equal(stats.top_logits, expected.top_logits)
    np.testing.assert_allclose(stats.log_sum_exp, expected.log_sum_exp, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stats.entropy, expected.entropy, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [(), (5,), (0, 2, 3), (0, 1, 2, 3, 4, 5)], ids=str)
def test_row_stats(make_session: MakeSession, rows: tuple[int, ...]) -> None:
    session = make_session(threads=2)
    feed(session, TOKENS[:6])
    found = session.forward(TREE, rows)
    expect_stats(found.stats, found.logits)
    assert found.stats.top_ids.shape == (len(rows), 8)


def test_rows_without_logits(make_session: MakeSession) -> None:
    session = make_session()
    feed(session, TOKENS[:6])
    found = session.forward(TREE, (1, 4))
    logits, before = found.logits, found.logits.copy()
    expected = RowStats(*(array.copy() for array in vars(found.stats).values()))
    session.forward(TokenTree.chain([9, 9]), (0, 1), with_logits=False)
    np.testing.assert_array_equal(logits, before)  # nothing was copied there
    found = session.forward(TREE, (1, 4), with_logits=False)
    for name, array in vars(found.stats).items():
        np.testing.assert_array_equal(array, getattr(expected, name))
    if isinstance(session.model, FusedModel):
        assert found.logits.shape == (0, 83)


def test_hidden_states(make_session: MakeSession, source: Any) -> None:
    session = make_session()
    rows = session.forward(TokenTree.chain(TOKENS), (11,), HIDDEN)
    embeddings = source.weights["embed_tokens.weight"][TOKENS]
    assert set(rows.hidden) == set(HIDDEN)
    np.testing.assert_allclose(rows.hidden[0], embeddings, atol=1e-6)
    assert rows.hidden[2].shape == (12, 32)


def test_context_limits(make_session: MakeSession) -> None:
    session = make_session(context=20)
    feed(session, TOKENS)
    with pytest.raises(SessionError, match="needs 21 positions, the context has 20"):
        session.forward(TokenTree.chain([1] * 9), ())
    feed(session, [1] * 8)
    with pytest.raises(SessionError, match="needs 21 positions"):
        session.forward(TokenTree.chain([1]), (0,))


def test_bad_token_is_one_line(make_session: MakeSession) -> None:
    session = make_session()
    feed(session, TOKENS[:3])
    with pytest.raises(SessionError, match=r"^[^\n]+$"):
        session.forward(TokenTree.chain([5000]), (0,))
    assert list(session.tokens) == TOKENS[:3]
    feed(session, TOKENS[3:5])


def test_closed(make_session: MakeSession) -> None:
    session = make_session()
    session.close()
    with pytest.raises(SessionError, match="closed"):
        session.forward(TokenTree.chain([1]), (0,))


def test_many_shapes(make_session: MakeSession) -> None:
    session = make_session()
    expected = feed(make_session(), TOKENS)
    for n_tokens in range(1, len(TOKENS) + 1):
        for n_rows in range(min(n_tokens, 4) + 1):
            rows = range(n_tokens - n_rows, n_tokens)
            logits = session.forward(TokenTree.chain(TOKENS[:n_tokens]), rows).logits
            np.testing.assert_allclose(logits, expected[list(rows)], rtol=0, atol=1e-5)


def exit_after(layer: int, n_layers: int) -> tuple[bool, ...]:
    """Returns the gates of a pass that leaves after so many layers."""
    return tuple(i < 2 * layer for i in range(2 * n_layers))


GATES = [
    pytest.param((1, 1, 1, 1, 0, 0), id="exit_after_2"),
    pytest.param((0, 0, 0, 0, 0, 0), id="embeddings"),
    pytest.param((1, 0, 0, 1, 1, 1), id="mixed"),
    pytest.param((0, 1, 1, 0, 1, 0), id="other_halves"),
]


@pytest.fixture
def make_gated(make_session: MakeSession) -> MakeSession:
    if not isinstance(make_session().model, FusedModel):
        pytest.skip("the portable graph has no layer gates")
    return make_session


@pytest.mark.parametrize("gates", GATES)
def test_sub_layers_left_out(make_gated: MakeSession, source: Any, gates: tuple[int, ...]) -> None:
    session = make_gated(threads=2)
    feed(session, TOKENS)
    found = session.forward(TREE, range(len(TREE)), HIDDEN, layer_gates=[g == 1 for g in gates])
    model = ReferenceModel(source)
    model.forward(TOKENS)
    model.commit(len(TOKENS))
    expected = model.forward(TREE.tokens, TREE.parents, layer_gates=[g == 1 for g in gates])
    np.testing.assert_allclose(found.logits, expected.logits, **CLOSE)
    for layer in HIDDEN:
        np.testing.assert_allclose(found.hidden[layer], expected.hidden[layer], **CLOSE)
    whole = session.forward(TREE, range(len(TREE))).logits
    assert np.abs(whole - expected.logits).max() > 0.1  # the gates mattered


def test_all_gates_open_change_nothing(make_gated: MakeSession) -> None:
    session = make_gated()
    expected = feed(session, TOKENS)
    session.truncate(0)
    session.forward(TokenTree.chain(TOKENS), (), layer_gates=exit_after(1, 3))  # soils nothing
    logits = session.forward(
        TokenTree.chain(TOKENS), range(12), layer_gates=exit_after(3, 3)
    ).logits
    np.testing.assert_array_equal(logits, expected)
    session.commit(range(12))
    assert session.n_tokens == 12


@pytest.mark.parametrize("layer", [0, 2])
def test_exit_is_the_head_on_a_hidden_state(
    make_gated: MakeSession, source: Any, layer: int
) -> None:
    session = make_gated()
    chain = TokenTree.chain(TOKENS)
    hidden = session.forward(chain, (), HIDDEN).hidden[layer].astype(np.float64)
    normed = hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + 1e-5)
    head = source.weights["norm.weight"] * source.weights["lm_head.weight"]
    found = session.forward(chain, range(12), layer_gates=exit_after(layer, 3)).logits
    np.testing.assert_allclose(found, normed @ head.T, rtol=0, atol=1e-4)


def test_a_gated_pass_grows_but_is_not_committed(make_gated: MakeSession) -> None:
    session = make_gated()
    feed(session, TOKENS[:6])
    gates = exit_after(2, 3)
    expected = session.forward(TREE, (4, 5), layer_gates=gates).logits.copy()
    session.forward(TokenTree(TREE.tokens[:3], TREE.parents[:3]), (), layer_gates=gates)
    grown = session.forward(TREE, (4, 5), n_known=3, layer_gates=gates).logits
    np.testing.assert_array_equal(grown, expected)
    with pytest.raises(SessionError, match="left sub-layers out"):
        session.commit((0,))
    session.forward(TREE, (5,), n_known=5)  # its first rows are still incomplete
    with pytest.raises(SessionError, match="left sub-layers out"):
        session.commit((0, 2, 4, 5))
    session.forward(TREE, (5,))
    session.commit((0, 2, 4, 5))
    assert session.n_tokens == 10


def test_layer_gates_that_make_no_sense(make_session: MakeSession) -> None:
    session = make_session()
    is_fused = isinstance(session.model, FusedModel)
    text = "got 4 layer gates, expected 6" if is_fused else "cannot leave sub-layers out"
    with pytest.raises(SessionError, match=text):
        session.forward(TREE, (), layer_gates=exit_after(1, 2))


def stated(source: Any, folder: Path) -> GraphContract:
    """Returns the contract of a portable graph of ``source``."""
    folder.mkdir(exist_ok=True)
    path = folder / "whole.onnx"
    save_model(emit_portable(source.config, ()), path)
    return contract_of(path, source.config)


@pytest.mark.parametrize("content", [b"", b"not a graph", b"\x08\x07\x12\x00" * 9])
@pytest.mark.parametrize("kind", [FusedModel, PortableModel])
def test_broken_graph_is_one_line(
    tmp_path: Path, source: Any, kind: Callable[..., Model], content: bytes
) -> None:
    if kind is FusedModel and not library.has_library():
        pytest.skip("the kernel library is not built")
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=r"^ONNX Runtime refuses [^\n]*$"):
        kind(GraphToRun(tmp_path / "model.onnx", source.config, stated(source, tmp_path), 1))


@pytest.mark.parametrize(
    "message",
    [
        "[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:std::bad_alloc",
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bfc_arena.cc:376 Failed to allocate memory "
        "for requested buffer of size 4096",
    ],
)
def test_short_memory_is_no_fault_of_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError(message)

    with pytest.raises(SessionError, match=r"^no memory is left for a pass: use a smaller"):
        PassRunner().run(fail)
    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(SessionError, match=r"^no memory is left to open .*: use a smaller"):
        open_graph(tmp_path / "model.onnx", 1, ["CPUExecutionProvider"])


def test_graph_without_kv_cache(tmp_path: Path, source: Any) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value], [other])
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(
        onnx.helper.make_model(graph, ir_version=10, opset_imports=[opset]),
        tmp_path / "model.onnx",
    )
    with pytest.raises(BundleError, match=r"has inputs \['x'\], the manifest states \[.*input_ids"):
        PortableModel(
            GraphToRun(
                tmp_path / "model.onnx", source.config, stated(source, tmp_path / "stated"), 1
            )
        )


def test_missing_kernels_say_what_to_do(
    tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "has_library", lambda: False)
    with pytest.raises(BundleError, match="lacks: reinstall"):
        FusedModel(GraphToRun(tmp_path / "model.onnx", source.config, stated(source, tmp_path), 1))


def test_unusable_isa_is_named(
    tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    monkeypatch.setenv("EDGEDEC_ISA", "abacus")
    with pytest.raises(ConfigError, match=r"^EDGEDEC_ISA names [^\n]*$"):
        FusedModel(GraphToRun(tmp_path / "model.onnx", source.config, stated(source, tmp_path), 1))
