"""Prompts answered before they are read to the end: the text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export import kv_panels
from edgedec.kernels import library
from edgedec.models.config import LayerConfig
from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding import progressive
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Piece
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.plain_kv import plain_kv
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.text_stream import TextStream

from ..draft_toys import SAMPLINGS, Numerals, ToyDrafter, check_sums, nothing, right
from .progressive_parts import CONTEXT, DEPTH, N_LAYERS, PROMPT, Misled, Parts
from .test_speculative import fixed


@pytest.fixture(scope="module", params=["float16", "int8"])
def parts(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> Parts:
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    source = make_source(has_qkv_bias=True, max_positions=CONTEXT, n_layers=N_LAYERS)
    return Parts(tmp_path_factory.mktemp("progressive"), source, request.param)


@pytest.fixture(params=["maps", "misled"])
def predicted(request: pytest.FixtureRequest, parts: Parts) -> Iterator[Parts]:
    """The parts with predictions that are good or bad."""
    parts.predictor = parts.maps if request.param == "maps" else Misled(parts.maps)
    yield parts
    parts.predictor = parts.maps


def replayed(pieces: list[Piece]) -> tuple[str, list[str]]:
    """Returns the final text, and what was provisional whenever that changed."""
    final, provisional, seen = "", "", []
    for piece in pieces:
        if piece.is_provisional:
            provisional = provisional[: piece.position] + piece.text
            seen.append(provisional)
        else:
            assert piece.position == len(final)
            final += piece.text
    return final, seen


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_text_is_that_of_an_exact_prefill(
    predicted: Parts, sampling: SamplingConfig, seed: int
) -> None:
    exact, _ = predicted.run("exact", sampling=sampling, seed=seed)
    found, pieces = predicted.run("progressive", sampling=sampling, seed=seed)
    assert found.token_ids == exact.token_ids
    assert (found.text, found.lossless) == (exact.text, True)
    assert found.stats.n_provisional == progressive.PROVISIONAL_TOKENS
    assert found.stats.n_prefill_tokens == len(PROMPT)
    assert 0 < found.provisional_ms < found.ttft_ms
    check_sums(found)
    final, seen = replayed(pieces)
    assert final == exact.text
    n_right = found.stats.n_confirmed
    own = TextStream(Numerals(), ())
    kept = "".join(own.push(token) for token in exact.token_ids[:n_right])
    assert seen[-1] == kept  # what did not hold was withdrawn


@pytest.mark.parametrize(
    ("mode", "shares"),
    [
        # In fifths of a token: the first of five layers counts one, the other four the rest.
        ("progressive", [132, 260, 301, 301 + 4 * 132, 301 + 4 * 260]),
        ("predicted", [5 * 132, 5 * 260, 5 * (301 - progressive.N_COMPUTED)]),
    ],
)
def test_progress_is_of_all_layers(parts: Parts, mode: str, shares: list[int]) -> None:
    reported: list[tuple[str, int, int]] = []
    config = GenerationConfig(max_new_tokens=12, prefill=mode)
    stream = parts.stream(parts.sequence(), config, on_progress=lambda *done: reported.append(done))
    list(stream.pieces)
    assert reported == [("prefill", share // 5, len(PROMPT)) for share in shares]


def test_some_provisional_tokens_hold_and_some_do_not(predicted: Parts) -> None:
    """Otherwise the tests here would see one way only."""
    counts = [
        predicted.run("progressive", seed=i, sampling=SAMPLINGS[1])[0].stats.n_confirmed
        for i in range(4)
    ]
    if predicted.predictor is predicted.maps:
        assert max(counts) == progressive.PROVISIONAL_TOKENS
    else:
        assert min(counts) < progressive.PROVISIONAL_TOKENS


@pytest.mark.parametrize("grow", [right, nothing])
def test_speculation_goes_on_from_there(predicted: Parts, grow: Any) -> None:
    exact, _ = predicted.run("exact")
    drafter = ToyDrafter([*PROMPT, *exact.token_ids], grow)
    found, _ = predicted.run("progressive", fixed(drafter))
    assert found.token_ids == exact.token_ids
    check_sums(found)


@pytest.mark.parametrize("n_pieces", [0, 1, 3, 8, 9, 12])
@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_ended_at_any_moment_nothing_predicted_is_left(
    predicted: Parts, n_pieces: int, end: str
) -> None:
    sequence = predicted.sequence()
    stream = predicted.stream(sequence, GenerationConfig(max_new_tokens=24, prefill="progressive"))
    pieces = stream.pieces
    for _ in range(n_pieces):
        next(pieces)
    getattr(stream, end)()
    exact, _ = predicted.run("exact")
    n_final = stream.result.n_new_tokens
    assert stream.result.token_ids == exact.token_ids[:n_final]
    assert list(sequence.partial) == []
    again = predicted.stream(sequence, GenerationConfig(max_new_tokens=24, prefill="exact"))
    list(again)
    assert again.result.token_ids == exact.token_ids
    same_kv(sequence, PROMPT, predicted)


def test_an_interrupted_pass_leaves_nothing_predicted(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = parts.sequence()
    stream = parts.stream(sequence, GenerationConfig(max_new_tokens=24, prefill="progressive"))
    next(stream.pieces)

    def interrupt(passes: Sequence[Pass]) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sequence.model, "compute", interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    assert (list(sequence.partial), stream.result.token_ids) == ([], ())


def same_kv(sequence: TokenSequence, text: list[int], parts: Parts) -> None:
    """Asserts that the rows of ``text`` are those of a sequence of its own, bit for bit."""
    fresh = parts.sequence()
    fresh.forward(TokenTree.chain(text), ())
    fresh.commit(range(len(text)))
    expected = fresh.snapshot().kv_rows
    for name, rows in sequence.snapshot(len(text)).kv_rows.items():
        np.testing.assert_array_equal(rows, expected[name])


def test_the_kv_cache_is_exact_afterwards(predicted: Parts) -> None:
    sequence = predicted.sequence()
    stream = predicted.stream(sequence, GenerationConfig(max_new_tokens=12, prefill="progressive"))
    list(stream)
    text = [*PROMPT, *stream.result.token_ids]
    assert list(sequence.tokens) == text[: sequence.n_tokens]
    same_kv(sequence, text[: sequence.n_tokens], predicted)


def test_only_the_rest_of_a_known_prompt_is_read(parts: Parts) -> None:
    sequence = parts.sequence()
    list(
        parts.stream(
            sequence, GenerationConfig(max_new_tokens=1, prefill="exact"), None, PROMPT[:40]
        )
    )
    stream = parts.stream(sequence, GenerationConfig(max_new_tokens=9, prefill="progressive"))
    list(stream)
    assert stream.result.stats.n_reused_tokens == 40
    assert stream.result.stats.n_prefill_tokens == len(PROMPT) - 40
    assert stream.result.stats.n_provisional > 0
    assert stream.result.token_ids == parts.run("exact", max_new_tokens=9)[0].token_ids


@pytest.mark.parametrize("n_left", [1, 2, 5])
def test_a_context_that_is_full_soon(predicted: Parts, n_left: int) -> None:
    prompt = [int(t) for t in np.random.default_rng(2).integers(0, 83, CONTEXT + 1 - n_left)]
    results: list[GenerationResult] = []
    for mode in ("exact", "progressive"):
        config = GenerationConfig(max_new_tokens=24, prefill=mode)
        stream = predicted.stream(predicted.sequence(), config, None, prompt)
        list(stream)
        results.append(stream.result)
    assert results[0].token_ids == results[1].token_ids
    assert results[1].finish_reason == "context"
    assert results[1].stats.n_provisional <= n_left - 1
    check_sums(results[1])


def test_stop_tokens_and_stop_texts_end_the_output_where_they_do(predicted: Parts) -> None:
    tokens = predicted.run("exact")[0].token_ids
    for i in (0, 2, 5):
        asked: dict[str, Any] = {"stop_token_ids": (tokens[i],)}
        exact, found = (predicted.run(mode, **asked)[0] for mode in ("exact", "progressive"))
        assert (found.token_ids, found.finish_reason) == (exact.token_ids, "stop")
        check_sums(found)
        asked = {"max_new_tokens": i + 1}
        exact, found = (predicted.run(mode, **asked)[0] for mode in ("exact", "progressive"))
        assert found.token_ids == exact.token_ids
        check_sums(found)


@pytest.mark.parametrize(
    ("mode", "n_tokens", "is_early"),
    [
        ("auto", progressive.MIN_TOKENS - 1, False),
        ("auto", progressive.MIN_TOKENS, True),
        ("progressive", 3, False),
        ("progressive", 20, False),
        ("progressive", 21, True),
        ("predicted", 20, False),
        ("exact", 300, False),
    ],
)
def test_short_prompts_are_read_at_once(
    parts: Parts, mode: str, n_tokens: int, is_early: bool
) -> None:
    config = GenerationConfig(max_new_tokens=4, prefill=mode)
    stream = parts.stream(parts.sequence(), config, None, PROMPT[:n_tokens])
    list(stream)
    assert (stream.result.stats.n_provisional > 0) == is_early
    assert stream.result.lossless


def test_auto_reads_at_once_where_the_exit_is_late(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progressive, "MAX_SHARE", 0.1)
    assert parts.run("auto")[0].stats.n_provisional == 0
    monkeypatch.setattr(progressive, "MAX_HIDDEN_BYTES", 1000)
    assert parts.run("progressive")[0].stats.n_provisional == 0


def test_predicted_rows_stay_with_their_request(parts: Parts) -> None:
    sequence = parts.sequence()
    stream = parts.stream(sequence, GenerationConfig(max_new_tokens=12, prefill="predicted"))
    next(stream)
    assert sequence.n_exact < len(PROMPT) <= sequence.n_tokens
    assert sequence.snapshot().tokens == tuple(PROMPT[: sequence.n_exact])
    list(stream)
    assert not stream.result.lossless
    assert sequence.n_tokens == sequence.n_exact == progressive.N_SINKS
    check_sums(stream.result)
    exact = parts.run("exact")[0]
    again = parts.stream(sequence, GenerationConfig(max_new_tokens=24, prefill="exact"))
    list(again)
    assert again.result.token_ids == exact.token_ids


def test_what_the_next_layer_keeps_is_predicted_as_attention_would_write_it(parts: Parts) -> None:
    """Its keys and values are linear in the normed stream: little but the ridge is missed."""
    exact, approximate = parts.sequence(), parts.sequence()
    chain = TokenTree.chain(PROMPT[:50])
    exact.forward(chain, ())
    exact.commit(range(50))
    rows = approximate.run(Pass(approximate, chain, (), (DEPTH,), layers=range(DEPTH)))
    hidden = rows.hidden[DEPTH].copy()
    approximate.commit(range(50))
    with pytest.raises(SessionError, match="expected those of partial tokens from 0 of 50 on"):
        approximate.predict(parts.maps, hidden[10:])
    with pytest.raises(SessionError, match="0 with predicted rows"):
        approximate.adopt_predicted()
    approximate.predict(parts.maps, hidden)
    late = range(DEPTH, N_LAYERS)
    last = TokenTree.chain(PROMPT[49:50])
    approximate.run(Pass(approximate, last, (0,), layers=late, entry=hidden[49:], n_skipped=49))
    with pytest.raises(SessionError, match="looked at predicted rows"):
        approximate.commit((0,))
    approximate.predict(parts.maps, hidden)
    kept = [s.state.snapshot(0, 50) for s in (approximate, exact)]
    for name, found in kept[0].items():
        np.testing.assert_array_equal(found[:DEPTH], kept[1][name][:DEPTH])
    found, expected = (plain_kv(rows, parts.config, DEPTH) for rows in kept)
    width = found.shape[1] // (N_LAYERS - DEPTH)
    shares = [
        np.square((found - expected)[4:, i : i + width]).sum()
        / np.square(expected[4:, i : i + width]).sum()
        for i in range(0, found.shape[1], width)
    ]
    assert shares[0] < 0.005
    assert shares[0] < min(shares[1:])


def test_keys_are_turned_back(parts: Parts) -> None:
    """What is fitted to are the projections of the model, whatever the KV cache makes of them."""
    sequence = parts.sequence()
    chain = TokenTree.chain(PROMPT[:50])
    rows = sequence.run(Pass(sequence, chain, (), (DEPTH,), layers=range(DEPTH)))
    hidden = rows.hidden[DEPTH].astype(np.float64)
    sequence.forward(chain, ())
    sequence.commit(range(50))
    weights, prefix = parts.source.weights, f"layers.{DEPTH}"
    normed = hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + 1e-5)
    normed = normed * weights[f"{prefix}.input_layernorm.weight"]
    expected = np.concatenate(
        [
            normed @ weights[f"{prefix}.self_attn.{n}.weight"].T
            + weights[f"{prefix}.self_attn.{n}.bias"]
            for n in ("k_proj", "v_proj")
        ],
        axis=1,
    )
    found = plain_kv(sequence.snapshot().kv_rows, parts.config, DEPTH)[:, : expected.shape[1]]
    step = np.abs(expected).max() / 127  # of int8 codes, of which the rotation mixes a few
    np.testing.assert_allclose(found, expected, atol=2 * step)


def test_layers_with_windows(make_source: Any, tmp_path: Path) -> None:
    """Rings that hold less than the prompt make room until its later layers are computed."""
    windows = (LayerConfig(48, 1e4, window=24), LayerConfig(48, 1e4))
    source = make_source(
        max_positions=CONTEXT, n_layers=N_LAYERS, has_qkv_bias=True, head_size=20,
        layers=(*windows, *windows, windows[0]),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_panels, "RING_ROOM", 150)
        parts = Parts(tmp_path, source, "int8")
    assert parts.fitted.unexplained < 1
    exact, _ = parts.run("exact")
    for before in ([], PROMPT[:200]):
        sequence = parts.sequence()
        if before:
            sequence.forward(TokenTree.chain(before), ())
            sequence.commit(range(len(before)))
        config = GenerationConfig(max_new_tokens=24, prefill="progressive")
        stream = parts.stream(sequence, config)
        list(stream.pieces)
        assert stream.result.token_ids == exact.token_ids
        assert stream.result.stats.n_reused_tokens == len(before)
