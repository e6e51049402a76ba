"""Engines that remember: prompts that take turns, and sessions that go through a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_models import open_graph_model
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.errors import SessionError
from edgedec.models.families import weight_shapes
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import MethodParts
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.session_memory import (
    DRAFT,
    TARGET,
    KnownModel,
    SessionMemory,
)
from edgedec.runtime.sequences.state import SessionState
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.token_map import TokenMap
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.targets.portable.run_portable import PortableModel

from ..conftest import CHATML, ToyModel, ToySession, toy_state
from ..engine.test_engine import reciting
from .lazy_toys import LazyModel

MB = 10**6
GREEDY = GenerationConfig(max_new_tokens=6, ignore_eos=True)
VOCAB = 330
CONTEXT = 256


def prompt(seed: int, n_tokens: int = 80) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, VOCAB, n_tokens)]


A, B, C = prompt(1), prompt(2), [*prompt(1)[:40], *prompt(3, 40)]
"""C begins as A does."""


@pytest.fixture(scope="module", params=["toy", "portable", "float16", "int8", "k5v4"])
def make_model(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Model]:
    """Returns a maker of one toy or tiny model."""
    if request.param == "toy":
        return lambda: LazyModel(VOCAB)
    source = make_source(vocab_size=VOCAB, max_positions=CONTEXT)
    model = emit_portable(source.config, ())
    if request.param != "portable":
        if not library.has_library():
            pytest.skip("the kernel library is not built")
        shapes = weight_shapes(source.config)
        formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
        model = fuse(model, source.config, formats, kv_format=request.param)
    folder = tmp_path_factory.mktemp(request.param)
    write_weights(model, source, folder)
    save_model(model, folder / "model.onnx")
    return lambda: open_graph_model(folder / "model.onnx", source.config, 1)


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tokenizer: Tokenizer, make_source: Any) -> MakeEngine:
    """Returns a maker of engines that remember."""
    config = make_source(vocab_size=VOCAB).config

    def make(
        model: Model,
        max_bytes: int = MB,
        strategy: DecodingStrategy | None = None,
        memory: SessionMemory | None = None,
        fingerprint: str = "tiny",
        context: int = CONTEXT,
    ) -> Engine:
        memory = memory or SessionMemory(max_bytes)
        memory.know(TARGET, KnownModel(fingerprint, config, context))
        encoder = PromptEncoder(tokenizer, ChatTemplate(CHATML))
        loaded = LoadedModel(model, tokenizer, encoder, MethodParts(context), memory=memory)
        return Engine(loaded, strategy)

    return make


def run(engine: Engine, tokens: Sequence[int]) -> tuple[list[int], int]:
    """Returns the tokens an engine adds and how many of the prompt's it did not compute."""
    result = engine.generate(list(tokens), GREEDY)
    n_reused = result.stats.n_reused_tokens
    assert result.stats.n_prefill_tokens == len(tokens) - n_reused
    return list(result.token_ids), n_reused


def held(engine: Engine, tokens: Sequence[int]) -> SessionState:
    """Returns what the engine has in the KV cache that holds most of ``tokens``."""
    with engine.borrowed(tokens) as sequence:
        return sequence.snapshot()


@pytest.mark.parity
def test_prompts_that_take_turns(make_engine: MakeEngine, make_model: Callable[[], Model]) -> None:
    engine = make_engine(make_model())
    alone = {i: run(make_engine(make_model()), p)[0] for i, p in enumerate((A, B, C))}
    assert run(engine, A) == (alone[0], 0)
    assert run(engine, B) == (alone[1], 0)
    assert run(engine, C) == (alone[2], 40)  # of A, in memory
    assert run(engine, A) == (alone[0], 79)  # all but the token whose logits are wanted
    assert run(engine, B) == (alone[1], 79)
    assert run(engine, [*A, *alone[0], 7, 8])[1] == 85  # the answer's last token was not computed
    assert run(engine, C) == (alone[2], 79)


@pytest.mark.parity
def test_rows_recalled_are_those_computed(
    make_engine: MakeEngine, make_model: Callable[[], Model]
) -> None:
    """Every row of the KV cache, bit for bit, piecewise recalled or computed."""
    engine, fresh = make_engine(make_model()), make_engine(make_model())
    for tokens in (A, C, B, [*A[:60], *B[:22]], B):
        run(engine, tokens)
    for tokens in ([*C, 5, 6, 7], [*A[:60], *B[:22], 9]):
        _, n_reused = run(engine, tokens)
        assert n_reused >= 79
        fresh.forget_prompts()
        run(fresh, tokens)
        got, expected = held(engine, tokens), held(fresh, tokens)
        assert got.tokens == expected.tokens
        if isinstance(engine.model, PortableModel):
            continue  # its rows depend on the shape of the pass
        for name, rows in expected.kv_rows.items():
            np.testing.assert_array_equal(got.kv_rows[name], rows)


