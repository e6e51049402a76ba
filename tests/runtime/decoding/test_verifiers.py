"""Verifiers: their distributions by exact enumeration of every random decision, and their rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgedec.runtime.decoding.verifiers import Verdict, find_verifier, verifier_names
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.decoding.verifiers.verifier import Chance
from edgedec.runtime.drafting.draft_tree import DraftTree

from ..draft_toys import Script, every_way
from .verifier_tables import (
    Draw,
    Float64,
    Tables,
    TableTarget,
    V,
    drawn_tree,
    fixed_tree,
    probs_of,
    tables_of,
)

MakeTree = Callable[[Draw], DraftTree]


def one_hot(token: int) -> Float64:
    return np.eye(V)[token]


def table_pairs() -> list[tuple[str, Tables, Tables]]:
    """Returns named pairs of target and draft tables, the adversarial ones included."""
    rng = np.random.default_rng(0)
    pairs = [
        (f"random {i}", tables_of(lambda: probs_of(rng)), tables_of(lambda: probs_of(rng, 3)))
        for i in range(4)
    ]
    same = tables_of(lambda: probs_of(rng))
    halves = (
        tables_of(lambda: np.array([0.3, 0.7, 0, 0])),
        tables_of(lambda: np.array([0, 0, 0.5, 0.5])),
    )
    overlap = tables_of(lambda: np.array([0, 0.25, 0.75, 0]))
    flat = tables_of(lambda: np.full(V, 0.25))
    spread = tables_of(lambda: probs_of(rng))
    pairs += [
        ("equal", same, same),
        ("disjoint", *halves),
        ("zeros in both", halves[0], overlap),
        ("ties", flat, flat),
        ("ties against spread", flat, spread),
        ("one-hot draft", spread, tables_of(lambda: one_hot(2))),
        ("one-hot target", tables_of(lambda: one_hot(1)), spread),
        ("one-hot both", tables_of(lambda: one_hot(1)), tables_of(lambda: one_hot(1))),
        ("one-hot each", tables_of(lambda: one_hot(1)), tables_of(lambda: one_hot(3))),
    ]
    return pairs


PAIRS = table_pairs()
IDS = [name for name, _, _ in PAIRS]


def joint_law(
    target: Tables, verify: Callable[[DraftTree, TableTarget, Chance], Verdict], make_tree: MakeTree
) -> Float64:
    """Returns the distribution of two tokens over all drafts and decisions. Shapes: [V, V]."""
    joint, n_outcomes = np.zeros((V, V)), 0

    def run(script: Script) -> tuple[int, ...]:
        tree = make_tree(lambda probs: script.draws(0, probs))
        verdict = verify(tree, TableTarget(target, tree), script)
        return (*(tree.nodes[i].token for i in verdict.path), verdict.next_token)

    for weight, emitted in every_way(run):
        n_outcomes += 1
        if len(emitted) == 1:
            joint[emitted[0]] += weight * target[emitted]
        else:
            joint[emitted[:2]] += weight
    assert n_outcomes > 0
    return joint


def total_variation(a: Float64, b: Float64) -> float:
    return 0.5 * float(np.abs(a - b).sum())


def exact_law(target: Tables) -> Float64:
    return np.stack([target[()][i] * target[(i,)] for i in range(V)])


@pytest.mark.slow
@pytest.mark.parametrize("branching", [(1, 1), (2, 1), (1, 3), (4,)], ids=str)
@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS], ids=IDS)
def test_law_is_exact_for_drawn_trees(
    branching: Sequence[int], target: Tables, draft: Tables
) -> None:
    verify = find_verifier("deterministic").verify
    distribution = joint_law(target, verify, lambda draw: drawn_tree(draft, branching, draw))
    assert total_variation(distribution, exact_law(target)) < 1e-12


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS], ids=IDS)
def test_law_is_exact_for_any_tree(seed: int, target: Tables, draft: Tables) -> None:
    rng = np.random.default_rng(seed)
    paths = [tuple(rng.integers(0, V, rng.integers(1, 3)).tolist()) for _ in range(seed)]
    distribution = joint_law(
        target, find_verifier("deterministic").verify, lambda draw: fixed_tree(paths)
    )
    assert total_variation(distribution, exact_law(target)) < 1e-12


@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS], ids=IDS)
def test_deterministic_rule_bears_any_selection(target: Tables, draft: Tables) -> None:
    def picky(draw: Draw) -> DraftTree:
        """Draws two, keeps the likelier, and drops it if the draft model doubts it."""
        probs = draft[()]
        best = max(draw(probs), draw(probs), key=lambda token: probs[token])
        return fixed_tree([(best, draw(draft[(best,)]))] if probs[best] > 0.3 else [])

    distribution = joint_law(target, find_verifier("deterministic").verify, picky)
    assert total_variation(distribution, exact_law(target)) < 1e-12


def test_enumeration_sees_a_wrong_rule() -> None:
    _, target, _ = PAIRS[0]
    distribution = joint_law(target, Typical().verify, lambda draw: fixed_tree([(0, 1), (1,)]))
    assert total_variation(distribution, exact_law(target)) > 0.02


def test_acceptance_is_as_published() -> None:
    """One draft that is drawn is kept as often as both models choose the same token."""
    for _, target, draft in PAIRS[:4]:

        def is_kept(script: Script, target: Tables = target, draft: Tables = draft) -> bool:
            tree = drawn_tree(draft, (1,), lambda probs: script.draws(0, probs))
            verify = find_verifier("deterministic").verify
            return bool(verify(tree, TableTarget(target, tree), script).path)

        share = sum(weight for weight, is_accepted in every_way(is_kept) if is_accepted)
        assert share == pytest.approx(float(target[()] @ draft[()]))


@pytest.mark.parametrize("name", ["deterministic", "shared-gumbel"])
def test_siblings_after_an_impossible_one_are_tried(name: str) -> None:
    tables = tables_of(lambda: one_hot(1))
    tree = fixed_tree([(3,), (1,)])
    assert find_verifier(name).verify(tree, TableTarget(tables, tree), Script([])).path == (1,)


def test_verdict_tells_correction_from_bonus_and_what_was_evaluated() -> None:
    tables = tables_of(lambda: one_hot(1))
    tree = fixed_tree([(1, 0), (3, 1), (1, 2)])  # nodes 1, 1-0, 3, 3-1, 1-2
    for name in ("shared-gumbel", "typical"):
        verdict = find_verifier(name).verify(tree, TableTarget(tables, tree), Script([]))
        assert verdict == Verdict((0,), 1, False, frozenset({0, 1, 2, 4}))
    verdict = find_verifier("deterministic").verify(tree, TableTarget(tables, tree), Script([]))
    assert verdict == Verdict((0,), 1, False, frozenset({0, 1, 4}))
    empty = find_verifier("deterministic").verify(
        DraftTree(), TableTarget(tables, DraftTree()), Script([])
    )
    assert empty == Verdict((), 1, True, frozenset())


def test_typical_takes_the_longest_plausible_path() -> None:
    rows = {
        (): np.array([0.5, 0.3, 0.15, 0.05]),
        (0,): np.array([0.04, 0.03, 0.03, 0.9]),
        (1,): np.array([0.25, 0.25, 0.25, 0.25]),
        (2,): np.array([0.1, 0.2, 0.3, 0.4]),
        (1, 0): one_hot(3),
        (1, 3): one_hot(2),
    }
    tree = fixed_tree([(0, 1), (1, 0), (1, 3), (2,), (3,)])

    def kept(epsilon: float, delta: float) -> list[int]:
        verdict = Typical(epsilon, delta).verify(tree, TableTarget(rows, tree), Script([]))
        return [tree.nodes[i].token for i in verdict.path]

    # Entropy is ln 4 after token 1: all four are plausible, and the first of equals is taken.
    assert kept(0.09, 0.3) == [1, 0]
    # A threshold of 0.3 forbids that; token 0 is the likelier of the two left.
    assert kept(0.3, 9.0) == [0]
    assert kept(0.6, 9.0) == []
    # exp(-entropy) is 0.25 after token 1, and 0.32 at the root.
    assert kept(0.9, 1.01) == [0]
    assert kept(0.9, 0.9) == [1, 0]


def test_registry_tells_what_each_rule_promises() -> None:
    rules = {name: find_verifier(name) for name in verifier_names()}
    facts = {name: (rule.is_lossless, rule.is_exact) for name, rule in rules.items()}
    assert facts == {
        "shared-gumbel": (True, True),
        "deterministic": (True, False),
        "typical": (False, False),
    }
    assert all(name == rule.name for name, rule in rules.items())
