"""Lookup in prompt and output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.lookup import PromptLookup

from ..reference.test_suffix_automaton import longest_repeat
from .rounds import BUDGET, begin, check_tree, context_of, paths_of, probability_of, run_round


def propose(text: list[int], budget: Budget = BUDGET) -> set[tuple[int, ...]]:
    return paths_of(begin(PromptLookup(), text).propose(context_of(text), budget))


def test_copies_what_followed() -> None:
    text = [1, 2, 3, 4, 5, 6, 9, 2, 3]
    assert (4, 5, 6, 9, 2, 3) in propose(text)
    assert propose([1, 2, 3]) == set()
    assert propose([1]) == set()


def test_goes_round_loops() -> None:
    text = [1, 2, 3, 1, 2, 3, 1]
    assert (2, 3, 1, 2, 3, 1, 2, 3) in propose(text)


def test_prefers_the_longest_match() -> None:
    text = [1, 2, 3, 50, 8, 2, 3, 60, 9, 1, 2, 3]
    tree = begin(PromptLookup(), text).propose(context_of(text), BUDGET)
    assert tree.nodes[0].token == 50
    assert probability_of(tree, 50) > probability_of(tree, 60)


def test_branches_where_occurrences_disagree() -> None:
    text = [1, 2, 30, 1, 2, 40, 1, 2]
    drafter = PromptLookup()
    tree = begin(drafter, text).propose(context_of(text), BUDGET)
    assert [tree.nodes[i].token for i in tree.children(-1)] == [40, 30]  # the latest first
    text = [1, 2, 30, 1, 2, 30, 1, 2, 30, 1, 2, 40, 1, 2]
    tree = begin(drafter, text).propose(context_of(text), BUDGET)
    assert [tree.nodes[i].token for i in tree.children(-1)] == [30, 40]  # the frequent first


def test_three_branches_that_came_most_often_or_last() -> None:
    """The latest counts twice, and one more than were seen are counted in all."""
    seen = [30, 40, 40, 40, 50, 50, 60]
    text = [token for after in seen for token in (1, 2, after)] + [1, 2]
    tree = begin(PromptLookup(), text).propose(context_of(text), Budget(8, 1))
    assert [tree.nodes[i].token for i in tree.children(-1)] == [40, 50, 60]
    assert probability_of(tree, 40) == pytest.approx(1.5 * probability_of(tree, 60))
    assert probability_of(tree, 50) == pytest.approx(probability_of(tree, 60))
    text = [token for after in (30, 40, 40, 50) for token in (1, 2, after)] + [1, 2]
    again = begin(PromptLookup(), text).propose(context_of(text), Budget(8, 1))
    share_of_four, share_of_seven = 2 / 5, 3 / 8
    of_four = probability_of(again, 40) / share_of_four
    assert of_four == pytest.approx(probability_of(tree, 40) / share_of_seven)


def test_branches_deep_in_the_tree() -> None:
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 8, 1, 2]
    found = propose(text, Budget(n_nodes=16, depth=4))
    assert {(3, 4, 5), (3, 4, 6)} <= found


def test_copying_resumes_after_an_edit() -> None:
    source = list(range(100, 140))
    text = [*source, 1]
    drafting = begin(PromptLookup(), text)
    edited = [*source[:10], 77, *source[11:25]]
    rounds = 0
    text += source[:1]
    while text[len(source) + 1 :] != edited:
        missing = edited[len(text) - len(source) - 1 :]
        run_round(drafting, text, [*missing, 0] if len(missing) == 1 else missing)
        text = text[: len(source) + 1 + len(edited)]
        rounds += 1
    assert rounds <= 6  # copy, edit, the token to find the place again, copy


def test_knows_the_output_as_well_as_the_prompt() -> None:
    text = [1]
    drafting = begin(PromptLookup(), text)
    for token in (5, 6, 7, 8, 5, 6):
        run_round(drafting, text, [token])
    assert (7, 8) in paths_of(drafting.propose(context_of(text), BUDGET))


def test_a_longer_prompt_keeps_the_index_and_another_one_drops_it() -> None:
    drafter, text = PromptLookup(), [1, 2, 3, 4]
    drafter.begin(DraftPrompt(text)).end(text)
    assert len(drafter) == 1
    drafting = drafter.begin(DraftPrompt([*text, 2]))
    assert len(drafter) == 0
    assert (3, 4) in paths_of(drafting.propose(context_of([*text, 2]), BUDGET))
    drafting.end([*text, 2])
    other = drafter.begin(DraftPrompt([9, 2]))
    assert len(drafter) == 1
    assert paths_of(other.propose(context_of([9, 2]), BUDGET)) == set()


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=12),
    st.data(),
)
def test_longest_match_through_rounds_and_rewinds(
    emissions: list[list[int]], data: st.DataObject
) -> None:
    drafter, text = PromptLookup(), [0, 1, 2]
    drafting = drafter.begin(DraftPrompt(list(text)))
    for emitted in emissions:
        tree = run_round(drafting, text, emitted)
        check_tree(tree, BUDGET, "lookup")
        if data.draw(st.booleans()):
            text = text[: data.draw(st.integers(1, len(text)))]
            drafting.end(text)
            text = [*text, *data.draw(st.lists(st.integers(0, 3), max_size=3))]
            drafting = drafter.begin(DraftPrompt(list(text)))
        drafting.propose(context_of(text), BUDGET)
        assert drafting.longest_match() == longest_repeat(text)


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=40),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_budgets(text: list[int], n_nodes: int, depth: int, min_value: float) -> None:
    budget = Budget(n_nodes, depth, min_value)
    tree = begin(PromptLookup(), text).propose(context_of(text), budget)
    check_tree(tree, budget, "lookup")
    if n_nodes and depth and min_value == 0 and text[-1] in text[:-1]:
        assert len(tree) > 0


def test_belief_follows_what_is_accepted() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2]

    def belief(truth: list[int]) -> float:
        drafter = PromptLookup()
        for _ in range(20):
            run_round(begin(drafter, text), list(text), truth)
        return probability_of(begin(drafter, text).propose(context_of(text), BUDGET), 3)

    before = probability_of(begin(PromptLookup(), text).propose(context_of(text), BUDGET), 3)
    assert belief([3, 4, 5]) > before > belief([8])