def test_nothing_is_copied_without_need(make_engine: MakeEngine) -> None:
    model = LazyModel(VOCAB)
    engine = make_engine(model)
    tokens = list(A)
    for _ in range(4):
        added, _ = run(engine, tokens)  # a prompt that goes on
        tokens += [*added, 5]
    assert model.n_copied == 0
    run(engine, tokens[:-8])  # what is lost is soon computed again
    assert model.n_copied == 0
    run(engine, B)
    n_held = model.n_copied
    assert n_held == len(tokens[:-8]) + 5
    run(engine, A)  # B is copied; of A all is held
    assert model.n_copied == n_held + len(B) + 5
    run(engine, C)
    run(engine, A)
    assert model.n_copied == n_held + len(B) + 5 + (len(C) - 40 + 5)


def test_no_memory_no_copies(make_engine: MakeEngine) -> None:
    model = LazyModel(VOCAB)
    engine = make_engine(model, max_bytes=0)
    for tokens, n_reused in ((A, 0), (B, 0), (A, 0), (C, 40)):
        assert run(engine, tokens)[1] == n_reused
    assert model.n_copied == 0


@pytest.mark.parametrize("n_chunks", [0, 1])
def test_cancelled_turns_lose_nothing_else(make_engine: MakeEngine, n_chunks: int) -> None:
    model = LazyModel(VOCAB)
    engine = make_engine(model)
    alone, _ = run(engine, A)
    stream = engine.stream([*C, *prompt(9, 150)], GREEDY)
    if n_chunks:
        model.before_pass = stream.cancel
    else:
        next(stream)
        stream.cancel()
    list(stream)
    model.before_pass = lambda: None
    with engine.borrowed(A) as sequence:
        assert list(sequence.tokens) == A[:40]
    assert run(engine, A) == (alone, 79)
    assert run(engine, [*C, 4])[1] == 40  # the cancelled text was dropped


def test_cancelled_before_it_began(make_engine: MakeEngine) -> None:
    engine = make_engine(LazyModel(VOCAB))
    run(engine, A)
    engine.stream(B, GREEDY).cancel()
    tokens = held(engine, A).tokens
    assert tokens[:80] == tuple(A)
    assert len(tokens) == 85


def test_conversations_that_take_turns(make_engine: MakeEngine, tokenizer: Tokenizer) -> None:
    """Each of two conversations computes only what is new to it."""
    rule = reciting(tokenizer, "The quick brown fox jumps.")
    engine = make_engine(LazyModel(VOCAB, rule), context=600)
    one = engine.conversation("You know everything about foxes and nothing else.", GREEDY)
    two = engine.conversation("You know everything about dogs, lazy ones, too.", GREEDY)
    held: dict[Any, int] = {}
    for turn in range(3):
        for conversation in (one, two):
            stream = conversation.send(f"Tell me about the quick brown fox number {turn}.")
            list(stream)
            stats, result = stream.result.stats, stream.result
            if turn:
                assert stats.n_reused_tokens >= held[conversation]
            held[conversation] = result.n_prompt_tokens + result.n_new_tokens - 1
    dropped = one.send("And now something else, a long question about lazy dogs and cafes.")
    next(dropped)
    dropped.cancel()
    stream = two.send("Go on.")
    list(stream)
    assert stream.result.stats.n_reused_tokens >= held[two]
    stream = one.send("Go on.")
    list(stream)
    assert stream.result.stats.n_reused_tokens >= held[one]


@pytest.mark.parity
def test_a_text_in_progress_is_begun_with(
    make_engine: MakeEngine, make_model: Callable[[], Model]
) -> None:
    """Its rows are those of both; each goes on by itself, also where the first goes back."""
    alone = [run(make_engine(make_model()), p)[0] for p in (A, C, [*A, 9])]
    engine = make_engine(make_model())
    stream = engine.stream(A, GREEDY)
    next(stream)
    assert run(engine, C) == (alone[1], 40)
    assert run(engine, [*A, 9]) == (alone[2], 80)
    stream.cancel()  # it forgets its prompt, and is the next one's to write to
    assert run(engine, B)[1] == 0
    assert run(engine, A) == (alone[0], 79)
    assert run(engine, [*A, 9]) == (alone[2], 80)


