"""A small model with a KV cache of each format: the same bits however, and wherever, it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from graph_models import add_random_offsets, open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.families import weight_shapes
from edgedec.models.kv_formats import kv_formats_of
from edgedec.models.reference import ReferenceModel
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

from ..isas import ISAS, isa_params

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not library.has_library(), reason="the kernel library is not built"),
]

CONTEXT = 384
TEXT = [int(token) for token in np.random.default_rng(1).integers(0, 83, 300)]
TREE = TokenTree((30, 31, 32, 33, 34, 35), (-1, 0, 0, 2, 2, 4))
PATH = (0, 2, 4)
FORMATS = {name: (name, False) for name in kv_formats_of("panels")} | {
    "int8, key offsets": ("int8", True),
    "k5v4, key offsets": ("k5v4", True),
}
"""Format of the KV cache, and whether keys have offsets."""
MakeSession = Callable[..., TokenSequence]
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def source(make_source: Any) -> Any:
    return make_source(max_positions=CONTEXT, has_qkv_bias=True, head_size=20)


@pytest.fixture(scope="module")
def open_format(source: Any, tmp_path_factory: pytest.TempPathFactory) -> MakeSession:
    """Returns a maker of sessions over the model, by format of the KV cache."""
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    folder = tmp_path_factory.mktemp("formats")
    for name, (kv_format, has_offsets) in FORMATS.items():
        (folder / name).mkdir()
        portable = emit_portable(source.config, ())
        graph = fuse(portable, source.config, formats, kv_format=kv_format)
        if has_offsets:
            add_random_offsets(graph, source.config)
        write_weights(graph, source, folder / name)
        save_model(graph, folder / name / "model.onnx")

    def make(name: str, threads: int = 1) -> TokenSequence:
        model = open_graph_model(folder / name / "model.onnx", source.config, threads)
        return TokenSequence(model, CONTEXT)

    return make


@pytest.fixture(params=FORMATS)
def make_session(request: pytest.FixtureRequest, open_format: MakeSession) -> MakeSession:
    def make(threads: int = 1) -> TokenSequence:
        return open_format(request.param, threads)

    return make


def feed(session: TokenSequence, tokens: Sequence[int], *sizes: int) -> Logits:
    """Commits ``tokens`` in passes of ``sizes``, the last of them again and again."""
    rows, start, widths = [], 0, list(sizes) or [len(tokens)]
    while start < len(tokens):
        width = widths.pop(0) if len(widths) > 1 else widths[0]
        chain = TokenTree.chain(tokens[start : start + width])
        rows.append(session.forward(chain, range(len(chain))).logits.copy())
        session.commit(range(len(chain)))
        start += width
    return np.concatenate(rows)


def whole_run(session: TokenSequence) -> list[Logits]:
    """Returns the logits of a long text, a tree, and what follows a way down that tree."""
    text = feed(session, TEXT, 256, 1, 8)
    tree = session.forward(TREE, range(len(TREE))).logits.copy()
    session.commit(PATH)
    return [text, tree, feed(session, [7, 8, 9])]


def same_bits(a: Logits, b: Logits) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("isa", isa_params(ISAS[:-1]))
@pytest.mark.parametrize("threads", [1, 2])
def test_every_isa_gives_the_bits_of_scalar(
    make_session: MakeSession, isa: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDEC_ISA", "scalar")
    expected = whole_run(make_session())
    monkeypatch.setenv("EDGEDEC_ISA", isa)
    for got, wanted in zip(whole_run(make_session(threads)), expected, strict=True):
        assert same_bits(got, wanted)


@pytest.mark.parametrize("sizes", [(1,), (16,), (5, 1, 2, 3, 40), (299, 1)], ids=str)
def test_rows_do_not_depend_on_their_company(
    make_session: MakeSession, sizes: tuple[int, ...]
) -> None:
    assert same_bits(feed(make_session(2), TEXT, *sizes), feed(make_session(), TEXT))


def test_a_tree_and_what_follows_equal_their_chains(make_session: MakeSession) -> None:
    _, tree, after = whole_run(make_session(2))
    plain = make_session()
    feed(plain, TEXT)
    chain = feed(plain, [TREE.tokens[node] for node in PATH], 1)
    assert same_bits(tree[list(PATH)], chain)
    assert same_bits(after, feed(plain, [7, 8, 9], 1))


def test_truncated_session_equals_a_fresh_one(make_session: MakeSession) -> None:
    session, fresh = make_session(), make_session()
    whole_run(session)
    session.truncate(37)
    feed(fresh, TEXT[:37])
    assert same_bits(feed(session, TEXT[100:140]), feed(fresh, TEXT[100:140]))


def test_formats_are_near_the_reference_and_apart(open_format: MakeSession, source: Any) -> None:
    """int8 keeps 7 bits of a row's largest number, float16 11 of each; offsets change nothing."""
    expected = ReferenceModel(source).forward(TEXT).logits
    error = {
        name: np.abs(feed(open_format(name), TEXT) - expected).mean() / expected.std()
        for name in FORMATS
    }
    assert error["float16"] < 1e-3 < error["int8"] < 0.02 < error["k5v4"] < 0.2
    for name in ("int8", "k5v4"):  # keys of random models have nothing in common
        assert error[f"{name}, key offsets"] < 2 * error[name]


def test_memory_of_each_format(open_format: MakeSession) -> None:
    sessions = [open_format(kv_format) for kv_format in ("float16", "int8", "k5v4")]
    for session in sessions:
        feed(session, TEXT)
        assert session.nbytes >= session.snapshot().nbytes
    half, int8, k5v4 = sessions
    # Head size 20: rows of values are filled up to 32 numbers, and scales take 2.
    assert int8.nbytes / half.nbytes == (32 + 2) / 40
    assert k5v4.nbytes / half.nbytes == (10 + 3 + 2 + 16 + 2) / 80
