"""Drafts along a text that the request predicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgedec import GenerationConfig
from edgedec.models.errors import ConfigError
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.rewrite import RewriteDrafter

from .rounds import begin, check_tree, context_of, paths_of, run_round

LINES = [[50 + i, *range(100 + 10 * i, 107 + 10 * i), 9] for i in range(12)]
"""Lines that begin with a token of their own and end with the same one."""

BUDGET = Budget(15, 15, 0.02)


def text_of(lines: Sequence[Sequence[int]]) -> list[int]:
    return [token for line in lines for token in line]


def n_rounds(prediction: Sequence[int], output: Sequence[int]) -> int:
    """Returns the rounds that ``output`` takes of a request that predicts ``prediction``."""
    text = [1, 2]
    drafting = RewriteDrafter().begin(DraftPrompt(text, prediction=prediction))
    n, end = 0, [*output, 0]
    while len(text) < len(end) + 2:
        check_tree(run_round(drafting, text, end[len(text) - 2 :], BUDGET), BUDGET, "rewrite")
        n += 1
    assert text[2:] == end
    return n


def changed(kind: str) -> list[list[int]]:
    """Returns the lines after one change of that kind in their midst."""
    lines = [list(line) for line in LINES]
    if kind == "replaced":
        lines[5][3] = 7
    elif kind == "replaced by three":
        lines[5][3:4] = [6, 7, 8]
    elif kind == "inserted":
        lines.insert(5, [55, 6, 7, 8, 9])
    elif kind == "deleted":
        del lines[5]
    elif kind == "moved":
        lines.append(lines.pop(2))
    return lines


def test_the_prediction_is_followed_from_its_beginning() -> None:
    assert n_rounds(text_of(LINES), text_of(LINES)) == -(-(len(text_of(LINES)) + 1) // 16)


@pytest.mark.parametrize(
    ("kind", "n_more"),
    [("replaced", 2), ("replaced by three", 4), ("inserted", 6), ("deleted", 2), ("moved", 4)],
)
def test_its_place_is_found_again(kind: str, n_more: int) -> None:
    output = text_of(changed(kind))
    assert n_rounds(text_of(LINES), output) <= -(-(len(output) + 1) // 16) + n_more


def test_other_text_is_not_drafted_along() -> None:
    rng = np.random.default_rng(0)
    other = rng.integers(200, 300, 120).tolist()
    drafting, text = RewriteDrafter().begin(DraftPrompt([1], prediction=text_of(LINES))), [1]
    sizes = []
    while len(text) < len(other):
        sizes.append(len(run_round(drafting, text, other[len(text) - 1 :], Budget(15, 15, 0.02))))
    assert sizes[-40:] == [0] * 40


def test_after_a_change_both_ways_to_go_on_are_proposed() -> None:
    drafting = RewriteDrafter().begin(DraftPrompt([1], prediction=[10, 11, 12, 13, 14, 15]))
    tree = drafting.propose(context_of([1, 10, 11, 99]), Budget(9, 1))
    assert paths_of(tree) == {(13,), (12,)}


def test_rounds_that_it_did_not_see_are_caught_up_with() -> None:
    drafting = RewriteDrafter().begin(DraftPrompt([1], prediction=text_of(LINES)))
    text = [1, *text_of(changed("inserted"))[:60]]
    assert (LINES[5][6], *LINES[5][7:], LINES[6][0]) in paths_of(
        drafting.propose(context_of([*text[: text.index(LINES[5][6])]]), BUDGET)
    )


def test_nothing_is_proposed_where_nothing_is_predicted() -> None:
    assert not len(begin(RewriteDrafter(), [1, 2]).propose(context_of([1, 2]), BUDGET))


def test_a_prediction_is_text() -> None:
    with pytest.raises(ConfigError, match="prediction is 3, expected text"):
        GenerationConfig(prediction=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="method rewrite needs a prediction"):
        GenerationConfig(method="lookup+rewrite")
