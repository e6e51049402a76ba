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

    estimates: for each tree that proposes this place, its probability and its drafter's name.
    """

    token: int
    estimates: dict[int, tuple[float, str]] = field(default_factory=dict)
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
    Siblings come in the order of their probability.

    The result is deterministic whatever the trees were.
    """
    root = _merged(trees)
    _prune(root, unlikely, model_name)
    tree, slots, n_slots = DraftTree(), list[tuple[float, int, int, float, str, _Place]](), 0
    parent, depth, value, place = ROOT, 0, 1.0, root
    while len(tree) < budget.n_nodes:
        if depth < budget.depth:
            for probability, origin, child in _combined(place):
                if value * probability >= budget.min_value:
                    n_slots += 1
                    slot = (-value * probability, n_slots, parent, probability, origin, child)
                    heapq.heappush(slots, slot)
        if not slots:
            break
        negative, _, above, probability, origin, place = heapq.heappop(slots)
        parent, value = tree.add(place.token, above, probability, origin), -negative
        depth = tree.nodes[parent].depth
    return tree


def _merged(trees: Sequence[DraftTree]) -> _Place:
    root = _Place(ROOT)
    for i_tree, tree in enumerate(trees):
        places = [root]  # of ROOT, then of each node
        for node in tree.nodes:
            siblings = places[node.parent + 1].children
            place = siblings.get(node.token)
            if place is None:
                place = siblings[node.token] = _Place(node.token)
            if place.estimates.get(i_tree, (-1.0, ""))[0] < node.probability:
                place.estimates[i_tree] = (node.probability, node.origin)
            places.append(place)
    return root


def _prune(root: _Place, unlikely: float, model_name: str) -> None:
    """Drops first tokens that the draft model, if it proposes any, finds unlikely."""
    likely = {
        token: probability
        for token, place in root.children.items()
        for probability, origin in place.estimates.values()
        if origin == model_name
    }
    left = max(0.0, 1 - sum(likely.values()))  # the most any other token can have
    if likely and left < unlikely:
        root.children = {token: root.children[token] for token in likely}


def _combined(place: _Place) -> list[tuple[float, str, _Place]]:
    """Returns the children of ``place``, likeliest first: probability, drafter, child."""
    found = [(*max(child.estimates.values()), child) for child in place.children.values()]
    found.sort(key=lambda f: -f[0])
    kept: list[tuple[float, str, _Place]] = []
    for probability, origin, child in found:
        taken = sum(
            p for p, _, other in kept if not other.estimates.keys() & child.estimates.keys()
        )
        left = min(MAX_PROBABILITY, probability * (1 - taken))
        if left > 0:
            kept.append((left, origin, child))
    return sorted(kept, key=lambda k: -k[0])
