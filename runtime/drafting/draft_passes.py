"""The draft model's session, kept in step with the text: what it has computed, and the passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtime.sessions.prefill import PREFILL_CHUNK
from edgedec.runtime.sessions.session import ModelSession, Rows, TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

PREFIX = -1
"""Row that drafts at the end of the text hang on."""


@dataclass
class DraftCost:
    """What the latest proposal cost.

    n_fed, feed_ms: tokens of the text that had to be computed first, and the time it took.
    n_levels, n_level_rows, level_ms: passes over drafted tokens, their rows, and their time.
    depth: levels of the tree that came of it; fewer passes make it where guesses were right.
    """

    n_fed: int = 0
    feed_ms: float = 0.0
    n_levels: int = 0
    n_level_rows: int = 0
    level_ms: float = 0.0
    depth: int = 0

    @property
    def n_passes(self) -> int:
        return -(-self.n_fed // PREFILL_CHUNK) + self.n_levels


class DraftPasses:
    """Grows one tree of drafted tokens behind the text; what comes true is kept.

    All tokens are the draft model's.
    """

    def __init__(self, session: ModelSession) -> None:
        self.session = session
        self.cost = DraftCost()
        self._tokens: list[int] = []  # of the tree, in the order computed
        self._parents: list[int] = []

    def begin_proposal(self) -> None:
        """Starts counting the cost of another proposal."""
        self.cost = DraftCost()

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` are not computed yet."""
        return len(text) - common_prefix(self.session.tokens, text)

    def align(self, text: Sequence[int]) -> int:
        """Makes the session's tokens a prefix of ``text``; returns the last row of the tree on it.

        Rows of drafted tokens that came true are kept, all others forgotten. `PREFIX` when none
        was kept.
        """
        session = self.session
        n_common = common_prefix(session.tokens, text)
        path: list[int] = []
        if n_common < session.n_tokens:
            session.truncate(n_common)
        else:
            path = self._way(text[n_common:])
        self._tokens, self._parents = [], []
        if path:
            session.commit(path)
        return path[-1] if path else PREFIX

    def feed(self, text: Sequence[int], with_logits: bool) -> Rows:
        """Computes what `align` found missing of ``text``; returns the row after its end."""
        session, started_s = self.session, time.perf_counter()
        if session.n_tokens == len(text):
            session.truncate(len(text) - 1)  # the row of its last token is wanted again
        while True:
            chunk = text[session.n_tokens : session.n_tokens + PREFILL_CHUNK]
            is_last = session.n_tokens + len(chunk) == len(text)
            rows = session.forward(
                TokenTree.chain(chunk),
                (len(chunk) - 1,) if is_last else (),
                with_logits=with_logits and is_last,
            )
            session.commit(range(len(chunk)))
            self.cost.n_fed += len(chunk)
            if is_last:
                self.cost.feed_ms += 1000 * (time.perf_counter() - started_s)
                return rows

    def has_room(self, n_new: int) -> bool:
        """Whether the KV cache has rows for ``n_new`` more drafted tokens."""
        return self.session.n_tokens + len(self._tokens) + n_new <= self.session.context

    def grow(self, tokens: Sequence[int], parents: Sequence[int], with_logits: bool) -> Rows:
        """Returns the rows after ``tokens``, which follow the rows ``parents`` of the tree.

        Their own rows are numbered on from those before.
        """
        started_s, n_known = time.perf_counter(), len(self._tokens)
        tree = TokenTree((*self._tokens, *tokens), (*self._parents, *parents))
        self._tokens, self._parents = [], []  # a failed pass leaves no tree
        rows = self.session.forward(
            tree, range(n_known, len(tree)), n_known=n_known, with_logits=with_logits
        )
        self._tokens, self._parents = list(tree.tokens), list(tree.parents)
        self.cost.n_levels += 1
        self.cost.n_level_rows += len(tokens)
        self.cost.level_ms += 1000 * (time.perf_counter() - started_s)
        return rows

    @property
    def n_rows(self) -> int:
        """Rows of the tree so far."""
        return len(self._tokens)

    def _way(self, text: Sequence[int]) -> list[int]:
        """Returns the rows of the tree that spell the beginning of ``text``."""
        path: list[int] = []
        last = PREFIX
        for token in text:
            last = next(
                (
                    row
                    for row in range(last + 1, len(self._tokens))
                    if self._parents[row] == last and self._tokens[row] == token
                ),
                PREFIX,
            )
            if last == PREFIX:
                break
            path.append(last)
        return path
