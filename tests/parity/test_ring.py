"""KV caches of layers with windows hold the latest rows only: the bits of those that hold all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from graph_models import add_random_offsets, contract_of

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.config import LayerConfig
from edgedec.models.errors import BundleError, SessionError
from edgedec.models.families import weight_shapes
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.sequences.passes import Pass, run_passes
from edgedec.runtime.sequences.prefill import feed, rewind
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.session_file import Expected, SavedModel, read_states, write_states
from edgedec.runtime.sequences.session_memory import TARGET, KnownModel, SessionMemory
from edgedec.runtime.sequences.state import LATEST
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.cpu.run_fused import FusedKVCache, FusedModel

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not library.has_library(), reason="the kernel library is not built"),
]

CONTEXT, RING, WINDOW = 400, 64, 24
TEXT = [int(token) for token in np.random.default_rng(1).integers(0, 83, 330)]
TREE = TokenTree((30, 31, 32, 33, 34, 35), (-1, 0, 0, 2, 2, 4))
PATH = (0, 2, 4)
Logits = npt.NDArray[np.float32]
Open = Callable[..., TokenSequence]


def layers(*windows: int) -> tuple[LayerConfig, ...]:
    return tuple(LayerConfig(48, 1e4, window=window) for window in windows)


MODELS = {
    "some": (layers(WINDOW, 0, 17), "float16"),
    "all": (layers(*[WINDOW] * 3), "int8"),
    "some, k5v4": (layers(WINDOW, 0, 17), "k5v4"),
}


@pytest.fixture(scope="module", params=MODELS)
def open_ring(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> Open:
    """Returns a maker of sequences; ``ring_rows`` of at least the context keep everything."""
    of_layers, kv_format = MODELS[request.param]
    source = make_source(max_positions=4000, head_size=20, layers=of_layers)
    graph = write_graph(source, kv_format, tmp_path_factory.mktemp("ring"))

    def make(ring_rows: int = RING, context: int = CONTEXT) -> TokenSequence:
        contract = contract_of(graph, source.config)
        contract = replace(contract, kv=replace(contract.kv, ring_rows=ring_rows))
        opened = FusedModel(GraphToRun(graph, source.config, contract, 2))
        return TokenSequence(opened, context)

    return make


def write_graph(source: Any, kv_format: str, folder: Path) -> Path:
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    portable = emit_portable(source.config, (1, len(source.config.layers)))
    graph = fuse(portable, source.config, formats, kv_format=kv_format)
    if kv_format == "k5v4":
        add_random_offsets(graph, source.config)
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def expected(open_ring: Open) -> Logits:
    """The logits of every token of `TEXT`, computed at once."""
    return go(open_ring(ring_rows=CONTEXT), TEXT)


def go(sequence: TokenSequence, tokens: Sequence[int], *sizes: int) -> Logits:
    """Commits ``tokens`` in passes of ``sizes``, again and again; returns all logits."""
    rows, start = [], 0
    while start < len(tokens):
        n = sizes[len(rows) % len(sizes)] if sizes else len(tokens)
        chain = TokenTree.chain(tokens[start : start + n])
        rows.append(sequence.forward(chain, range(len(chain))).logits.copy())
        sequence.commit(range(len(chain)))
        start += n
    return np.concatenate(rows)


def same_bits(a: Logits, b: Logits) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def ring_nbytes(sequence: TokenSequence) -> int:
    cache = sequence.state
    assert isinstance(cache, FusedKVCache)
    return cache.caches.ring.nbytes


@pytest.mark.parametrize("sizes", [(1,), (5, 1, 30, 2), (RING - WINDOW + 1,)], ids=str)
def test_long_text(open_ring: Open, expected: Logits, sizes: tuple[int, ...]) -> None:
    sequence = open_ring()
    n_bytes = ring_nbytes(sequence)
    assert same_bits(go(sequence, TEXT, *sizes), expected)
    assert ring_nbytes(sequence) == n_bytes


def test_windows_take_no_more_memory_in_a_larger_context(open_ring: Open) -> None:
    small, large = open_ring(), open_ring(context=10 * CONTEXT)
    assert 0 < ring_nbytes(small) == ring_nbytes(large)
    for sequence in (small, large):
        go(sequence, TEXT[:100], 40)
    grown = [s.nbytes for s in (small, large)]
    go(large, TEXT[100:], 40)
    whole = large.state.nbytes(330) - large.state.nbytes(100)
    per_token = open_ring(ring_rows=CONTEXT).state.nbytes(1)
    assert grown[0] == grown[1]
    assert whole < 230 * per_token / 2  # one layer of three at most


@pytest.mark.parametrize("n", [60, 62, 64, 120, 127, 128, 200])
def test_trees_across_the_end_of_the_ring(open_ring: Open, n: int) -> None:
    """A tree that grows in two passes, what follows a way down it, and its chain."""
    chain, ring = open_ring(ring_rows=CONTEXT), open_ring()
    for sequence in (chain, ring):
        go(sequence, TEXT[:n], 30)
    way = go(chain, [TREE.tokens[node] for node in PATH])
    first = TokenTree(TREE.tokens[:2], TREE.parents[:2])
    tree = ring.forward(first, [0]).logits.copy()
    rest = ring.forward(TREE, [2, 4], n_known=2).logits
    assert same_bits(np.concatenate([tree, rest]), way)
    ring.commit(PATH)
    assert same_bits(go(ring, TEXT[:90], 7), go(chain, TEXT[:90]))


def test_a_pass_wider_than_the_room_makes_more(open_ring: Open, expected: Logits) -> None:
    sequence = open_ring()
    assert same_bits(go(sequence, TEXT, 50, 130, 3), expected)
    assert ring_nbytes(sequence) < ring_nbytes(open_ring(ring_rows=CONTEXT))


def test_truncate(open_ring: Open, expected: Logits) -> None:
    """As far back as rows are there; further, only the beginning is left."""
    sequence = open_ring()
    go(sequence, TEXT[:200], 20)
    furthest = 200 - RING + WINDOW - 1
    with pytest.raises(SessionError, match=f"truncate to {furthest - 1} of 200 .* have lost"):
        sequence.truncate(furthest - 1)
    assert sequence.n_tokens == 200
    sequence.truncate(furthest)
    assert same_bits(go(sequence, TEXT[furthest:250], 9), expected[furthest:250])
    assert sequence.rewind(furthest) == 0 == sequence.n_tokens
    assert same_bits(go(sequence, TEXT, 33), expected)


def test_another_text_begins_anew_by_itself(open_ring: Open) -> None:
    sequence, fresh = open_ring(), open_ring()
    go(sequence, TEXT, 40)
    text = [*TEXT[:150], *TEXT[:20]]
    found = run_passes(feed(sequence, text)).logits.copy()
    assert same_bits(found, run_passes(feed(fresh, text)).logits)
    assert rewind(sequence, text) == len(text) - 1


@pytest.mark.parametrize("n", [10, 64, 150, 200])
def test_sessions(open_ring: Open, expected: Logits, n: int, tmp_path: Path) -> None:
    """In memory, in pieces, and through a file, of which a ring of another size takes the end."""
    sequence, again, larger = open_ring(), open_ring(), open_ring(ring_rows=4 * RING)
    go(sequence, TEXT[:n], 20)
    state = sequence.snapshot()
    latest = [rows.shape[2] for name, rows in state.kv_rows.items() if name.startswith(LATEST)]
    assert set(latest) == {min(n, RING)}
    go(again, TEXT[40:100], 20)
    again.restore(state)
    assert same_bits(go(again, TEXT[n:], 17), expected[n:])
    go(sequence, TEXT[n:], 30)
    again.truncate(0)
    again.restore(state, sequence.snapshot(start=n))
    assert same_bits(go(again, TEXT[:40], 8), go(sequence, TEXT[:40], 40))
    write_states(tmp_path / "s", {TARGET: SavedModel("x", state)})
    wanted = Expected("x", CONTEXT, 83, 1 << 20, again.layout, again.look_back)
    go(larger, TEXT, 90)
    larger.restore(read_states(tmp_path / "s", {TARGET: wanted})[TARGET].state)
    assert same_bits(go(larger, TEXT[n:], 17), expected[n:])
    again.restore(larger.snapshot())
    assert again.n_tokens == len(TEXT)


def test_states_that_lack_rows_are_refused(open_ring: Open, tmp_path: Path) -> None:
    sequence = open_ring()
    go(sequence, TEXT[:200], 20)
    state = sequence.snapshot(150)  # the rows of these are gone
    with pytest.raises(SessionError, match="lacks rows that layers with a window look at"):
        sequence.restore(state)
    assert sequence.n_tokens == 200
    write_states(tmp_path / "s", {TARGET: SavedModel("x", state)})
    wanted = Expected("x", CONTEXT, 83, 1 << 20, sequence.layout, sequence.look_back)
    with pytest.raises(SessionError, match=r"latest .* rows of target layers with a window"):
        read_states(tmp_path / "s", {TARGET: wanted})


def test_prompts_that_take_turns(open_ring: Open, make_source: Any) -> None:
    """What comes from memory is right, and comes where rows allow it."""
    memory = SessionMemory(10**7)
    memory.know(TARGET, KnownModel("tiny", make_source().config, CONTEXT))
    pool = memory.open(TARGET, open_ring().model, CONTEXT)
    long, other = TEXT[:200], TEXT[100:180]
    prompts = [long, other, [*long, *TEXT[:30]], [*long[:180], 5, 6], [*long[:90], 7], other[:70]]
    found = []
    for prompt in prompts:
        sequence = pool.take(prompt)
        memory.recall(TARGET, sequence, prompt)
        found.append(rewind(sequence, prompt))
        logits = go(sequence, prompt[found[-1] :], 40)[-1:]
        assert same_bits(logits, go(open_ring(), prompt, 50)[-1:])
        pool.give_back(sequence)
    assert found == [0, 0, 200, 180, 0, 69]


@pytest.mark.parametrize("n_tokens", [1, 70, 150, 260, 400])
def test_a_memory_that_holds_little(open_ring: Open, make_source: Any, n_tokens: int) -> None:
    """Texts are forgotten, or never learnt; what is found is right."""
    max_bytes = open_ring(ring_rows=CONTEXT).state.nbytes(n_tokens)
    memory = SessionMemory(max_bytes)
    memory.know(TARGET, KnownModel("tiny", make_source().config, CONTEXT))
    pool, fresh = memory.open(TARGET, open_ring().model, CONTEXT), open_ring()
    draw, before = np.random.default_rng(n_tokens), list[int]()
    for i in range(12):
        start = TEXT[: draw.integers(1, 200)] if i % 3 else before
        prompt = [*start, *draw.integers(0, 83, draw.integers(2, 80)).tolist()]
        sequence = pool.take(prompt)
        memory.recall(TARGET, sequence, prompt)
        logits = go(sequence, prompt[rewind(sequence, prompt) :], 40)[-1:]
        fresh.truncate(0)
        assert same_bits(logits, go(fresh, prompt, 50)[-1:])
        pool.give_back(sequence)
        assert memory.prefix_cache.nbytes <= max_bytes
        before = prompt[:200]


def test_layers_in_two_goes(open_ring: Open, expected: Logits) -> None:
    """The first layers of a text that no ring would hold, then the others."""
    sequence, n_layers, hidden = open_ring(), 3, []
    go(sequence, TEXT[:100], 40)
    for start in range(100, 300, 50):
        chain = TokenTree.chain(TEXT[start : start + 50])
        rows = sequence.run(Pass(sequence, chain, (), (1,), layers=range(1)))
        hidden.append(rows.hidden[1].copy())
        sequence.commit(range(50))
    for start, entry in zip(range(100, 300, 50), hidden, strict=True):
        chain = TokenTree.chain(sequence.partial[:50])
        last = Pass(sequence, chain, range(50), layers=range(1, n_layers), entry=entry)
        assert same_bits(sequence.run(last).logits, expected[start : start + 50])
        sequence.commit(range(50))
    assert same_bits(go(sequence, TEXT[300:], 6), expected[300:])


def test_layers_without_rings_are_refused(make_source: Any, tmp_path: Path) -> None:
    """As of bundles from before there were rings."""
    source = make_source(layers=layers(WINDOW, 0, 17))
    graph = write_graph(source, "float16", tmp_path)
    contract = contract_of(graph, source.config)
    plain = replace(contract.kv, ring_layers=(2,))
    with pytest.raises(BundleError, match="export the model again"):
        FusedModel(GraphToRun(graph, source.config, replace(contract, kv=plain), 1))