@pytest.mark.parametrize("max_bytes", [0, MB])
def test_groups_learn_nothing_of_each_other(make_engine: MakeEngine, max_bytes: int) -> None:
    engine = make_engine(LazyModel(VOCAB), max_bytes)

    def n_reused(group: str) -> int:
        config = replace(GREEDY, prefix_group=group)
        return engine.generate(A, config).stats.n_reused_tokens

    stream = engine.stream(A, replace(GREEDY, prefix_group="one"))
    next(stream)
    assert [n_reused(group) for group in ("", "two", "one")] == [0, 0, 79]
    stream.stop()
    assert n_reused("three") == 0
    if max_bytes:
        known = [n_reused(group) for group in ("", "two", "one")]
        assert known == [79, 79, 80]  # the last one's text is in a sequence still


@pytest.mark.parity
def test_requests_at_once_compute_a_beginning_once(
    make_engine: MakeEngine, make_model: Callable[[], Model]
) -> None:
    engine = make_engine(make_model())
    prompts = [[*A, *prompt(5), 10 + i] for i in range(6)]
    alone = [run(make_engine(make_model()), p)[0] for p in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = [*pool.map(partial(run, engine), prompts)]
    assert [tokens for tokens, _ in found] == alone
    assert sorted(n_reused for _, n_reused in found) == [0, *[160] * 5]


def test_one_that_gives_up_is_waited_for_no_longer(make_engine: MakeEngine) -> None:
    """The first reader stops at its first chunk, while the other waits for it."""
    model = LazyModel(VOCAB)
    engine, long = make_engine(model), [*A, *prompt(5), *prompt(6, 60)]
    first = engine.stream(long, GREEDY)
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future[tuple[list[int], int]]] = []

        def begin_another() -> None:
            model.before_pass = lambda: None
            waiting.append(pool.submit(run, engine, long))
            first.cancel()

        model.before_pass = begin_another
        list(first)
        assert waiting[0].result()[1] <= 128


REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 120), st.integers(0, 3), st.integers(0, 60)),
    max_size=8,
)


@given(requests=REQUESTS, max_bytes=st.integers(0, 3000))
@settings(max_examples=50)
def test_any_requests_any_limit(requests: list[tuple[int, int, int, int]], max_bytes: int) -> None:
    """Rows are those of the tokens; the sequence's own prefix is never made shorter."""
    session = ToySession(VOCAB)
    memory = SessionMemory(max_bytes)
    for first, n_first, second, n_second in requests:
        tokens = [*prompt(first, 120)[:n_first], *prompt(second, 60)[:n_second]]
        n_own = common_prefix(session.tokens, tokens[:-1])
        memory.recall(TARGET, session, tokens)
        assert n_own <= common_prefix(session.tokens, tokens)
        assert memory.prefix_cache.nbytes <= max_bytes
        rows = toy_state(session.tokens, 0).kv_rows["rows"]
        np.testing.assert_array_equal(session.snapshot().kv_rows["rows"], rows)
        session.restore(toy_state(tokens, 0))


def draft_strategy(memory: SessionMemory, draft: ToyModel) -> Speculative:
    """Returns speculation with a draft model that remembers."""
    pool = memory.open(DRAFT, draft, CONTEXT)
    role = DraftRole(pool, TokenMap.same(VOCAB, VOCAB), VOCAB, partial(memory.recall, DRAFT))
    planner = FixedPlanner([], Budget(n_nodes=3, depth=3), model=DraftModelDrafter(role))
    return Speculative(planner)


def test_draft_models_remember_too(make_engine: MakeEngine) -> None:
    memory, draft = SessionMemory(MB), ToyModel(VOCAB)
    engine = make_engine(ToyModel(VOCAB), strategy=draft_strategy(memory, draft), memory=memory)
    alone = {i: run(make_engine(ToyModel(VOCAB)), p)[0] for i, p in enumerate((A, B))}
    costs = []
    for i, tokens in ((0, A), (1, B), (0, A), (1, B)):
        before = draft.n_rows
        added, n_reused = run(engine, tokens)
        assert added == alone[i]
        costs.append((n_reused, draft.n_rows - before))
    assert [n_reused for n_reused, _ in costs] == [0, 0, 79, 79]
    for first, again in ((costs[0][1], costs[2][1]), (costs[1][1], costs[3][1])):
        assert again <= first - 79
    cache = memory.prefix_cache
    assert cache.n_known(TARGET, A) == cache.n_known(DRAFT, A) == 80


