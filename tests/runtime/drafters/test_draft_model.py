"""The draft model: what it proposes, what it computes for that, and what it learns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgedec.models.errors import SessionError
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.drafters.draft.calibration import KNOTS, Calibration
from edgedec.runtime.drafters.draft.draft_model import MAX_MISSING, N_RECENT, DraftModelDrafter
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import choose
from edgedec.runtime.sessions.prefill import PREFILL_CHUNK
from edgedec.runtime.text.token_map import TokenMap

from ..conftest import ToySession
from .rounds import check_tree, context_of, outcome_of, paths_of
from .watched_session import VOCAB, WatchedSession, make_drafter, peaked, plain, spine

PROMPT = [3, 14, 15, 9]
WIDE = Budget(n_nodes=6, depth=4, n_step_nodes=3)


def test_a_chain_is_what_the_draft_model_would_write() -> None:
    sure = lambda prefix: 8 * peaked(prefix)  # noqa: E731
    session = WatchedSession(rule=sure)
    tree = make_drafter(session).propose(context_of(PROMPT), Budget(n_nodes=7, depth=7))
    assert spine(tree) == plain(session, PROMPT, 7)


@pytest.mark.parametrize("n_step_nodes", [1, 2, 8])
def test_the_first_children_are_what_it_would_write(n_step_nodes: int) -> None:
    session = WatchedSession()
    budget = Budget(n_nodes=12, depth=5, n_step_nodes=n_step_nodes)
    tree = make_drafter(session).propose(context_of(PROMPT), budget)
    check_tree(tree, budget, "draft")
    assert 1 < len(spine(tree)) < len(tree)
    assert spine(tree) == plain(session, PROMPT, len(spine(tree)))


@pytest.mark.parametrize("n_nodes", [1, 2, 5, 9])
@pytest.mark.parametrize("n_step_nodes", [1, 4])
def test_the_tree_holds_the_likeliest_nodes_of_all(n_nodes: int, n_step_nodes: int) -> None:
    """Against every path of three tokens, by the product of the draft model's probabilities."""
    session = WatchedSession()
    paths: list[tuple[float, tuple[int, ...]]] = []

    def visit(path: tuple[int, ...], value: float) -> None:
        row = session.row_after([*PROMPT, *path]).astype(np.float64)
        probabilities = np.exp(row - row.max())
        probabilities /= probabilities.sum()
        for token in np.argsort(-row)[:8].tolist():
            paths.append((value * probabilities[token], (*path, token)))
            if len(path) < 2:
                visit((*path, token), value * probabilities[token])

    visit((), 1.0)
    expected = {path for _, path in sorted(paths, reverse=True)[:n_nodes]}
    budget = Budget(n_nodes=n_nodes, depth=3, n_step_nodes=n_step_nodes)
    tree = make_drafter(session).propose(context_of(PROMPT), budget)
    assert paths_of(tree) == expected


def test_drafting_ends_when_a_pass_is_not_worth_it() -> None:
    session = WatchedSession()
    drafter = make_drafter(session)
    tree = drafter.propose(context_of(PROMPT), replace(WIDE, min_step_value=1.1))
    assert {node.depth for node in tree.nodes} == {1}
    assert (drafter.cost.n_fed, drafter.cost.n_levels, session.n_passes) == (4, 0, 1)
    tree = drafter.propose(context_of(PROMPT), replace(WIDE, min_value=2.0))
    assert len(tree) == 0
    tree = drafter.propose(context_of(PROMPT), WIDE)
    assert max(node.depth for node in tree.nodes) > 1
    assert drafter.cost.n_levels > 0
    assert drafter.cost.n_level_rows <= 3 * drafter.cost.n_levels
    assert drafter.cost.level_ms > 0


rounds = st.lists(
    st.tuples(
        st.sampled_from(["drafted", "random", "unseen", "stopped"]),
        st.integers(1, 6),  # tokens of the round
        st.integers(1, 7),  # nodes
        st.integers(1, 4),  # nodes of a pass
        st.integers(0, 2**20),
    ),
    max_size=12,
)


WRONG_GUESS = [("random", 1, 1, 1, 0), ("drafted", 1, 1, 1, 1), ("random", 1, 1, 1, 1)]
WRONG_GUESS += [("random", 1, 1, 1, 1), ("random", 1, 2, 1, 1), ("drafted", 1, 1, 1, 0)]
"""A guess rides along in a pass, is not among what is likely there, and its parent comes true."""


