"""A draft model whose rows of a long text are predicted from the target model's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.kernels import library
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.drafting.draft_kv_maps import (
    MIN_MAPPED,
    N_COMPUTED,
    N_SINKS,
    ROW_COST,
    DraftKVMaps,
)
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Pass, run_passes, while_idle
from edgedec.runtime.sequences.plain_kv import plain_kv
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.token_map import TokenMap
from edgedec.training.kv_maps.kv_progress import CorpusWindows
from edgedec.training.kv_maps.model_kv import fit_model, nearest_layers

from ..draft_toys import SAMPLINGS
from ..mapped_pair import CONTEXT, PROMPT, VOCAB, Pair, read


def role_of(pair: Pair) -> DraftRole:
    """Returns the role of the second model, which drafts for the first."""
    model = pair.models[1]
    mapped = DraftKVMaps(pair.maps, pair.configs[0], SequencePool(model, CONTEXT))
    tokens = TokenMap.same(VOCAB, VOCAB)
    return DraftRole(SequencePool(model, CONTEXT), tokens, VOCAB, mapped=mapped)


@pytest.fixture(scope="module", params=["float16", "int8"])
def pair(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    """A target model of four layers and a draft model of its first three."""
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    sources = [make_source(max_positions=CONTEXT, n_layers=n, has_qkv_bias=True) for n in (4, 3)]
    return Pair(tmp_path_factory.mktemp("pair"), sources, request.param)


def output(
    pair: Pair, role: DraftRole | None, asked: GenerationConfig, is_idle: bool = False
) -> DecodeState:
    """Returns the state after an output, drafted for by the draft model of ``role``."""
    strategy: DecodingStrategy = Plain()
    if role is not None:
        strategy = Speculative(FixedPlanner((), Budget(4, 4), model=DraftModelDrafter(role)))
    state = DecodeState.start(pair.sequence(0), PROMPT, asked)
    wanted = PrefillRequest(state.stats)
    prefilled = run_passes(ExactPrefiller().prefill(state.sequence, PROMPT, wanted))
    assert prefilled is not None
    state.rows, noise = prefilled.rows, Noise(asked.seed)
    decoding = strategy.begin(state, prefilled.hidden)
    while state.n_left > 0:
        for token in run_passes(decoding.step(noise)).tokens[: state.n_left]:
            state.append(token)
    decoding.end()
    if is_idle:
        run_passes(decoding.catch_up(state.sequence))
    return state


@pytest.mark.parametrize("sampling", SAMPLINGS[:4], ids=str)
def test_the_text_is_that_of_plain_decoding(pair: Pair, sampling: SamplingConfig) -> None:
    asked = GenerationConfig(max_new_tokens=24, sampling=sampling, seed=5)
    role = role_of(pair)
    found = output(pair, role, asked)
    assert found.tokens == output(pair, None, asked).tokens
    assert found.stats.n_proposed > 0
    assert role.mapped is not None
    kept = role.mapped.pool.latest
    assert kept.n_exact == N_SINKS < len(PROMPT) < kept.n_tokens
    assert role.pool.latest.n_tokens == 0  # who takes a sequence from here gets exact rows


def test_most_of_a_text_is_predicted(pair: Pair) -> None:
    """The draft model computes the sinks, the end, and nothing else; what it has it keeps."""
    role, target = role_of(pair), read(pair.sequence(0), PROMPT[:-1])
    assert role.mapped is not None
    passes = role.mapped.passes(PROMPT, target, role.lent)
    n_predicted = len(PROMPT) - N_COMPUTED - N_SINKS
    counted: list[int] = []
    passes.sequence.begin = watched(passes.sequence.begin, counted)  # type: ignore[method-assign]
    assert passes.n_missing(PROMPT) == N_SINKS + N_COMPUTED + round(ROW_COST * n_predicted)
    run_passes(passes.feed(PROMPT, with_logits=True))
    assert counted == [N_SINKS, N_COMPUTED]
    assert list(passes.sequence.tokens) == PROMPT
    assert passes.n_missing([*PROMPT, 1]) == 1
    end = [*PROMPT[:150], 7, 8, 9]
    assert passes.n_missing(end) == 3  # a text that goes on elsewhere


def test_idle_time_is_for_reading_what_was_predicted(pair: Pair) -> None:
    role, asked = role_of(pair), GenerationConfig(max_new_tokens=12)
    state = output(pair, role, asked, is_idle=True)
    assert role.mapped is not None
    exact = role.pool.latest
    assert list(exact.tokens) == state.tokens
    assert exact.n_exact == len(state.tokens)
    longer = [*state.tokens, *PROMPT[:80]]
    target = read(pair.sequence(0), longer[:-1])
    passes = role.mapped.passes(longer, target, role.lent)
    assert passes.sequence.n_exact == len(state.tokens)  # those take the place of predicted ones
    run_passes(passes.feed(longer, with_logits=True))
    passes.end(longer)
    assert exact.n_tokens == len(state.tokens)
    assert run_passes(passes.catch_up(longer)) == 80
    assert run_passes(passes.catch_up(longer)) == 0


def test_what_was_predicted_is_computed_when_that_is_asked(pair: Pair) -> None:
    role, target = role_of(pair), read(pair.sequence(0), PROMPT[:-1])
    assert role.mapped is not None
    passes = role.mapped.passes(PROMPT, target, role.lent)
    n_late = len(PROMPT) - N_COMPUTED
    assert passes.n_predicted(PROMPT) == n_late  # so many will be
    run_passes(passes.feed(PROMPT, with_logits=True))
    # Those behind the predicted ones are approximate, too.
    assert passes.n_predicted(PROMPT) == len(PROMPT) - N_SINKS
    n_tokens = passes.sequence.n_tokens
    passes.read_exactly()
    assert passes.n_predicted(PROMPT) == 0
    assert passes.sequence.n_tokens == N_SINKS < n_tokens
    passes.align(PROMPT)
    rows = run_passes(passes.feed(PROMPT, with_logits=True))
    assert passes.sequence.n_exact == len(PROMPT)
    exact = pair.sequence(1).forward(TokenTree.chain(PROMPT), (len(PROMPT) - 1,))
    assert np.array_equal(rows.logits, exact.logits)


def test_idle_time_that_ends_early(pair: Pair) -> None:
    role = role_of(pair)
    assert role.mapped is not None
    passes = role.mapped.passes(PROMPT, read(pair.sequence(0), PROMPT[:-1]), role.lent)
    run_passes(passes.feed(PROMPT, with_logits=True))
    passes.end(PROMPT)
    answers = iter([False, True])
    assert run_passes(while_idle(passes.catch_up(PROMPT), lambda: next(answers))) is None
    assert 0 < role.pool.latest.n_tokens < len(PROMPT)  # one pass was made, and is kept
    n_left = len(PROMPT) - role.pool.latest.n_tokens
    assert run_passes(while_idle(passes.catch_up(PROMPT), lambda: False)) == n_left
    assert role.pool.latest.n_tokens == len(PROMPT)


def test_nothing_is_read_again_that_was_read(pair: Pair) -> None:
    role, text = role_of(pair), PROMPT[:50]
    assert role.mapped is not None
    passes = role.mapped.passes(text, read(pair.sequence(0), text[:-1]), role.lent)
    run_passes(passes.feed(text, with_logits=True))
    passes.end(text)
    assert run_passes(passes.catch_up(text)) == 0


def test_what_a_predicted_row_costs_is_measured(pair: Pair) -> None:
    """One reading of 128 rows takes 64 ms to this clock: half a millisecond a row."""
    ticks = itertools.count(step=0.064)
    pool = SequencePool(pair.models[1], CONTEXT)
    reading = DraftKVMaps(pair.maps, pair.configs[0], pool, lambda: next(ticks))
    assert reading.row_cost == ROW_COST
    reading.price(2.0, read(pair.sequence(0), PROMPT[:20]))
    assert reading.row_cost == ROW_COST  # nothing could be measured
    reading.price(2.0, read(pair.sequence(0), PROMPT))
    assert reading.row_cost == pytest.approx(0.25)
    reading.price(1.0, read(pair.sequence(0), PROMPT))
    assert reading.row_cost == pytest.approx(0.5)
    role = replace(role_of(pair), mapped=reading)
    passes = reading.passes(PROMPT, read(pair.sequence(0), PROMPT[:-1]), role.lent)
    n_predicted = len(PROMPT) - N_COMPUTED - N_SINKS
    assert passes.n_missing(PROMPT) == N_SINKS + N_COMPUTED + round(0.5 * n_predicted)


@pytest.mark.parametrize("n_tokens", [1, 3, N_SINKS + N_COMPUTED + MIN_MAPPED - 1])
def test_short_texts_are_read(pair: Pair, n_tokens: int) -> None:
    role, text = role_of(pair), PROMPT[:n_tokens]
    assert role.mapped is not None
    passes = role.mapped.passes(text, read(pair.sequence(0), text), role.lent)
    run_passes(passes.feed(text, with_logits=True))
    assert passes.sequence.n_exact == n_tokens


def test_what_the_target_model_has_predicted_itself_is_not_mapped(pair: Pair) -> None:
    target = read(pair.sequence(1), PROMPT[:60])
    rows = np.zeros((100, pair.maps.hidden_size), np.float32)
    target.append_predicted(PROMPT[60:160], pair.maps, rows)
    role = role_of(pair)
    assert role.mapped is not None
    n_predicted = 60 - N_SINKS
    n_missing = len(PROMPT) - n_predicted + round(ROW_COST * n_predicted)
    assert role.mapped.passes(PROMPT, target, role.lent).n_missing(PROMPT) == n_missing


def watched(run: Any, counted: list[int]) -> Any:
    def counting(wanted: Pass) -> Any:
        counted.append(len(wanted.tree))
        return run(wanted)

    return counting


def test_a_model_is_mapped_to_itself(make_source: Any, tmp_path: Path) -> None:
    """What is read is what is predicted: next to nothing is missed, wherever a text begins."""
    source = make_source(max_positions=CONTEXT, n_layers=3)
    pair = Pair(tmp_path, [source, source], "float16")
    assert pair.fitted.unexplained < 0.001
    target, mapped = read(pair.sequence(0), PROMPT), role_of(pair).mapped
    assert mapped is not None
    found = read(pair.sequence(1), PROMPT[:37])
    mapped.read(found, target, len(PROMPT))
    with pytest.raises(SessionError, match="snapshot of tokens 0 to 200, expected 0 to 37"):
        found.snapshot(len(PROMPT))
    found._n_exact = len(PROMPT)
    kept = [plain_kv(s.snapshot().kv_rows, pair.configs[0]) for s in (found, target)]
    missed = np.square(kept[0] - kept[1])[37:].sum() / np.square(kept[1])[37:].sum()
    assert missed < 0.001


def test_layers_are_those_as_deep() -> None:
    assert [nearest_layers(i, 24, 28) for i in (0, 1, 12, 23)] == [
        range(3), range(3), range(13, 16), range(25, 28),
    ]  # fmt: skip
    assert [nearest_layers(i, 4, 2) for i in range(4)] == [range(2)] * 4
    assert nearest_layers(0, 1, 5) == range(3)


def test_predicted_tokens_that_cannot_be_appended(pair: Pair) -> None:
    sequence, rows = pair.sequence(1), np.zeros((2, pair.maps.hidden_size), np.float32)
    with pytest.raises(SessionError, match="2 rows for 3 tokens"):
        sequence.append_predicted([1, 2, 3], pair.maps, rows)
    read(sequence, [*PROMPT, *PROMPT[: CONTEXT - len(PROMPT) - 1]])
    with pytest.raises(SessionError, match="2 tokens after 319 needs 321 positions"):
        sequence.append_predicted([1, 2], pair.maps, rows)
    assert sequence.n_exact == sequence.n_tokens == CONTEXT - 1


def test_few_tokens_cannot_be_fitted(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="the corpus has 46 tokens, too few to fit maps from"):
        fit_model(*pair.readers(), CorpusWindows([PROMPT[:50]]))
