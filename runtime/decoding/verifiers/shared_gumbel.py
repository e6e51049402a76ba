"""Plain decoding's own choice, read off the tree: exact for any drafts whatsoever."""

from __future__ import annotations

from edgedec.runtime.decoding.verifiers.verifier import Chance, TargetChoices, Verdict
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree


class SharedGumbel:
    """Follows, from the root, the child that is the token plain decoding would emit there.

    That token is a function of the row, the seed and the position: the argmax, with the seed's
    Gumbel noise when sampling. The same seed gives the same text with and without drafts.
    """

    name = "shared-gumbel"
    is_lossless = True
    is_exact = True

    def verify(self, tree: DraftTree, target: TargetChoices, chance: Chance) -> Verdict:
        if not len(tree):  # a plain step: less code, which is not in caches after a pass
            return Verdict((), target.pick(ROOT), True, frozenset())

        nodes, node = tree.nodes, ROOT
        path: list[int] = []
        evaluated: list[int] = []
        while True:
            token, children = target.pick(node), tree.children(node)
            evaluated += children
            for node in children:
                if nodes[node].token == token:
                    path.append(node)
                    break
            else:
                return Verdict(tuple(path), token, not children, frozenset(evaluated))
