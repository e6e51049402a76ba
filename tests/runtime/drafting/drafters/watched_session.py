"""A draft model that notes what it computes, and a drafter over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, ModelDrafting
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafting
from edgedec.runtime.sequences.passes import Pass, run_passes
from edgedec.runtime.text.token_map import TokenMap

from ...conftest import OnePool, ToySession, prefix_of

VOCAB = 30
PROMPT = [3, 14, 15, 9]


class WatchedSession(ToySession):
    """Notes every token it computes, with all tokens before it."""

    def __init__(self, context: int = 256, rule: Callable[..., Any] | None = None) -> None:
        super().__init__(VOCAB, context, rule or peaked)
        self.computed: list[tuple[int, ...]] = []

    def finish(self, wanted: Pass) -> None:
        super().finish(wanted)
        new = range(wanted.n_known, len(wanted.tree))
        self.computed += [tuple(prefix_of(wanted, i)) for i in new]

    def row_after(self, text: Sequence[int]) -> npt.NDArray[np.float32]:
        return self.toy.rule(text)


def peaked(prefix: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns logits with a few likely tokens, no two alike."""
    rng = np.random.default_rng([len(prefix), *prefix[-3:]])
    return (3 * rng.standard_normal(VOCAB)).astype(np.float32)


def make_drafter(
    session: ToySession | None = None, token_map: TokenMap | None = None
) -> DraftModelDrafter:
    pool = OnePool(session or WatchedSession())
    return DraftModelDrafter(DraftRole(pool, token_map or TokenMap.same(VOCAB, VOCAB), VOCAB))


def make_drafting(
    session: ToySession | None = None,
    token_map: TokenMap | None = None,
    prompt: Sequence[int] = PROMPT,
) -> TreeDrafting:
    """Returns the part in one request of a drafter of its own."""
    return make_drafter(session, token_map).begin(DraftPrompt(prompt))


def propose(drafting: ModelDrafting, context: DraftContext, budget: Budget) -> DraftTree:
    """Returns what it proposes; all passes that takes are run."""
    return run_passes(drafting.propose(context, budget))


def plain(session: WatchedSession, text: Sequence[int], n: int) -> list[int]:
    """Returns what greedy decoding of the draft model alone makes of ``text``."""
    found = list(text)
    for _ in range(n):
        found.append(int(session.row_after(found).argmax()))
    return found[len(text) :]


def spine(tree: DraftTree) -> list[int]:
    """Returns the tokens of the first child of the first child and so on."""
    found, node = [], ROOT
    while children := tree.children(node):
        node = children[0]
        found.append(tree.nodes[node].token)
    return found
