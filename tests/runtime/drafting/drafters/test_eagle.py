"""What a draft head is given to read: the target's hidden states, shifted by one, or its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgedec.models.draft_heads import head_features
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, ModelDrafting
from edgedec.runtime.drafting.drafters.eagle.eagle_drafter import MAX_READ, EagleDrafter
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.text.token_map import TokenMap

from ...draft_toys import HEAD_WIDTH, HIDDEN_LAYERS, ToyHead, toy_output
from .rounds import outcome_of

V, EPSILON = 12, 1e-5
WIDE = Budget(n_nodes=6, depth=3, n_step_nodes=2)
Hidden = dict[int, np.ndarray]


def hidden_after(text: Sequence[int], places: range) -> Hidden:
    """Returns hidden states that depend on all tokens up to each place."""
    rows = [np.random.default_rng(text[: i + 1]).standard_normal(HEAD_WIDTH) for i in places]
    states = np.array(rows, np.float32).reshape(len(rows), HEAD_WIDTH)
    return {layer: states * (layer + 1) for layer in HIDDEN_LAYERS}


def feature_at(text: Sequence[int], place: int) -> np.ndarray:
    hidden = hidden_after(text, range(place, place + 1))
    return head_features(hidden, HIDDEN_LAYERS, EPSILON)[0]


@pytest.fixture
def head() -> ToyHead:
    return ToyHead(V)


@pytest.fixture
def drafter(head: ToyHead) -> EagleDrafter:
    pool = SequencePool(head, 600)
    return EagleDrafter(HeadRole(pool, TokenMap.same(V, V), V, HIDDEN_LAYERS, EPSILON))


def begin(drafter: EagleDrafter, text: list[int], n_cached: int = 0) -> ModelDrafting:
    """Begins with a prompt of which the target model had ``n_cached`` tokens already."""
    hidden = hidden_after(text, range(n_cached, len(text)))
    return drafter.begin(DraftPrompt(text, hidden))


def a_round(drafting: ModelDrafting, text: list[int], n_right: int) -> None:
    """Proposes, and emits so many of the first chain's tokens and one that was not proposed."""
    context = DraftContext(list(text), 1, SamplingConfig(), Noise(0))
    tree = run_passes(drafting.propose(context, WIDE))
    path: list[int] = []
    for _ in range(n_right):
        children = tree.children(path[-1] if path else -1)
        path += children[:1]
    tokens = [tree.nodes[i].token for i in path]
    last = {tree.nodes[i].token for i in tree.children(path[-1] if path else -1)}
    truth = [*tokens, min(set(range(V)) - last)]
    outcome = outcome_of(tree, truth)
    assert list(outcome.emitted) == truth
    drafting.observe(context, with_hidden(outcome, text, tree))
    text += truth


def with_hidden(outcome: object, text: list[int], tree: DraftTree) -> object:
    """Returns the outcome with hidden states of the anchor and of every node."""
    from dataclasses import replace

    lines = [[]] + [[tree.nodes[j].token for j in tree.path(i)] for i in range(len(tree))]
    states = [
        hidden_after([*text, *line], range(len(text) + len(line) - 1, len(text) + len(line)))
        for line in lines
    ]
    hidden = {layer: np.concatenate([s[layer] for s in states]) for layer in HIDDEN_LAYERS}
    return replace(outcome, hidden=hidden)  # type: ignore[type-var]


def check_reads(head: ToyHead, text: Sequence[int], start: int = 0) -> tuple[int, int]:
    """Checks every row that was read of ``text``; returns how many had features of either kind."""
    n_target = n_own = 0
    outputs: dict[tuple[int, ...], np.ndarray] = {}
    for prefix, features in head.reads:
        is_own = bool(features[-HEAD_WIDTH:].any())
        if is_own:
            assert not features[:-HEAD_WIDTH].any()
            np.testing.assert_array_equal(features[-HEAD_WIDTH:], outputs[prefix[:-1]])
            n_own += 1
        elif list(prefix) == list(text[start : start + len(prefix)]):
            place = start + len(prefix) - 1
            expected = feature_at(text, place - 1) if len(prefix) > 1 else 0 * features
            np.testing.assert_array_equal(features, expected)
            n_target += 1
        outputs[prefix] = toy_output(features)
    return n_target, n_own