@pytest.mark.parity
def test_saved_and_loaded(
    make_engine: MakeEngine, make_model: Callable[[], Model], tmp_path: Path
) -> None:
    path = tmp_path / "a.session"
    first = make_engine(make_model(), max_bytes=0)
    added, _ = run(first, A)
    first.save_session(path)
    second = make_engine(make_model(), max_bytes=0)
    assert second.load_session(path) == 85
    got, expected = held(second, A), held(first, A)
    assert got.tokens == expected.tokens == (*A, *added[:-1])
    for name, rows in expected.kv_rows.items():
        np.testing.assert_array_equal(got.kv_rows[name], rows)
    longer = [*A, *added, 3, 4]
    assert run(second, longer) == run(first, longer)
    assert run(second, [*longer, 9])[1] == 88


def test_loading_remembers_what_it_replaces(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(LazyModel(VOCAB))
    run(engine, A)
    engine.save_session(tmp_path / "a")
    run(engine, B)
    engine.load_session(tmp_path / "a")
    assert run(engine, [*B, 5])[1] == 80


def test_a_text_that_was_read_before_the_latest_is_saved(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = make_engine(LazyModel(VOCAB))
    run(engine, A)
    run(engine, B)
    for name, text in (("a", A), ("b", B), ("none", [9, 9, 9])):
        engine.save_session(tmp_path / name, text)
    fresh = make_engine(LazyModel(VOCAB))
    assert fresh.load_session(tmp_path / "a") == len(A)
    assert fresh.load_session(tmp_path / "b") == len(B)
    assert fresh.load_session(tmp_path / "none") == 0
    assert run(fresh, [*A, 5])[1] == len(A)
    assert run(fresh, [*B, 5])[1] == len(B)


def test_refused_files_change_nothing(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine, other = make_engine(ToyModel(VOCAB)), make_engine(ToyModel(VOCAB), context=16)
    foreign = make_engine(ToyModel(VOCAB), fingerprint="another")
    run(engine, A)
    engine.save_session(tmp_path / "a")
    with pytest.raises(SessionError, match="'tiny', this one is 'another'"):
        foreign.load_session(tmp_path / "a")
    with pytest.raises(SessionError, match="use a larger --context"):
        other.load_session(tmp_path / "a")
    assert held(foreign, A).tokens == held(other, A).tokens == ()
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data[:-1] + b"\1")
    run(engine, B)
    with pytest.raises(SessionError, match="SHA-256"):
        engine.load_session(tmp_path / "a")
    assert held(engine, B).tokens[:80] == tuple(B)


def test_streams_go_on_beside_files(make_engine: MakeEngine, tmp_path: Path) -> None:
    """What a stream computed so far is saved; what is loaded goes where no stream is."""
    model = ToyModel(VOCAB)
    engine = make_engine(model)
    alone = {i: run(make_engine(ToyModel(VOCAB)), p)[0] for i, p in enumerate((A, B))}
    stream = engine.stream(A, GREEDY)
    list(zip(range(2), stream, strict=False))
    engine.save_session(tmp_path / "a")
    n_held = model.n_rows
    assert n_held > len(A)
    other = engine.stream(B, GREEDY)
    next(other)
    assert engine.load_session(tmp_path / "a") == n_held
    for going, expected in ((stream, alone[0]), (other, alone[1])):
        assert not going.is_finished
        list(going)
        assert list(going.result.token_ids) == expected
    n_computed = model.n_rows
    fresh = make_engine(model)
    fresh.load_session(tmp_path / "a")
    assert run(fresh, [*A, *alone[0]])[1] == n_held
    assert model.n_rows == n_computed + 80 + 6 - n_held + 5
    engine.close()
    for act in (engine.save_session, engine.load_session):
        with pytest.raises(SessionError, match="closed"):
            act(tmp_path / "a")


def test_an_engine_without_a_bundle_has_no_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = ToyModel(tokenizer.vocab_size)
    engine = Engine(LoadedModel(model, tokenizer, PromptEncoder(tokenizer), MethodParts(CONTEXT)))
    with pytest.raises(SessionError, match="of no bundle"):
        engine.save_session(tmp_path / "a")
