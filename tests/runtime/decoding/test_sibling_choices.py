"""How siblings are tried in turn: what each is asked for, by hand, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.labs.verifiers import k_seq
from edgedec.labs.verifiers.rejection import judge_samples
from edgedec.models.errors import SessionError
from edgedec.runtime.decoding.verifiers.deterministic import judge_siblings
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.decoding.verifiers.verifier import Choice, NoiseChance, draft_probs, walk
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree, SiblingKind
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import Survivors

from .verifier_tables import TableTarget

Float64 = npt.NDArray[np.float64]
IDS = np.array([2, 5, 7])
TARGET = Survivors(IDS, np.log([0.5, 0.3, 0.2]))
POSITION = 11


class Script:
    """Decides as given, and notes what it was asked."""

    def __init__(self, *answers: bool, drawn: int = 0) -> None:
        self._answers = iter(answers)
        self._drawn = drawn
        self.asked: list[tuple[int, float]] = []
        self.residual: list[float] | None = None

    def accepts(self, position: int, i_sibling: int, probability: float) -> bool:
        assert position == POSITION
        self.asked.append((i_sibling, pytest.approx(probability)))
        return next(self._answers)

    def draws(self, position: int, probs: Float64) -> int:
        assert position == POSITION
        self.residual = pytest.approx(probs.tolist())
        return self._drawn


def drafted(**probs: float) -> Float64:
    """Returns draft probabilities, by ``t`` and the token."""
    row = np.zeros(10)
    for name, prob in probs.items():
        row[int(name[1:])] = prob
    return row


def test_a_sibling_is_accepted_with_what_those_before_it_left() -> None:
    script = Script(False, True)
    assert judge_siblings(TARGET, (9, 5, 2), script, POSITION) == Choice(2, 2, 3)
    assert script.asked == [(1, 0.3), (2, 0.5 / 0.7)]
    assert script.residual is None


def test_after_the_last_sibling_what_is_left_is_drawn_from() -> None:
    script = Script(False, False, drawn=2)
    assert judge_siblings(TARGET, (5, 2), script, POSITION) == Choice(7, None, 2)
    assert script.residual == [0.0, 0.0, 1.0]
    bare = Script(drawn=1)
    assert judge_siblings(TARGET, (), bare, POSITION) == Choice(5, None, 0)
    assert bare.residual == [0.5, 0.3, 0.2]


@pytest.mark.parametrize("are_distinct", [True, False])
def test_a_sample_is_accepted_by_the_ratio_and_leaves_what_exceeds_the_draft(
    are_distinct: bool,
) -> None:
    draft = drafted(t2=0.25, t5=0.5, t7=0.25)
    script = Script(False, True)
    found = judge_samples(TARGET, (5, 2), draft, are_distinct, script, POSITION)
    assert found == Choice(2, 1, 2)
    assert script.asked == [(0, 0.6), (1, 1.0)]


@pytest.mark.parametrize(("are_distinct", "ratio"), [(True, 0.25 / 0.8), (False, 0.25 / 0.4)])
def test_distinct_samples_are_drawn_from_what_those_before_them_left(
    are_distinct: bool, ratio: float
) -> None:
    """After 5 the target has max(0.4 - 0.1, 0), 0 and max(0.5 - 0.4, 0), of 0.4 in all."""
    target = Survivors(IDS, np.log([0.4, 0.1, 0.5]))
    draft = drafted(t2=0.1, t5=0.5, t7=0.4)
    script = Script(False, False)
    judged = judge_samples(target, (5, 7), draft, are_distinct, script, POSITION)
    assert judged == Choice(2, None, 2)
    assert script.asked == [(0, 0.2), (1, ratio)]
    assert script.residual == [1.0, 0.0, 0.0]


def test_a_token_that_could_not_be_drawn_is_judged_by_what_is_left_of_it() -> None:
    script = Script(False, drawn=0)
    draft = drafted(t5=1.0)
    found = judge_samples(TARGET, (7, 9), draft, False, script, POSITION)
    assert found == Choice(2, None, 2)
    assert script.asked == [(0, 0.2)]  # 9 is none of the target's, and not asked for
    assert script.residual == [0.625, 0.375, 0.0]


def test_k_seq_tries_all_with_one_ratio() -> None:
    draft = drafted(t2=0.2, t5=0.3, t7=0.5)
    probs = np.array([0.5, 0.3, 0.2])
    rho = k_seq.find_rho(probs, draft[IDS], 2)
    script = Script(False, True)
    assert k_seq.judge(TARGET, (7, 5), draft, script, POSITION) == Choice(5, 1, 2)
    assert script.asked == [(0, 0.2 / (rho * 0.5)), (1, min(1.0, 0.3 / (rho * 0.3)))]
    none = Script(drawn=0)
    assert k_seq.judge(TARGET, (9, 1), draft, none, POSITION) == Choice(2, None, 2)
    assert none.asked == []
    overlap = np.minimum(draft[IDS], probs / rho)
    total = overlap.sum()
    left = probs - overlap * (1 - (1 - total) ** 2) / total
    assert none.residual == (left / left.sum()).tolist()


def test_k_seq_takes_the_least_ratio_that_keeps_the_law() -> None:
    probs, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    for n in (1, 2, 4):
        rho = k_seq.find_rho(probs, draft, n)

        def slack(rho: float, n: int = n) -> float:
            overlap = np.minimum(draft, probs / rho).sum()
            return float(rho * overlap - (1 - (1 - overlap) ** n))

        assert 1.0 <= rho <= n
        assert slack(rho) >= 0.0
        assert n == 1 or slack(rho - 1e-9) < 0.0
    assert k_seq.find_rho(probs, draft, 1) == 1.0


def test_what_was_decided_on_is_reported() -> None:
    tree = DraftTree()
    first, second, _ = (tree.add(token, ROOT, 0.3, "toy") for token in (4, 5, 6))
    below = tree.add(7, second, 0.3, "toy")

    def choose(node: int, siblings: Sequence[int]) -> Choice:
        return Choice(5, 1, 2) if node == ROOT else Choice(8, None, len(siblings))

    verdict = walk(tree, choose)
    assert (verdict.path, verdict.next_token, verdict.is_bonus) == ((second,), 8, False)
    assert verdict.evaluated == {first, second, below}


def test_draft_rows_are_scaled_to_sum_to_one() -> None:
    rows = {ROOT: np.array([1.0, 3.0], np.float32), 0: np.zeros(2, np.float32)}
    tree = DraftTree(kind=SiblingKind.INDEPENDENT, draft_rows=rows)
    assert draft_probs(tree, ROOT).tolist() == [0.25, 0.75]
    for node in (0, 1):
        with pytest.raises(SessionError, match=f"node {node} has independent children"):
            draft_probs(tree, node)


@pytest.mark.parametrize("position", [0, 5, 90])
def test_chances_are_those_of_the_noise(position: int) -> None:
    noise = Noise(3)
    chance = NoiseChance(noise)
    for i in range(3):
        share = noise.uniform(position, 1 + i)
        assert not chance.accepts(position, i, share)
        assert chance.accepts(position, i, float(np.nextafter(share, 1)))
    share = noise.uniform(position, 0)
    assert chance.draws(position, np.array([0.999 * share, 1 - 0.999 * share])) == 1
    assert chance.draws(position, np.array([1.001 * share, 1 - 1.001 * share])) == 0
    assert chance.draws(position, np.array([0.3 * share, 0.8 * share, 1 - 1.1 * share])) == 1


@pytest.mark.parametrize(("second", "path"), [(0.2, (0, 1)), (0.02, (0,))])
def test_the_longest_typical_way_is_taken(second: float, path: tuple[int, ...]) -> None:
    tables = {
        (): np.array([0.7, 0.3]),
        (0,): np.array([1 - second, second]),
        (0, 1): np.array([0.5, 0.5]),
    }
    tree = DraftTree()
    first = tree.add(0, ROOT, 0.5, "toy")
    tree.add(1, first, 0.5, "toy")
    verdict = Typical().verify(tree, TableTarget(tables, tree), NoiseChance(Noise(0)))
    assert verdict.path == path
    assert verdict.evaluated == {0, 1}
    assert verdict.is_bonus == (len(path) == 2)


def test_of_two_typical_ways_as_long_the_likelier_is_taken() -> None:
    tables = {
        (): np.array([0.4, 0.6]),
        (0,): np.array([0.5, 0.5]),
        (1,): np.array([0.9, 0.1]),
    }
    tree = DraftTree()
    for first, second in ((0, 0), (1, 0)):
        tree.add(second, tree.add(first, ROOT, 0.5, "toy"), 0.5, "toy")
    tables |= {(first, 0): np.array([0.5, 0.5]) for first in (0, 1)}
    verdict = Typical().verify(tree, TableTarget(tables, tree), NoiseChance(Noise(0)))
    assert verdict.path == (2, 3)
