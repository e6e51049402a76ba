"""The tokens a draft model has thought of, from which some are proposed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgedec.runtime.drafting.draft_passes import PREFIX
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.drafters.draft.distribution import Option


@dataclass(slots=True)
class Candidate:
    """A token that may be proposed.

    parent: index of the candidate it follows, or ROOT. value: estimated probability that it and
    all before it are accepted. row: of the draft model's tree, while it has one. is_expanded: what
    may follow it is known.
    """

    option: Option
    parent: int
    depth: int
    probability: float
    value: float
    row: int | None = None
    is_expanded: bool = False


class Candidates:
    """Candidates in the order they were found, which puts parents before children."""

    def __init__(self) -> None:
        self._all: list[Candidate] = []

    def __getitem__(self, index: int) -> Candidate:
        return self._all[index]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._all)

    def add(self, option: Option, parent: int, probability: float) -> int:
        """Returns the index of a new candidate of that ``probability`` after ``parent``."""
        above = None if parent == ROOT else self._all[parent]
        depth, value = (1, 1.0) if above is None else (above.depth + 1, above.value)
        self._all.append(Candidate(option, parent, depth, probability, value * probability))
        return len(self._all) - 1

    def at_row(self, row: int) -> int:
        """Returns the candidate that has ``row`` of the draft model's tree."""
        return next(i for i, c in enumerate(self._all) if c.row == row)

    def children(self, parent: int) -> list[int]:
        """Returns the candidates after ``parent``."""
        return [i for i, c in enumerate(self._all) if c.parent == parent]

    def child(self, parent: int, token: int) -> int | None:
        """Returns the candidate of ``token`` after ``parent``, if any."""
        return next((i for i in self.children(parent) if self._all[i].option.token == token), None)

    def line(self, last: int) -> list[int]:
        """Returns candidate ``last`` and those above it, the nearest first."""
        line = []
        while last != ROOT:
            line.append(last)
            last = self._all[last].parent
        return line

    def last_two(self, text: Sequence[int], candidate: int) -> tuple[int, ...]:
        """Returns the last two tokens of ``text`` and what leads to a candidate, or ROOT."""
        path = [self._all[i].option.token for i in self.line(candidate)[:2]]
        return (*text[-2:], *reversed(path))[-2:]

    def rowless_above(self, chosen: Sequence[int]) -> list[int]:
        """Returns the candidates above the ``chosen`` ones that have to be computed again."""
        above = {j for i in chosen for j in self.line(self._all[i].parent)}
        return sorted(i for i in above if self._all[i].row is None)

    def row_of(self, candidate: int) -> int:
        """Returns the row of a candidate that has one, or of ROOT."""
        row = PREFIX if candidate == ROOT else self._all[candidate].row
        assert row is not None
        return row

    def best(self, budget: Budget) -> list[int]:
        """Returns the candidates most worth a row of verification, the best first.

        A child comes after its parent: it is worth no more and was found later.
        """
        worthy = [
            i
            for i, c in enumerate(self._all)
            if c.value >= budget.min_value and c.depth <= budget.depth
        ]
        worthy.sort(key=lambda i: -self._all[i].value)
        return worthy[: budget.n_nodes]

    def tree(self, budget: Budget, origin: str) -> DraftTree:
        """Returns the best candidates as a tree of the drafter ``origin``."""
        tree, index_of = DraftTree(), {ROOT: ROOT}
        for i in self.best(budget):
            node = self._all[i]
            index_of[i] = tree.add(
                node.option.token, index_of[node.parent], node.probability, origin
            )
        return tree