@settings(max_examples=150, deadline=None)
@given(plan=rounds, is_greedy=st.booleans())
@example(plan=WRONG_GUESS, is_greedy=False)
def test_in_step_with_the_text_whatever_happens(plan: list[Any], is_greedy: bool) -> None:
    """Nothing is computed twice, and the trees are those of a drafter that knows no past.

    But when the whole text is found among rejected drafts, their own followers are not kept.
    """
    session = WatchedSession()
    drafter, text = make_drafter(session), list(PROMPT)
    sampling = SamplingConfig() if is_greedy else SamplingConfig(temperature=0.8)
    drafter.begin(text)
    noise, n_least_fed = Noise(7), 1
    for kind, n_tokens, n_nodes, n_step_nodes, seed in plan:
        rng = np.random.default_rng(seed)
        context = DraftContext(list(text), len(PROMPT), sampling, noise)
        if kind == "stopped":
            drafter.end(text)
            assert list(session.tokens) == text[: session.n_tokens]
            continue
        tree = DraftTree()
        if kind != "unseen":
            budget = Budget(n_nodes=n_nodes, depth=4, n_step_nodes=n_step_nodes)
            tree = drafter.propose(context, budget)
            fresh = make_drafter().propose(context, budget)
            assert shape(tree) == shape(fresh)
            assert list(session.tokens) == text
            n_least_fed = min(n_least_fed, drafter.cost.n_fed)
        truth = rng.integers(0, VOCAB, n_tokens).tolist()
        if kind == "drafted" and len(tree):
            leaf = int(rng.integers(len(tree)))
            truth = [tree.nodes[i].token for i in tree.path(leaf)] + truth[:1]
        text += outcome_of(tree, truth).emitted
    drafter.end(text)
    assert list(session.tokens) == text[: session.n_tokens]
    if n_least_fed > 0 and all(kind != "stopped" for kind, *_ in plan):
        assert len(set(session.computed)) == len(session.computed)


def shape(tree: DraftTree) -> list[tuple[int, int]]:
    return [(node.token, node.parent) for node in tree.nodes]


def test_accepted_nodes_are_kept_and_others_forgotten() -> None:
    session = WatchedSession(rule=lambda prefix: 8 * peaked(prefix))
    drafter = make_drafter(session)
    tree = drafter.propose(context_of(PROMPT), Budget(n_nodes=4, depth=4))
    assert drafter.cost.n_fed == 4
    drafted = spine(tree)
    text = [*PROMPT, *drafted[:2], (drafted[2] + 1) % VOCAB]
    assert drafter.n_missing(text) == 3
    drafter.propose(context_of(text), WIDE)
    assert drafter.cost.n_fed == 1  # the correction token
    text = [*PROMPT, *drafted[:1], 0, 1, 2]
    drafter.end(text)
    assert list(session.tokens) == text[: session.n_tokens]


def test_of_a_long_prompt_only_the_end_is_read() -> None:
    session = WatchedSession(context=1024)
    drafter = make_drafter(session)
    prompt = [i * i % VOCAB for i in range(MAX_MISSING + 300)]
    drafter.begin(prompt)
    assert not drafter.reads_end_only
    assert drafter.n_missing(prompt) == N_RECENT
    assert drafter.reads_end_only
    tree = drafter.propose(context_of(prompt), WIDE)
    assert drafter.cost.n_fed == N_RECENT
    assert list(session.tokens) == prompt[-N_RECENT:]
    text = [*prompt, *spine(tree)[:2]]
    assert drafter.n_missing(text) <= 2
    drafter.propose(context_of(text), WIDE)
    assert list(session.tokens) == text[-len(session.tokens) :]
    drafter.end(text)
    assert list(session.tokens) == text[-N_RECENT - 2 :][: session.n_tokens]
    drafter.begin(prompt[:20])
    assert list(session.tokens) == prompt[: session.n_tokens]  # from the beginning again


def test_prompts_are_fed_in_chunks_and_reused() -> None:
    session = WatchedSession(context=1024)
    drafter = make_drafter(session)
    prompt = [i * i % VOCAB for i in range(PREFILL_CHUNK + 5)]
    drafter.begin(prompt)
    assert session.n_passes == 0  # only a proposal costs anything
    drafter.propose(context_of(prompt), Budget(n_nodes=1, depth=1))
    assert session.n_passes == drafter.cost.n_passes == 2
    drafter.end(prompt)
    other = [*prompt[:-3], 1, 1]
    drafter.begin(other)
    drafter.propose(context_of(other), Budget(n_nodes=1, depth=1))
    assert drafter.cost.n_fed == 2


def test_where_the_draft_models_context_ends() -> None:
    session = WatchedSession(context=8)
    drafter = make_drafter(session)
    assert len(drafter.propose(context_of([1] * 9), WIDE)) == 0
    tree = drafter.propose(context_of([1] * 7), Budget(n_nodes=6, depth=6))
    assert len(tree) == 6  # one node was computed, and its children need no room
    assert max(node.depth for node in tree.nodes) <= 2


def test_a_failed_pass_leaves_it_usable() -> None:
    session = WatchedSession()
    drafter = make_drafter(session)
    drafter.propose(context_of(PROMPT), WIDE)

    def fail() -> None:
        raise SessionError("no")

    for text in (PROMPT, [*PROMPT, 1, 2]):
        session.before_pass = fail
        with pytest.raises(SessionError):
            drafter.propose(context_of([*text, 5]), WIDE)
        session.before_pass = lambda: None
        tree = drafter.propose(context_of(text), WIDE)
        assert shape(tree) == shape(make_drafter().propose(context_of(text), WIDE))


def test_close_closes_the_session() -> None:
    session = WatchedSession()
    make_drafter(session).close()
    assert session.is_closed


