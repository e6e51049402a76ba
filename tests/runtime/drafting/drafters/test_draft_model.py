"""The draft model: what it proposes, what it computes for that, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgedec.models.errors import SessionError
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, Unread
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.draft.tree_drafting import (
    MAX_MISSING,
    N_RECENT,
    TreeDrafting,
)
from edgedec.runtime.drafting.isolation import IsolatedModelDrafter
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import choose
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.text.token_map import TokenMap

from ...conftest import ToyModel, ToySession
from .rounds import check_tree, context_of, outcome_of, paths_of
from .watched_session import (
    PROMPT,
    VOCAB,
    WatchedSession,
    make_drafter,
    make_drafting,
    peaked,
    plain,
    propose,
    spine,
)

WIDE = Budget(n_nodes=6, depth=4, n_step_nodes=3)


def test_a_chain_is_what_the_draft_model_would_write() -> None:
    sure = lambda prefix: 8 * peaked(prefix)  # noqa: E731
    session = WatchedSession(rule=sure)
    tree = propose(make_drafting(session), context_of(PROMPT), Budget(n_nodes=7, depth=7))
    assert spine(tree) == plain(session, PROMPT, 7)


@pytest.mark.parametrize("n_step_nodes", [1, 2, 8])
def test_the_first_children_are_what_it_would_write(n_step_nodes: int) -> None:
    session = WatchedSession()
    budget = Budget(n_nodes=12, depth=5, n_step_nodes=n_step_nodes)
    tree = propose(make_drafting(session), context_of(PROMPT), budget)
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
    tree = propose(make_drafting(session), context_of(PROMPT), budget)
    assert paths_of(tree) == expected


def test_drafting_ends_when_a_pass_is_not_worth_it() -> None:
    session = WatchedSession()
    drafting = make_drafting(session)
    tree = propose(drafting, context_of(PROMPT), replace(WIDE, min_step_value=1.1))
    assert {node.depth for node in tree.nodes} == {1}
    cost = drafting.passes.cost
    assert (cost.n_fed, cost.n_levels, session.n_passes) == (4, 0, 1)
    tree = propose(drafting, context_of(PROMPT), replace(WIDE, min_value=2.0))
    assert len(tree) == 0
    tree = propose(drafting, context_of(PROMPT), WIDE)
    assert max(node.depth for node in tree.nodes) > 1
    assert drafting.passes.cost.n_levels > 0
    assert drafting.passes.cost.n_level_rows <= 3 * drafting.passes.cost.n_levels
    assert drafting.passes.cost.level_ms > 0


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


@pytest.mark.slow
@settings(max_examples=150)
@given(plan=rounds, is_greedy=st.booleans())
@example(plan=WRONG_GUESS, is_greedy=False)
def test_in_step_with_the_text_whatever_happens(plan: list[Any], is_greedy: bool) -> None:
    """Nothing is computed twice, and the trees are those of a drafter that knows no past.

    But when the whole text is found among rejected drafts, their own followers are not kept.
    """
    session = WatchedSession()
    drafter, text = make_drafter(session), list(PROMPT)
    sampling = SamplingConfig() if is_greedy else SamplingConfig(temperature=0.8)
    drafting = drafter.begin(DraftPrompt(list(text)))
    noise, n_least_fed = Noise(7), 1
    for kind, n_tokens, n_nodes, n_step_nodes, seed in plan:
        rng = np.random.default_rng(seed)
        context = DraftContext(list(text), len(PROMPT), sampling, noise)
        if kind == "stopped":
            drafting.end(text)
            assert list(session.tokens) == text[: session.n_tokens]
            drafting = drafter.begin(DraftPrompt(list(text)))
            continue
        tree = DraftTree()
        if kind != "unseen":
            budget = Budget(n_nodes=n_nodes, depth=4, n_step_nodes=n_step_nodes)
            tree = propose(drafting, context, budget)
            fresh = propose(make_drafting(prompt=text), context, budget)
            assert shape(tree) == shape(fresh)
            assert list(session.tokens) == text
            n_least_fed = min(n_least_fed, drafting.passes.cost.n_fed)
        truth = rng.integers(0, VOCAB, n_tokens).tolist()
        if kind == "drafted" and len(tree):
            leaf = int(rng.integers(len(tree)))
            truth = [tree.nodes[i].token for i in tree.path(leaf)] + truth[:1]
        text += outcome_of(tree, truth).emitted
    drafting.end(text)
    assert list(session.tokens) == text[: session.n_tokens]
    if n_least_fed > 0 and all(kind != "stopped" for kind, *_ in plan):
        assert len(set(session.computed)) == len(session.computed)


def shape(tree: DraftTree) -> list[tuple[int, int]]:
    return [(node.token, node.parent) for node in tree.nodes]


def test_accepted_nodes_are_kept_and_others_forgotten() -> None:
    session = WatchedSession(rule=lambda prefix: 8 * peaked(prefix))
    drafting = make_drafting(session)
    tree = propose(drafting, context_of(PROMPT), Budget(n_nodes=4, depth=4))
    assert drafting.passes.cost.n_fed == 4
    drafted = spine(tree)
    text = [*PROMPT, *drafted[:2], (drafted[2] + 1) % VOCAB]
    assert drafting.unread(text).n_missing == 3
    propose(drafting, context_of(text), WIDE)
    assert drafting.passes.cost.n_fed == 1  # the correction token
    text = [*PROMPT, *drafted[:1], 0, 1, 2]
    drafting.end(text)
    assert list(session.tokens) == text[: session.n_tokens]


@pytest.mark.parametrize(("step_ms", "n_read"), [(24.0, N_RECENT), (25.0, 100)])
def test_of_a_prompt_that_takes_more_than_four_steps_the_end_is_read(
    step_ms: float, n_read: int
) -> None:
    session = WatchedSession(context=1024)
    prompt = [i * i % VOCAB for i in range(100)]
    drafting = make_drafter(session).begin(DraftPrompt(prompt))
    drafting.passes.price(1.0, step_ms)
    assert drafting.unread(prompt) == Unread(n_read)
    propose(drafting, context_of(prompt), WIDE)
    assert list(session.tokens) == prompt[-n_read:]
    drafting.passes.price(1.0, 10.0)
    text = [*prompt, *range(9)]
    assert drafting.unread(text).n_missing == 9
    text += [1 + (prompt[-N_RECENT] == 1)] * 50  # others drafted it
    assert drafting.unread(text).n_missing == N_RECENT


def test_of_a_long_prompt_only_the_end_is_read() -> None:
    session = WatchedSession(context=1024)
    drafter = make_drafter(session)
    prompt = [i * i % VOCAB for i in range(MAX_MISSING + 300)]
    drafting = drafter.begin(DraftPrompt(prompt))
    assert drafting.unread(prompt) == Unread(N_RECENT, is_end_only=True)
    tree = propose(drafting, context_of(prompt), WIDE)
    assert drafting.passes.cost.n_fed == N_RECENT
    assert list(session.tokens) == prompt[-N_RECENT:]
    text = [*prompt, *spine(tree)[:2]]
    assert drafting.unread(text).n_missing <= 2
    propose(drafting, context_of(text), WIDE)
    assert list(session.tokens) == text[-len(session.tokens) :]
    drafting.end(text)
    assert list(session.tokens) == text[-N_RECENT - 2 :][: session.n_tokens]
    again = drafter.begin(DraftPrompt(prompt[:20]))
    assert list(session.tokens) == prompt[: session.n_tokens]  # from the beginning again
    assert not again.unread(prompt[:20]).is_end_only


def test_prompts_are_fed_in_chunks_and_reused() -> None:
    session = WatchedSession(context=1024)
    drafter = make_drafter(session)
    prompt = [i * i % VOCAB for i in range(PREFILL_CHUNK + 5)]
    drafting = drafter.begin(DraftPrompt(prompt))
    assert session.n_passes == 0  # only a proposal costs anything
    propose(drafting, context_of(prompt), Budget(n_nodes=1, depth=1))
    assert session.n_passes == drafting.passes.cost.n_passes == 2
    drafting.end(prompt)
    other = [*prompt[:-3], 1, 1]
    drafting = drafter.begin(DraftPrompt(other))
    propose(drafting, context_of(other), Budget(n_nodes=1, depth=1))
    assert drafting.passes.cost.n_fed == 2


def test_where_the_draft_models_context_ends() -> None:
    session = WatchedSession(context=8)
    drafting = make_drafting(session, prompt=[1])
    assert len(propose(drafting, context_of([1] * 9), WIDE)) == 0
    tree = propose(drafting, context_of([1] * 7), Budget(n_nodes=6, depth=6))
    assert len(tree) == 6  # one node was computed, and its children need no room
    assert max(node.depth for node in tree.nodes) <= 2


def test_a_failed_pass_leaves_it_usable() -> None:
    session = WatchedSession()
    drafting = make_drafting(session)
    propose(drafting, context_of(PROMPT), WIDE)

    def fail() -> None:
        raise SessionError("no")

    for text in (PROMPT, [*PROMPT, 1, 2]):
        session.before_pass = fail
        with pytest.raises(SessionError):
            propose(drafting, context_of([*text, 5]), WIDE)
        session.before_pass = lambda: None
        tree = propose(drafting, context_of(text), WIDE)
        fresh = make_drafting(prompt=text)
        assert shape(tree) == shape(propose(fresh, context_of(text), WIDE))


def test_the_model_is_closed_with_its_role_not_with_a_drafter() -> None:
    session = WatchedSession()
    drafter = make_drafter(session)
    drafter.close()
    assert not session.is_closed
    drafter.role.close()
    assert session.is_closed
    assert session.toy.is_closed


def test_requests_have_sequences_of_their_own_and_give_them_back() -> None:
    """Two at once propose what each alone does; the next one finds what an earlier one left."""
    pool = SequencePool(ToyModel(VOCAB, peaked), 256)
    drafter = DraftModelDrafter(DraftRole(pool, TokenMap.same(VOCAB, VOCAB), VOCAB))
    texts = [list(PROMPT), [*PROMPT[:2], 8, 8]]
    draftings = [drafter.begin(DraftPrompt(text)) for text in texts]
    for _ in range(4):
        for drafting, text in zip(draftings, texts, strict=True):
            tree = propose(drafting, context_of(text), WIDE)
            alone = propose(make_drafting(prompt=text), context_of(text), WIDE)
            assert shape(tree) == shape(alone)
            assert list(drafting.passes.sequence.tokens) == text
            text += [*spine(tree)[:2], 7]
    first, second = (drafting.passes.sequence for drafting in draftings)
    assert first is not second
    draftings[0].end(texts[0])
    assert list(first.tokens) == texts[0][: first.n_tokens]
    assert first.n_tokens > len(PROMPT)
    assert drafter.begin(DraftPrompt([*texts[0], 5])).passes.sequence is first
    propose(draftings[1], context_of(texts[1]), WIDE)
    draftings[1].end(texts[1])
    assert drafter.begin(DraftPrompt(texts[1])).passes.sequence is second


def test_requests_of_a_drafter_that_failed_give_their_sequences_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = ToyModel(VOCAB, peaked)
    pool = SequencePool(model, 256)
    role = DraftRole(pool, TokenMap.same(VOCAB, VOCAB), VOCAB)
    drafter = IsolatedModelDrafter(DraftModelDrafter(role))
    draftings = [drafter.begin(DraftPrompt(PROMPT)) for _ in range(2)]
    first, second = (drafting for drafting in draftings if drafting is not None)

    def fail() -> None:
        raise SessionError("no")

    model.before_pass = fail
    tree = run_passes(first.propose(context_of(PROMPT), WIDE))
    assert len(tree) == 0
    assert first.is_off
    assert second.is_off
    assert drafter.begin(DraftPrompt(PROMPT)) is None
    for drafting in (first, second):
        drafting.end(PROMPT)
    sequences = {id(drafting.drafting.passes.sequence) for drafting in (first, second)}
    assert {id(pool.take(PROMPT)) for _ in range(2)} == sequences
    assert len(caplog.records) == 1


def test_a_trimmed_head_proposes_its_tokens_only() -> None:
    head = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    whole = WatchedSession()
    trimmed = ToySession(len(head), rule=lambda prefix: peaked(prefix)[head])
    drafting = make_drafting(trimmed, TokenMap.same(VOCAB, VOCAB, head))
    text = list(PROMPT)
    for _ in range(5):
        tree = propose(drafting, context_of(text), WIDE)
        assert {node.token for node in tree.nodes} <= set(head)
        row = whole.row_after(text)
        assert tree.nodes[0].token == max(head, key=lambda token: row[token])
        text.append(tree.nodes[0].token)
        assert list(trimmed.tokens) == text[:-1]


def test_tokens_without_a_counterpart_are_never_proposed() -> None:
    tokens = TokenMap.same(VOCAB, VOCAB)
    best = int(peaked(PROMPT).argmax())
    tokens.names[best] = -1
    tree = propose(make_drafting(token_map=tokens), context_of(PROMPT), WIDE)
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
            noise, drafting = Noise(i_round), drafter.begin(DraftPrompt(list(text)))
        context = DraftContext(list(text), len(PROMPT), sampling, noise)
        tree = propose(drafting, context, WIDE)
        node, path = ROOT, list(text)
        while children := tree.children(node):
            node = children[0]
            drawn = choose(session.row_after(path), sampling, noise, len(path))
            assert tree.nodes[node].token == drawn
            path.append(drawn)
        assert node != ROOT
        text = path
        if i_round % 5 == 4:
            drafting.end(text)


@pytest.fixture(scope="module")
def observed() -> TreeDrafting:
    """Returns a drafting that saw a target model which always takes its second choice."""
    drafting, text = make_drafting(), list(PROMPT)
    for _ in range(400):
        context = context_of(text[-8:])
        tree = propose(drafting, context, Budget(n_nodes=8, depth=1))
        row = peaked(text[-8:])
        outcome = outcome_of(tree, [int(np.argsort(-row)[1]), 0])
        drafting.observe(context, outcome)
        text += outcome.emitted[:1]
    return drafting


def test_it_learns_what_its_probabilities_are_worth(observed: TreeDrafting) -> None:
    tree = propose(observed, context_of(PROMPT), Budget(n_nodes=8, depth=1))
    values = {node.token: node.probability for node in tree.nodes}
    best, second = np.argsort(-peaked(PROMPT))[:2].tolist()
    assert values[second] > 3 * values[best]
    fresh = propose(make_drafting(), context_of(PROMPT), Budget(n_nodes=8, depth=1))
    assert fresh.nodes[0].token == best


def test_rounds_without_a_proposal_teach_nothing() -> None:
    drafting = make_drafting()
    context = context_of(PROMPT)
    drafting.observe(context, outcome_of(DraftTree(), [1]))
    propose(drafting, context, WIDE)
    drafting.observe(context_of([*PROMPT, 1]), outcome_of(DraftTree(), [1]))  # of another text
    fresh = propose(make_drafting(), context, WIDE)
    assert shape(propose(drafting, context, WIDE)) == shape(fresh)
    assert propose(drafting, context, WIDE).nodes == fresh.nodes