def test_rows_read_the_features_of_the_token_before(head: ToyHead, drafter: EagleDrafter) -> None:
    text = [3, 1, 4, 1, 5]
    drafting = begin(drafter, text)
    text.append(9)
    for n_right in (0, 2, 1, 3, 0):
        a_round(drafting, text, n_right)
    n_read = drafting.passes.sequence.n_tokens
    assert list(drafting.passes.sequence.tokens) == text[:n_read]
    n_target, n_own = check_reads(head, text)
    assert n_target == n_read  # each once, those of accepted drafts with the target's features
    assert n_own > 5


def test_the_next_prompt_goes_on_where_the_last_ended(head: ToyHead, drafter: EagleDrafter) -> None:
    text = [3, 1, 4, 1, 5]
    drafting = begin(drafter, text)
    text.append(9)
    a_round(drafting, text, 2)
    a_round(drafting, text, 1)
    drafting.end(text)
    n_known = len(text) - 1  # the target model never read the last token
    prompt = [*text, 2, 7, 1]
    again = begin(drafter, prompt, n_known)
    n_read = again.passes.sequence.n_tokens
    assert again.unread(prompt).n_missing == len(prompt) - n_read < len(prompt) - 4
    prompt.append(8)
    a_round(again, prompt, 1)
    n_target, _ = check_reads(head, prompt)
    assert n_target == again.passes.sequence.n_tokens


def test_it_begins_where_features_begin(head: ToyHead, drafter: EagleDrafter) -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    drafting = begin(drafter, text, n_cached=5)
    text.append(7)
    assert drafting.unread(text).n_missing == 4
    a_round(drafting, text, 1)
    assert list(drafting.passes.sequence.tokens) == text[5 : 5 + drafting.passes.sequence.n_tokens]
    assert check_reads(head, text, start=5)[0] == 4


def test_of_a_long_prompt_the_end_is_read(head: ToyHead, drafter: EagleDrafter) -> None:
    text = np.random.default_rng(1).integers(0, V, MAX_READ + 100).tolist()
    drafting = begin(drafter, text)
    text.append(7)
    a_round(drafting, text, 0)
    assert check_reads(head, text, start=100)[0] == MAX_READ + 1


def test_what_it_was_not_asked_for_piles_up_to_a_bound(
    head: ToyHead, drafter: EagleDrafter
) -> None:
    text = [3, 1, 4, 1, 5]
    drafting = begin(drafter, text)
    text.append(9)
    a_round(drafting, text, 0)
    for token in np.random.default_rng(2).integers(0, V, MAX_READ + 50).tolist():
        context = DraftContext(list(text), 1, SamplingConfig(), Noise(0))
        outcome = outcome_of(DraftTree(), [token])
        drafting.observe(context, with_hidden(outcome, text, DraftTree()))
        text.append(token)
        assert drafting.unread(text).n_missing <= MAX_READ + 1
    head.reads.clear()
    a_round(drafting, text, 1)
    assert check_reads(head, text, start=len(text) - 2 - MAX_READ - 1)[0] == MAX_READ + 1


def test_what_another_text_left_is_forgotten(head: ToyHead, drafter: EagleDrafter) -> None:
    text = [3, 1, 4, 1, 5]
    drafting = begin(drafter, text)
    text.append(9)
    a_round(drafting, text, 2)
    drafting.end(text)
    head.reads.clear()
    other = [3, 1, 4, 2, 2, 2]
    drafting = begin(drafter, other, n_cached=3)
    other.append(0)
    a_round(drafting, other, 1)
    # The features of the token before the first new one went when they were read.
    assert check_reads(head, other, start=3)[0] == 4
    assert list(drafting.passes.sequence.tokens) == other[3:7]


def test_nothing_is_drafted_without_hidden_states(drafter: EagleDrafter) -> None:
    text = [1, 2, 3]
    drafting = drafter.begin(DraftPrompt(text))
    context = DraftContext(text, 1, SamplingConfig(), Noise(0))
    assert len(run_passes(drafting.propose(context, WIDE))) == 0
    drafting.end(text)