def test_a_trimmed_head_proposes_its_tokens_only() -> None:
    head = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    whole = WatchedSession()
    trimmed = ToySession(len(head), rule=lambda prefix: peaked(prefix)[head])
    drafter = make_drafter(trimmed, TokenMap.same(VOCAB, VOCAB, head))
    text = list(PROMPT)
    for _ in range(5):
        tree = drafter.propose(context_of(text), WIDE)
        assert {node.token for node in tree.nodes} <= set(head)
        row = whole.row_after(text)
        assert tree.nodes[0].token == max(head, key=lambda token: row[token])
        text.append(tree.nodes[0].token)
        assert list(trimmed.tokens) == text[:-1]


def test_tokens_without_a_counterpart_are_never_proposed() -> None:
    tokens = TokenMap.same(VOCAB, VOCAB)
    best = int(peaked(PROMPT).argmax())
    tokens.names[best] = -1
    tree = make_drafter(token_map=tokens).propose(context_of(PROMPT), WIDE)
    assert best not in {node.token for node in tree.nodes}
    assert len(tree) == WIDE.n_nodes


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=0.8),
        SamplingConfig(temperature=1.3, top_k=6),
        SamplingConfig(temperature=1.0, top_p=0.7, min_p=0.05),
    ],
    ids=["whole", "top k", "top p"],
)
def test_coupled_drafts_draw_what_the_model_itself_would(sampling: SamplingConfig) -> None:
    session, text = WatchedSession(), list(PROMPT)
    drafter = make_drafter(session)
    for i_round in range(20):
        if i_round % 5 == 0:
            noise = Noise(i_round)  # another request
        context = DraftContext(list(text), len(PROMPT), sampling, noise)
        tree = drafter.propose(context, WIDE)
        node, path = ROOT, list(text)
        while children := tree.children(node):
            node = children[0]
            drawn = choose(session.row_after(path), sampling, noise, len(path))
            assert tree.nodes[node].token == drawn
            path.append(drawn)
        assert node != ROOT
        text = path


@pytest.fixture(scope="module")
def observed() -> DraftModelDrafter:
    """Returns a drafter that saw a target model which always takes its second choice."""
    drafter, text = make_drafter(), list(PROMPT)
    for _ in range(400):
        context = context_of(text[-8:])
        tree = drafter.propose(context, Budget(n_nodes=8, depth=1))
        row = peaked(text[-8:])
        outcome = outcome_of(tree, [int(np.argsort(-row)[1]), 0])
        drafter.observe(context, outcome)
        text += outcome.emitted[:1]
    return drafter


def test_it_learns_what_its_probabilities_are_worth(observed: DraftModelDrafter) -> None:
    tree = observed.propose(context_of(PROMPT), Budget(n_nodes=8, depth=1))
    values = {node.token: node.probability for node in tree.nodes}
    best, second = np.argsort(-peaked(PROMPT))[:2].tolist()
    assert values[second] > 3 * values[best]
    fresh = make_drafter().propose(context_of(PROMPT), Budget(n_nodes=8, depth=1))
    assert fresh.nodes[0].token == best


def test_rounds_without_a_proposal_teach_nothing() -> None:
    drafter = make_drafter()
    context = context_of(PROMPT)
    drafter.observe(context, outcome_of(DraftTree(), [1]))
    drafter.propose(context, WIDE)
    drafter.observe(context_of([*PROMPT, 1]), outcome_of(DraftTree(), [1]))  # of another text
    fresh = make_drafter().propose(context, WIDE)
    assert shape(drafter.propose(context, WIDE)) == shape(fresh)
    assert drafter.propose(context, WIDE).nodes == fresh.nodes


probabilities = st.floats(0, 1)


def test_calibration_begins_as_the_identity() -> None:
    calibration = Calibration()
    for probability in (*KNOTS, 0.123, 0.77, 0.999):
        assert calibration.acceptance(probability) == pytest.approx(probability)


@given(drafts=st.lists(st.tuples(probabilities, st.booleans()), max_size=60))
def test_calibration_rises_and_stays_a_probability(drafts: list[tuple[float, bool]]) -> None:
    calibration = Calibration()
    for start in range(0, len(drafts), 3):
        calibration.learn(drafts[start : start + 3])
    values = [calibration.acceptance(i / 200) for i in range(201)]
    assert all(0 <= value <= 1 for value in values)
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_calibration_learns_rates(rate: float) -> None:
    calibration, rng = Calibration(), np.random.default_rng(0)
    for probability in bernoulli(rng, 600):
        calibration.learn([(probability, bool(rng.random() < rate))])
    for probability in (0.42, 0.5, 0.58):
        assert calibration.acceptance(probability) == pytest.approx(rate, abs=0.12)
    for probability in bernoulli(rng, 600):  # the text changes its character
        calibration.learn([(probability, rate < 0.5)])
    assert calibration.acceptance(0.5) == pytest.approx(float(rate < 0.5), abs=0.15)


def bernoulli(rng: np.random.Generator, n: int) -> Iterator[float]:
    yield from rng.uniform(0.4, 0.6, n).tolist()
