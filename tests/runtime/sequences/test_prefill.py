"""How a text gets into a KV cache: chunk by chunk, and as if in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
from graph_models import open_graph_model
from hypothesis import given
from hypothesis import strategies as st

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.families import weight_shapes
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.sequences import prefill
from edgedec.runtime.sequences.passes import Pass, Passes, run_passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest, feed, rewind
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.portable.run_portable import PortableModel

from ..conftest import ToySession, toy_state

T = TypeVar("T")
VOCAB, CONTEXT = 60, 64
HIDDEN = (0, 2)
PROMPT = [int(token) for token in np.random.default_rng(0).integers(0, VOCAB, 40)]
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=30)
"""Few token ids, so that texts begin alike."""
MakeSession = Callable[[], TokenSequence]


@pytest.fixture(scope="module", params=["toy", "portable", "float16", "int8"])
def make_session(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> MakeSession:
    """Returns a maker of sequences of one toy or tiny model."""
    if request.param == "toy":
        return lambda: ToySession(VOCAB, CONTEXT)
    source = make_source()
    graph = emit_portable(source.config, HIDDEN)
    if request.param != "portable":
        if not library.has_library():
            pytest.skip("the kernel library is not built")
        shapes = weight_shapes(source.config)
        formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
        graph = fuse(graph, source.config, formats, kv_format=request.param)
    folder = tmp_path_factory.mktemp(request.param)
    write_weights(graph, source, folder)
    save_model(graph, folder / "model.onnx")
    model = open_graph_model(folder / "model.onnx", source.config, 1)
    return lambda: TokenSequence(model, CONTEXT)


def at_once(session: TokenSequence, text: Sequence[int], n_rows: int = 1) -> Any:
    """Returns the last logits of one pass over ``text``, and hidden states of all of it."""
    layers = session.model.capabilities.hidden
    rows = session.forward(TokenTree.chain(text), range(len(text) - n_rows, len(text)), layers)
    hidden = {layer: states.copy() for layer, states in rows.hidden.items()}
    logits = rows.logits.copy()
    session.commit(range(len(text)))
    return logits, hidden


def assert_alike(session: TokenSequence, got: Any, expected: Any) -> None:
    """Asserts equal bits, but of the portable graph, whose rows depend on their company."""
    if isinstance(session.model, PortableModel):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, expected)


def watched(passes: Passes[T]) -> tuple[list[Pass], T]:
    """Returns the passes a step asked for and its result."""
    seen = [next(passes)]
    try:
        while True:
            seen.append(passes.send(seen[-1].sequence.run(seen[-1])))
    except StopIteration as end:
        return seen, end.value


def ended(passes: Passes[Any]) -> Any:
    """Returns the result of a step that asks for no pass."""
    with pytest.raises(StopIteration) as end:
        next(passes)
    return end.value.value


@pytest.mark.parity
@pytest.mark.parametrize("n_rows", [1, 3, 11])
@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 128])
def test_chunks_equal_one_pass(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch, chunk: int, n_rows: int
) -> None:
    """Rows and what follows; where more rows are wanted than a chunk has tokens, too."""
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", chunk)
    session, whole = make_session(), make_session()
    seen, rows = watched(feed(session, PROMPT, n_rows))
    logits, _ = at_once(whole, PROMPT, n_rows)
    assert_alike(session, rows.logits, logits)
    widths = [len(wanted.tree) for wanted in seen]
    assert sum(widths) == len(PROMPT)
    assert max(widths) <= max(chunk, n_rows)
    assert widths[-1] >= n_rows
    assert [len(wanted.logit_rows) for wanted in seen] == [*[0] * (len(seen) - 1), n_rows]
    assert [wanted.with_logits for wanted in seen] == [*[False] * (len(seen) - 1), True]
    assert list(session.tokens) == list(whole.tokens) == PROMPT
    after = TokenTree.chain([7, 8])
    assert_alike(
        session, session.forward(after, (0, 1)).logits, whole.forward(after, (0, 1)).logits
    )


@given(held=TEXTS, text=TEXTS, n_rows=st.integers(1, 30), chunk=st.integers(1, 12))
def test_feeding_after_any_text(held: list[int], text: list[int], n_rows: int, chunk: int) -> None:
    """Whatever was held, the rows are those of the text, and no more is computed than must be."""
    n_rows = min(n_rows, len(text))
    session, whole = ToySession(VOCAB, CONTEXT), ToySession(VOCAB, CONTEXT)
    session.restore(toy_state(held, 0))
    n_alike = next(
        (i for i, pair in enumerate(zip(held, text, strict=False)) if pair[0] != pair[1]),
        min(len(held), len(text)),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prefill, "PREFILL_CHUNK", chunk)
        rows = run_passes(feed(session, text, n_rows))
    np.testing.assert_array_equal(rows.logits, at_once(whole, text, n_rows)[0])
    assert list(session.tokens) == text
    assert session.n_rows == len(text) - min(n_alike, len(text) - n_rows)
    expected = toy_state(text, 0).kv_rows["rows"]
    np.testing.assert_array_equal(session.snapshot().kv_rows["rows"], expected)


@pytest.mark.parametrize(
    ("held", "text", "n_rows", "n_left"),
    [
        ([], [1, 2], 1, 0),
        ([1, 2, 3], [1, 2, 4], 1, 2),
        ([1, 2, 3], [1, 2, 3], 1, 2),
        ([1, 2, 3], [1, 2, 3], 0, 3),
        ([1, 2, 3, 4], [1, 2, 3], 0, 3),
        ([1, 2, 3, 4], [1, 2, 3], 3, 0),
        ([1, 2], [1, 2, 3, 4], 2, 2),
        ([1, 2, 3], [1, 2, 3, 4], 2, 2),
        ([9], [1, 2], 1, 0),
    ],
)
def test_rewind(held: list[int], text: list[int], n_rows: int, n_left: int) -> None:
    session = ToySession(VOCAB, CONTEXT)
    session.restore(toy_state(held, 0))
    assert rewind(session, text, n_rows) == n_left
    assert list(session.tokens) == text[:n_left]
    assert session.n_passes == 0


def test_the_time_of_all_passes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", 10)
    times = []
    step = feed(ToySession(VOCAB, CONTEXT), PROMPT)
    wanted = next(step)
    with pytest.raises(StopIteration) as end:
        while True:
            rows = wanted.sequence.run(wanted)
            times.append(rows.ms)
            wanted = step.send(rows)
    assert len(times) == 4
    assert end.value.value.ms == pytest.approx(sum(times))


def test_chunks_are_as_long_as_a_moment_allows() -> None:
    """Units: milliseconds a row of each pass. The first is long; a disturbed one counts little."""
    session, text = ToySession(VOCAB, 1000), [i % VOCAB for i in range(700)]
    request = PrefillRequest(DecodeStats(), pass_ms=250.0)
    step, widths = ExactPrefiller().prefill(session, text, request), []
    wanted = next(step)
    for row_ms in (10.0, 2.0, 1000.0, 0.1, 100.0, 100.0):
        widths.append(len(wanted.tree))
        rows = wanted.sequence.run(wanted)
        rows.ms = row_ms * widths[-1]
        wanted = step.send(rows)
    assert widths == [128, 16, 112, 96, 128, 128]
    step.close()


@pytest.mark.parametrize("n_held", [0, 5, 39, 40])
@pytest.mark.parametrize("with_logits", [True, False])
def test_what_a_prefill_counts_and_tells(
    monkeypatch: pytest.MonkeyPatch, n_held: int, with_logits: bool
) -> None:
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", 16)
    session, stats, reported = (
        ToySession(VOCAB, CONTEXT),
        DecodeStats(),
        list[tuple[str, int, int]](),
    )
    session.restore(toy_state(PROMPT[:n_held], 0))
    request = PrefillRequest(stats, with_logits, on_progress=lambda *done: reported.append(done))
    seen, prefilled = watched(ExactPrefiller().prefill(session, PROMPT, request))
    assert prefilled is not None
    assert len(prefilled.rows.logits) == 1
    assert seen[-1].with_logits == with_logits
    assert stats.n_reused_tokens == min(n_held, 39)
    assert stats.n_prefill_tokens == 40 - stats.n_reused_tokens == session.n_rows
    ends = np.cumsum([stats.n_reused_tokens, *(len(wanted.tree) for wanted in seen)])[1:]
    assert reported == [("prefill", int(end), 40) for end in ends]
    assert ends[-1] == 40


@pytest.mark.parametrize("n_chunks", [0, 1, 2, 3])
def test_cancelled_between_chunks(monkeypatch: pytest.MonkeyPatch, n_chunks: int) -> None:
    """What was computed until then stays, and counts."""
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", 12)
    session, stats = ToySession(VOCAB, CONTEXT), DecodeStats()
    request = PrefillRequest(stats, is_cancelled=lambda: session.n_passes == n_chunks)
    assert run_passes(ExactPrefiller().prefill(session, PROMPT, request)) is None
    assert list(session.tokens) == PROMPT[: 12 * n_chunks]
    assert (stats.n_reused_tokens, stats.n_prefill_tokens) == (0, 12 * n_chunks)
    again = run_passes(ExactPrefiller().prefill(session, PROMPT, PrefillRequest(stats)))
    assert again is not None
    expected, _ = at_once(ToySession(VOCAB, CONTEXT), PROMPT)
    np.testing.assert_array_equal(again.rows.logits, expected)
    assert stats.n_reused_tokens == 12 * n_chunks


@pytest.mark.parity
@pytest.mark.parametrize("n_held", [0, 9])
@pytest.mark.parametrize("chunk", [1, 16, 128])
def test_hidden_states_of_all_computed_tokens(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch, chunk: int, n_held: int
) -> None:
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", chunk)
    session = make_session()
    layers = session.model.capabilities.hidden
    if not layers:
        pytest.skip("a toy has no layers")
    _, expected = at_once(make_session(), PROMPT)
    if n_held:
        run_passes(feed(session, PROMPT[:n_held]))
    request = PrefillRequest(DecodeStats(), hidden_layers=layers)
    prefilled = run_passes(ExactPrefiller().prefill(session, PROMPT, request))
    assert prefilled is not None
    session.truncate(0)  # the same shapes of pass once more, over another text
    run_passes(ExactPrefiller().prefill(session, PROMPT[::-1], request))
    assert set(prefilled.hidden) == set(HIDDEN)
    for layer, states in prefilled.hidden.items():
        assert states.shape == (40 - n_held, 32)
        assert_alike(session, states, expected[layer][n_held:])


@pytest.mark.parity
def test_the_same_prompt_once_more_takes_no_pass(make_session: MakeSession) -> None:
    session, stats, reported = make_session(), DecodeStats(), list[tuple[str, int, int]]()
    layers = session.model.capabilities.hidden
    request = PrefillRequest(
        stats, hidden_layers=layers, on_progress=lambda *done: reported.append(done)
    )
    first = run_passes(ExactPrefiller().prefill(session, PROMPT, request))
    assert first is not None
    logits, ids = first.rows.logits.copy(), first.rows.stats.top_ids.copy()
    run_passes(feed(session, [*PROMPT, 3, 4]))  # what was written behind it
    for _ in range(2):
        reported.clear()
        again = ended(ExactPrefiller().prefill(session, PROMPT, request))
        np.testing.assert_array_equal(again.rows.logits, logits)
        np.testing.assert_array_equal(again.rows.stats.top_ids, ids)
        for layer, states in first.hidden.items():
            np.testing.assert_array_equal(again.hidden[layer], states[-1:])
        assert list(session.tokens) == PROMPT
        assert (stats.n_reused_tokens, reported) == (40, [("prefill", 40, 40)])
        again.rows.logits[:] = 0  # a copy


@pytest.mark.parametrize("other", [PROMPT[:20], [*PROMPT[:-1], 1], [*PROMPT, 1], [1]])
def test_a_row_is_forgotten_with_its_tokens(other: list[int]) -> None:
    session = ToySession(VOCAB, CONTEXT)
    for text in (PROMPT, other, PROMPT):
        request = PrefillRequest(DecodeStats())
        prefilled = run_passes(ExactPrefiller().prefill(session, text, request))
        assert prefilled is not None
        expected, _ = at_once(ToySession(VOCAB, CONTEXT), text)
        np.testing.assert_array_equal(prefilled.rows.logits, expected)


@pytest.mark.parametrize("wanted", [{"hidden_layers": (2,)}, {"with_logits": True}])
def test_what_was_not_kept_is_computed(make_session: MakeSession, wanted: dict[str, Any]) -> None:
    session, stats = make_session(), DecodeStats()
    if not session.model.capabilities.hidden:
        pytest.skip("a toy has no layers")
    first = PrefillRequest(stats, with_logits=False)
    prefilled = run_passes(ExactPrefiller().prefill(session, PROMPT, first))
    assert prefilled is not None
    has_all = "with_logits" in wanted and len(prefilled.rows.logits) > 0
    request = PrefillRequest(stats, **wanted)
    prefilled = run_passes(ExactPrefiller().prefill(session, PROMPT, request))
    assert prefilled is not None
    assert stats.n_reused_tokens == (40 if has_all else 39)
    assert len(prefilled.rows.logits) == 1
    assert {*wanted.get("hidden_layers", ())} == {*prefilled.hidden}
