"""Trees whose siblings are drawn from the draft distribution, for verification by rejection.

Whether another token is drawn is decided before it is, and whatever is drawn is proposed: only so
may siblings be judged as samples.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from edgedec.runtime.drafting.draft_passes import PREFIX, DraftPasses
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree, SiblingKind
from edgedec.runtime.drafting.drafter import Budget, DraftContext
from edgedec.runtime.drafting.drafters.draft.distribution import DraftDistribution, drawn
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.text.token_map import TokenMap

_FIRST_DRAW = 1 << 40
"""Counters of the drafter's own draws begin here, beyond every position of a text."""

_DRAWS_PER_ROUND = 1 << 12


@dataclass
class _Node:
    """A node that may get children.

    row: of the draft model's tree. distribution: None before the row is computed, and if nothing
    can be drawn. left: probability of the tokens that were not drawn yet.
    """

    draft_id: int
    parent_row: int
    row: int = PREFIX
    is_computed: bool = False
    distribution: DraftDistribution | None = None
    n_drawn: int = 0
    left: float = 1.0


class Draws:
    """The draws of one round. Each has noise of its own, shared with nothing."""

    def __init__(
        self,
        origin: str,
        passes: DraftPasses,
        token_map: TokenMap,
        context: DraftContext,
        vocab_size: int,
    ) -> None:
        """origin: name of the drafter."""
        self._origin = origin
        self._passes = passes
        self._map = token_map
        self._context = context
        self._vocab_size = vocab_size
        self._n_draws = 0

    def tree(self, rows: Rows, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree of siblings without replacement, grown at the likeliest places.

        Source: DySpec (Xiong et al., 2025), algorithm 1, with passes over several nodes at once.

        Args:
            rows: Row 0 is the one after the text.
        """
        tree = DraftTree(kind=SiblingKind.WITHOUT_REPLACEMENT)
        nodes = {ROOT: _Node(0, PREFIX, is_computed=True, distribution=self._distribution(rows, 0))}
        slots: list[tuple[float, int]] = [(-1.0, ROOT)]  # places for a child, the likeliest first
        while slots and len(tree) < min(budget.n_nodes, _DRAWS_PER_ROUND - 1):
            loss, at = slots[0]
            node = nodes[at]
            if -loss < budget.min_value:
                break
            if not node.is_computed:
                yield from self._compute(nodes, slots, budget)
            heapq.heappop(slots)
            if node.distribution is None:
                continue
            share, child = self._draw(tree, node, at)
            if node.left > 1e-9 and node.n_drawn < len(node.distribution.tokens):
                heapq.heappush(slots, (loss * (1 - share), at))
            if tree.nodes[child].depth < budget.depth:
                nodes[child] = _Node(self._drawn_id(node), node.row)
                heapq.heappush(slots, (loss * share, child))
        return tree

    def chains(self, rows: Rows, budget: Budget) -> Passes[DraftTree]:
        """Returns as many independent chains as a pass may have nodes.

        Source: SpecTr (Sun et al., 2023), section 4.

        Args:
            rows: Row 0 is the one after the text.
        """
        tree = DraftTree(kind=SiblingKind.INDEPENDENT)
        n_chains = max(1, min(budget.n_step_nodes, budget.n_nodes))
        depth = min(budget.depth, budget.n_nodes // n_chains)
        distributions = [self._distribution(rows, 0) for _ in range(n_chains)]
        ends, end_rows = [ROOT] * n_chains, [PREFIX] * n_chains
        for level in range(depth):
            kept = [i for i, distribution in enumerate(distributions) if distribution is not None]
            nodes = [_Node(0, PREFIX, end_rows[i], distribution=distributions[i]) for i in kept]
            ends = [self._draw(tree, n, ends[i])[1] for n, i in zip(nodes, kept, strict=True)]
            values = tree.values()
            if level + 1 == depth or sum(values[i] for i in ends) < budget.min_step_value:
                break
            if not nodes or not self._passes.has_room(len(nodes)):
                break
            first = self._passes.n_rows
            rows = yield from self._passes.grow(
                [self._drawn_id(node) for node in nodes], [n.row for n in nodes], with_logits=True
            )
            end_rows = list(range(first, first + len(nodes)))
            distributions = [self._distribution(rows, i) for i in range(len(nodes))]
        return tree

    def _distribution(self, rows: Rows, index: int) -> DraftDistribution | None:
        context = self._context
        counter = _FIRST_DRAW + len(context.tokens) * _DRAWS_PER_ROUND + self._n_draws
        self._n_draws += 1
        return drawn(rows.logits[index], self._map, context.sampling, context.noise, counter)

    def _draw(self, tree: DraftTree, node: _Node, at: int) -> tuple[float, int]:
        """Adds the next token of ``node``, which has the index ``at``, to ``tree``.

        Returns:
            Its share of the probability that was left, and its index.
        """
        distribution = node.distribution
        assert distribution is not None
        if at not in tree.draft_rows:
            tree.draft_rows[at] = distribution.row(self._vocab_size)
        probability = float(distribution.probs[node.n_drawn])
        share = min(1.0, probability / node.left)
        child = tree.add(int(distribution.tokens[node.n_drawn]), at, probability, self._origin)
        node.left -= probability
        node.n_drawn += 1
        return share, child

    def _drawn_id(self, node: _Node) -> int:
        """Returns the token of the latest draw in the draft model's vocabulary."""
        assert node.distribution is not None
        return int(node.distribution.draft_ids[node.n_drawn - 1])

    def _compute(
        self, nodes: dict[int, _Node], slots: list[tuple[float, int]], budget: Budget
    ) -> Passes[None]:
        """Computes the likeliest nodes that have no distribution yet, if that is worth a pass."""
        unknown = [slot for slot in sorted(slots) if not nodes[slot[1]].is_computed]
        unknown = unknown[: budget.n_step_nodes]
        value = -sum(loss for loss, _ in unknown)
        if value < budget.min_step_value or not self._passes.has_room(len(unknown)):
            return
        chosen = [nodes[at] for _, at in unknown]
        first = self._passes.n_rows
        rows = yield from self._passes.grow(
            [node.draft_id for node in chosen],
            [node.parent_row for node in chosen],
            with_logits=True,
        )
        for index, node in enumerate(chosen):
            node.row, node.is_computed = first + index, True
            node.distribution = self._distribution(rows, index)
