"""What light heads in the model's graph say becomes a tree, from the right row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.mtp import Mtp, MtpDrafting
from edgedec.runtime.sequences.rows import MtpRows

from .rounds import context_of, outcome_of

TEXT = [3, 1, 4]
WIDE = Budget(15, 8)


def said(n_rows: int) -> MtpRows:
    """Returns rows of two heads: head d of row r names 100 r + 10 d and those after it."""
    rows, heads = np.arange(n_rows)[:, None, None], np.arange(2)[None, :, None]
    ids = 100 * rows + 10 * heads + np.arange(8)
    shares = np.array([0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01], np.float32)
    return MtpRows(ids, np.broadcast_to(np.log(shares), ids.shape).astype(np.float32))


def reported(tree: DraftTree, truth: list[int], is_bound: bool = True) -> MtpDrafting:
    """Returns a drafting after a round in which ``truth`` came."""
    drafting = Mtp(is_bound).begin(DraftPrompt(TEXT))
    outcome = replace(outcome_of(tree, truth), mtp=said(1 + len(tree)))
    drafting.observe(context_of(TEXT), outcome)
    return drafting


def chain(*tokens: int) -> DraftTree:
    tree, at = DraftTree(), ROOT
    for token in tokens:
        at = tree.add(token, at, 0.5, "mtp")
    return tree


@pytest.mark.parametrize(("truth", "row"), [([7], 0), ([5, 7], 1), ([5, 6, 7], 2)])
def test_the_row_is_that_of_the_last_accepted_token(truth: list[int], row: int) -> None:
    tree = reported(chain(5, 6), truth).propose(context_of(TEXT + truth), WIDE)
    firsts = [tree.nodes[i].token for i in tree.children(ROOT)]
    assert sorted(firsts) == [100 * row + i for i in range(4)]


def test_a_draft_that_was_proposed_but_not_computed_has_no_row() -> None:
    """A tree may hold nodes behind those verified; one may be what the last row gave."""
    whole = chain(5, 6)
    outcome = replace(outcome_of(chain(5), [5, 6]), mtp=said(2))
    outcome = replace(outcome, tree=whole, path=(0, 1))
    drafting = Mtp(True).begin(DraftPrompt(TEXT))
    drafting.observe(context_of(TEXT), outcome)
    tree = drafting.propose(context_of([*TEXT, 5, 6]), WIDE)
    assert {tree.nodes[i].token for i in tree.children(ROOT)} == {100, 101, 102, 103}


def test_only_the_likeliest_is_followed_by_what_the_next_head_says() -> None:
    tree = reported(DraftTree(), [7]).propose(context_of([*TEXT, 7]), WIDE)
    assert [(n.token, n.depth) for n in tree.nodes if n.depth == 2] == [
        (10, 2), (11, 2), (12, 2), (13, 2)
    ]  # fmt: skip
    assert all(tree.nodes[n.parent].token == 0 for n in tree.nodes if n.depth == 2)
    assert max(n.depth for n in tree.nodes) == 2


def test_hydra_says_nothing_behind_another_token_than_the_likeliest() -> None:
    """Medusa's heads took none for given."""
    for is_bound, expected in ((True, 0), (False, 8)):
        drafting = Mtp(is_bound).begin(DraftPrompt(TEXT))
        outcome = replace(outcome_of(DraftTree(), [7]), mtp=said(1))
        outcome.stats.argmax[0] = 8  # but 7 was drawn
        drafting.observe(context_of(TEXT), outcome)
        assert len(drafting.propose(context_of([*TEXT, 7]), WIDE)) == expected


def test_what_was_said_of_another_text_is_not_proposed() -> None:
    drafting = reported(DraftTree(), [7])
    assert not len(drafting.propose(context_of([*TEXT, 7, 8]), WIDE))
    drafting.observe(context_of([*TEXT, 7]), outcome_of(DraftTree(), [2]))  # a pass without heads
    assert not len(drafting.propose(context_of([*TEXT, 7, 2]), WIDE))


def test_what_comes_true_is_believed_and_what_does_not_is_not() -> None:
    drafter = Mtp(True)
    for is_right in (True, False):
        drafting = drafter.begin(DraftPrompt(TEXT))
        for _ in range(60):
            drafting.observe(context_of(TEXT), replace(outcome_of(DraftTree(), [7]), mtp=said(1)))
            context = context_of([*TEXT, 7])
            tree = drafting.propose(context, Budget(1, 1))
            drafting.observe(context, outcome_of(tree, [0, 9] if is_right else [9]))
        found = drafter.rates.probability(0.5, 0)
        assert found > 0.9 if is_right else found < 0.2


@pytest.mark.parametrize(
    ("came", "right", "wrong"),
    [
        # Two classes for a depth, the likeliest token and the others; from the fourth on one pair.
        ([0], {0}, {1, 2, 3}),
        ([1], {1}, {0}),
        ([0, 10, 20, 30, 40], {0, 2, 4, 6}, {1, 3, 5, 7}),
        ([0, 10, 20, 30, 42], {0, 2, 4, 7}, {1, 3, 5, 6}),
    ],
)
def test_what_becomes_of_drafts_is_kept_apart_by_depth_and_rank(
    came: list[int], right: set[int], wrong: set[int]
) -> None:
    drafter = Mtp(True)
    drafting = drafter.begin(DraftPrompt(TEXT))
    rows = said(1)
    five = MtpRows(np.arange(0, 50, 10)[None, :, None] + np.arange(8), rows.log_probs[:, [0] * 5])
    drafting.observe(context_of(TEXT), replace(outcome_of(DraftTree(), [7]), mtp=five))
    context = context_of([*TEXT, 7])
    tree = drafting.propose(context, Budget(40, 8))
    assert max(node.depth for node in tree.nodes) == 5
    drafting.observe(context, outcome_of(tree, [*came, 9]))
    found = [drafter.rates.probability(0.01, kind) / 0.01 for kind in range(8)]
    assert {kind for kind in range(8) if found[kind] > 1.0001} == right
    assert {kind for kind in range(8) if found[kind] < 0.9999} == wrong
