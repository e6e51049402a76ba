"""A draft model that notes what it computes, and a drafter over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.sessions.session import Rows, TokenTree
from edgedec.runtime.text.token_map import TokenMap

from ..conftest import ToySession

VOCAB = 30


class WatchedSession(ToySession):
    """Notes every token it computes, with all tokens before it."""

    def __init__(self, context: int = 256, rule: Callable[..., Any] | None = None) -> None:
        super().__init__(VOCAB, context, rule or peaked)
        self.computed: list[tuple[int, ...]] = []

    def forward(
        self,
        tree: TokenTree,
        logit_rows: Sequence[int],
        hidden_layers: Sequence[int] = (),
        *,
        n_known: int = 0,
        with_logits: bool = True,
    ) -> Rows:
        rows = super().forward(
            tree, logit_rows, hidden_layers, n_known=n_known, with_logits=with_logits
        )
        self.computed += [tuple(self._prefix(tree, i)) for i in range(n_known, len(tree))]
        return rows

    def row_after(self, text: Sequence[int]) -> npt.NDArray[np.float32]:
        return self._rule(text)


def peaked(prefix: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns logits with a few likely tokens, no two alike."""
    rng = np.random.default_rng([len(prefix), *prefix[-3:]])
    return (3 * rng.standard_normal(VOCAB)).astype(np.float32)


def make_drafter(
    session: ToySession | None = None, token_map: TokenMap | None = None
) -> DraftModelDrafter:
    token_map = token_map or TokenMap.same(VOCAB, VOCAB)
    return DraftModelDrafter(session or WatchedSession(), token_map, VOCAB)


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
