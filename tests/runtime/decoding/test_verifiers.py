"""Verifiers: their distributions by exact enumeration of every random decision, and their rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgedec.labs.verifiers.k_seq import find_rho
from edgedec.models.errors import SessionError
from edgedec.runtime.decoding.verifiers import Verdict, find_verifier, verifier_names
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.decoding.verifiers.verifier import Chance, NoiseChance
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree, SiblingKind
from edgedec.runtime.sampling.noise import Noise

from ..draft_toys import Script, every_way
from .verifier_tables import (
    DISTINCT,
    INDEPENDENT,
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


CASES = [
    ("rejection", DISTINCT, (1, 1)),
    ("rejection", DISTINCT, (2, 1)),
    ("rejection", DISTINCT, (1, 3)),
    ("rejection", DISTINCT, (4,)),
    ("rejection", INDEPENDENT, (2, 1)),
    ("rejection", INDEPENDENT, (1, 2)),
    ("rejection", INDEPENDENT, (3,)),
    ("k-seq", INDEPENDENT, (1, 1)),
    ("k-seq", INDEPENDENT, (2, 1)),
    ("k-seq", INDEPENDENT, (1, 2)),
    ("k-seq", INDEPENDENT, (3,)),
    ("deterministic", DISTINCT, (2, 1)),
    ("deterministic", INDEPENDENT, (2, 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "branching"), CASES, ids=str)
@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS], ids=IDS)
def test_law_is_exact_for_drawn_trees(
    name: str, kind: SiblingKind, branching: Sequence[int], target: Tables, draft: Tables
) -> None:
    distribution = joint_law(
        target, find_verifier(name).verify, lambda draw: drawn_tree(draft, branching, kind, draw)
    )
    assert total_variation(distribution, exact_law(target)) < 1e-12


@pytest.mark.parametrize("name", ["deterministic", "rejection"])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS], ids=IDS)
def test_law_is_exact_for_any_tree(name: str, seed: int, target: Tables, draft: Tables) -> None:
    rng = np.random.default_rng(seed)
    paths = [tuple(rng.integers(0, V, rng.integers(1, 3)).tolist()) for _ in range(seed)]
    distribution = joint_law(target, find_verifier(name).verify, lambda draw: fixed_tree(paths))
    assert total_variation(distribution, exact_law(target)) < 1e-12


@pytest.mark.parametrize("name", ["deterministic", "rejection"])
@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS], ids=IDS)
def test_deterministic_rule_bears_any_selection(name: str, target: Tables, draft: Tables) -> None:
    def picky(draw: Draw) -> DraftTree:
        """Draws two, keeps the likelier, and drops it if the draft model doubts it."""
        probs = draft[()]
        best = max(draw(probs), draw(probs), key=lambda token: probs[token])
        return fixed_tree([(best, draw(draft[(best,)]))] if probs[best] > 0.3 else [])

    distribution = joint_law(target, find_verifier(name).verify, picky)
    assert total_variation(distribution, exact_law(target)) < 1e-12


def test_enumeration_sees_a_wrong_rule() -> None:
    _, target, draft = PAIRS[0]

    def best_two(draw: Draw) -> DraftTree:
        """The likeliest tokens, passed off as drawn."""
        order = np.argsort(-draft[()])
        tree = fixed_tree([(int(order[0]),), (int(order[1]),)], DISTINCT)
        tree.draft_rows[ROOT] = draft[()]
        return tree

    distribution = joint_law(target, find_verifier("rejection").verify, best_two)
    assert abs(distribution.sum() - 1) < 1e-12
    assert total_variation(distribution, exact_law(target)) > 0.02
    distribution = joint_law(target, Typical().verify, lambda draw: fixed_tree([(0, 1), (1,)]))
    assert total_variation(distribution, exact_law(target)) > 0.02


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS], ids=IDS)
def test_rho_solves_its_equation(n: int, target: Tables, draft: Tables) -> None:
    p, q = target[()], draft[()]
    rho = find_rho(p, q, n)
    assert 1 <= rho <= n
    overlap = float(np.minimum(q, p / rho).sum())
    residual = p - np.minimum(q, p / rho) * (
        (1 - (1 - overlap) ** n) / overlap if overlap else float(n)
    )
    assert residual.min() > -1e-12
    if 1 < rho < n:
        assert 1 - (1 - overlap) ** n == pytest.approx(rho * overlap, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "kind"), [("rejection", DISTINCT), ("rejection", INDEPENDENT), ("k-seq", INDEPENDENT)]
)
def test_equal_distributions_accept_everything(name: str, kind: SiblingKind) -> None:
    rng = np.random.default_rng(1)
    tables = tables_of(lambda: probs_of(rng))
    for seed in range(50):
        tree = drawn_tree(
            tables, (1, 1), kind, lambda probs: int(np.searchsorted(probs.cumsum(), rng.random()))
        )
        chance = NoiseChance(Noise(seed))
        verdict = find_verifier(name).verify(tree, TableTarget(tables, tree), chance)
        assert verdict.path == (0, 1)
        assert verdict.is_bonus
        assert verdict.evaluated == {0, 1}


def acceptance(name: str, kind: SiblingKind, n: int, target: Tables, draft: Tables) -> float:
    """Returns the exact probability that the first token is a drafted one."""

    def run(script: Script) -> bool:
        tree = drawn_tree(draft, (n,), kind, lambda probs: script.draws(0, probs))
        return bool(find_verifier(name).verify(tree, TableTarget(target, tree), script).path)

    return sum(weight for weight, is_accepted in every_way(run) if is_accepted)


@pytest.mark.parametrize(("target", "draft"), [pair[1:] for pair in PAIRS[:4]], ids=IDS[:4])
def test_acceptance_is_as_published(target: Tables, draft: Tables) -> None:
    p, q = target[()], draft[()]
    overlap = float(np.minimum(p, q).sum())
    for name, kind in (("rejection", DISTINCT), ("rejection", INDEPENDENT), ("k-seq", INDEPENDENT)):
        assert acceptance(name, kind, 1, target, draft) == pytest.approx(overlap, abs=1e-12)
        assert acceptance(name, kind, 2, target, draft) > overlap
    assert acceptance("deterministic", DISTINCT, 1, target, draft) == pytest.approx(float(p @ q))
    assert acceptance("rejection", DISTINCT, 4, target, draft) == pytest.approx(1)
    rho = find_rho(p, q, 3)
    kept = float(np.minimum(q, p / rho).sum())
    expected = 1 - (1 - kept) ** 3
    assert acceptance("k-seq", INDEPENDENT, 3, target, draft) == pytest.approx(expected)


def test_shared_gumbel_follows_equal_siblings_all_at_once() -> None:
    tables = tables_of(lambda: one_hot(2))
    tree = DraftTree(kind=INDEPENDENT)
    first, second = (tree.add(2, ROOT, 0.5, "toy") for _ in range(2))
    tree.add(3, first, 0.5, "toy")
    good = tree.add(2, second, 0.5, "toy")
    verdict = find_verifier("shared-gumbel").verify(tree, TableTarget(tables, tree), Script([]))
    assert verdict == Verdict((second, good), 2, True, frozenset(range(4)))


@pytest.mark.parametrize("name", ["deterministic", "rejection", "shared-gumbel"])
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
    empty = find_verifier("rejection").verify(
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


def test_drawn_siblings_need_their_distribution() -> None:
    tables = tables_of(lambda: np.full(V, 0.25))
    tree = fixed_tree([(0,)], DISTINCT)
    for row in (None, np.zeros(V)):
        if row is not None:
            tree.draft_rows[ROOT] = row
        with pytest.raises(SessionError, match="no draft distribution"):
            find_verifier("rejection").verify(tree, TableTarget(tables, tree), Script([]))


def test_registry_tells_what_each_rule_promises() -> None:
    rules = {name: find_verifier(name) for name in verifier_names()}
    facts = {name: (rule.is_lossless, rule.is_exact) for name, rule in rules.items()}
    assert facts == {
        "shared-gumbel": (True, True),
        "deterministic": (True, False),
        "rejection": (True, False),
        "k-seq": (True, False),
        "typical": (False, False),
    }
    assert all(name == rule.name for name, rule in rules.items())
