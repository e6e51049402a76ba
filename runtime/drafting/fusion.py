"""Several drafters' trees in one: common beginnings once, estimates combined, the best kept.

Source: retrieval fused with drafted trees by longest prefix, RASD (Quan et al., 2025, section 3).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgedec.runtime.drafting.best_first import MAX_PROBABILITY
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget

UNLIKELY = 0.02
"""First tokens that a draft model gives less are not followed."""


@dataclass(slots=True)
class _Place:
    """Where several trees agree on all tokens so far.

    probability, origin: of the highest estimate. trees: those that propose this place, a bit each.
    """

    token: int
    probability: float = -1.0
    origin: str = ""
    trees: int = 0
    children: dict[int, _Place] = field(default_factory=dict)


def fuse(
    trees: Sequence[DraftTree],
    budget: Budget,
    unlikely: float = UNLIKELY,
    model_name: str = "draft",
) -> DraftTree:
    """Returns the likeliest nodes of all paths of ``trees``, at most ``budget``.

    Of several estimates of a token the highest stays, with its drafter's name: drafters look at
    the same text, so they are no independent witnesses. A token is given only what is left by
    likelier ones beside it that its drafters did not propose. If the drafter ``model_name`` is
    among them, branches of the others whose first token it finds ``unlikely`` are dropped.
    Siblings come in the order of their probability, nodes in that of their values.

    The result is deterministic whatever the trees were.
    """
    root = _merged(trees)
    _prune(root, trees, unlikely, model_name)
    tree, slots, n_slots = DraftTree(), list[tuple[float, int, int, float, str, _Place]](), 0
    parent, depth, value, place = ROOT, 0, 1.0, root
    n_nodes, most_depth, least = budget.n_nodes, budget.depth, budget.min_value
    while len(tree.nodes) < n_nodes:
        if depth < most_depth and place.children:
            for probability, origin, child in _combined(place):
                if value * probability >= least:
                    n_slots += 1
                    slot = (-value * probability, n_slots, parent, probability, origin, child)
                    heapq.heappush(slots, slot)
        if not slots:
            break
        negative, _, above, probability, origin, place = heapq.heappop(slots)
        parent, value = tree.append(place.token, above, probability, origin), -negative
        depth = tree.nodes[parent].depth
    return tree


def _merged(trees: Sequence[DraftTree]) -> _Place:
    root = _Place(ROOT)
    for i_tree, tree in enumerate(trees):
        places = [root]  # of ROOT, then of each node
        for token, parent, _, probability, origin in tree.nodes:
            siblings = places[parent + 1].children
            place = siblings.get(token)
            if place is None:
                place = siblings[token] = _Place(token)
            place.trees |= 1 << i_tree
            if (probability, origin) > (place.probability, place.origin):
                place.probability, place.origin = probability, origin
            places.append(place)
    return root


def _prune(root: _Place, trees: Sequence[DraftTree], unlikely: float, model_name: str) -> None:
    """Drops first tokens that the draft model, if it proposes any, finds unlikely."""
    likely: dict[int, float] = {}
    for tree in trees:
        for i in tree.children(ROOT):
            token, _, _, probability, origin = tree.nodes[i]
            if origin == model_name:
                likely[token] = max(probability, likely.get(token, 0.0))
    left = max(0.0, 1 - sum(likely.values()))  # the most any other token can have
    if likely and left < unlikely:
        root.children = {token: root.children[token] for token in likely}


def _combined(place: _Place) -> list[tuple[float, str, _Place]]:
    """Returns the children of ``place``, likeliest first: probability, drafter, child."""
    children = list(place.children.values())
    if len(children) == 1:
        (child,) = children
        return [(min(MAX_PROBABILITY, child.probability), child.origin, child)]
    children.sort(key=lambda child: -child.probability)
    kept: list[tuple[float, str, _Place]] = []
    for child in children:
        taken = 0.0
        for probability, _, other in kept:
            if not other.trees & child.trees:
                taken += probability
        left = min(MAX_PROBABILITY, child.probability * (1 - taken))
        if left > 0:
            kept.append((left, child.origin, child))
    return sorted(kept, key=lambda k: -k[0])
