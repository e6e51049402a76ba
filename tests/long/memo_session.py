"""A sequence that computes each row once per text: 20,000 outputs of one prompt cost few passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.models.graph import Capabilities
from edgedec.runtime.backends.whole_cache import WholeCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree

MAX_ROWS = 4000
"""Rows remembered, 0.2 MB each of SmolLM2's."""

_CHECKED_EVERY = 50


@dataclass(frozen=True)
class _Row:
    """What a pass says after one text, copied."""

    logits: npt.NDArray[np.float32]
    stats: RowStats


class MemoSession(TokenSequence):
    """A sequence of a `MemoModel`, which holds at least the prefix."""

    def __init__(self, computing: TokenSequence, prefix: Sequence[int]) -> None:
        """Takes over ``computing``, which `close` closes."""
        self._memo = MemoModel(computing, prefix)
        super().__init__(self._memo, computing.context)
        self.forward(TokenTree.chain(prefix), ())
        self.commit(range(len(prefix)))

    @property
    def n_checked(self) -> int:
        """Passes that ran though all their rows were known."""
        return self._memo.n_checked

    def close(self) -> None:
        super().close()
        self._memo.close()


class MemoModel:
    """A `Model` over a sequence, which always holds ``prefix`` and nothing after it.

    Rows depend on the text before them and nothing else, so that they may be remembered. That is
    checked as it goes: now and then a pass whose rows are all known runs nevertheless.
    """

    def __init__(self, computing: TokenSequence, prefix: Sequence[int]) -> None:
        computing.truncate(0)
        computing.forward(TokenTree.chain(prefix), ())
        computing.commit(range(len(prefix)))
        self._computing = computing
        self._prefix = list(prefix)
        self._known: OrderedDict[tuple[int, ...], _Row] = OrderedDict()
        self.capabilities = Capabilities(trees=True)
        self.vocab_size = computing.vocab_size
        self.n_token_ids = computing.model.n_token_ids
        self.n_layers = computing.model.n_layers
        self.n_asked = self.n_computed = self.n_checked = 0

    @property
    def is_closed(self) -> bool:
        return self._computing.is_closed

    def new_state(self, context: int) -> MemoCache:
        return MemoCache()

    def close(self) -> None:
        self._computing.close()

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        return [self.rows_of(wanted) for wanted in passes]

    def rows_of(self, wanted: Pass) -> Rows:
        """Returns rows of a pass, known or computed."""
        if not wanted.logit_rows:
            return _together([], self.vocab_size)
        n_prefix = len(self._prefix)
        assert list(wanted.sequence.tokens[:n_prefix]) == self._prefix
        self.n_asked += 1
        committed = wanted.sequence.tokens[n_prefix:]
        texts = _texts(committed, wanted.tree)
        asked = [texts[i] for i in wanted.logit_rows]
        is_new = any(text not in self._known for text in asked)
        if is_new or self.n_asked % _CHECKED_EVERY == 0:
            self._compute(committed, wanted.tree, texts)
            self.n_checked += not is_new
        for text in asked:
            self._known.move_to_end(text)
        rows = [self._known[text] for text in asked]
        while len(self._known) > MAX_ROWS:
            self._known.popitem(last=False)
        return _together(rows, self.vocab_size)

    def _compute(
        self, tail: Sequence[int], tree: TokenTree, texts: Sequence[tuple[int, ...]]
    ) -> None:
        """Runs the pass as asked for and remembers all its rows; known ones have to be equal."""
        n = len(tail)
        parents = (*range(-1, n - 1), *(n + p if p >= 0 else n - 1 for p in tree.parents))
        whole = TokenTree((*tail, *tree.tokens), parents)
        rows = self._computing.forward(whole, range(n, n + len(tree)))
        self.n_computed += 1
        for i, text in enumerate(texts):
            row = _Row(rows.logits[i].copy(), _stats_of(rows.stats, i))
            if text in self._known:
                assert np.array_equal(row.logits, self._known[text].logits)
            self._known[text] = row


class MemoCache(WholeCache):
    """A `SequenceState` of nothing: texts name their rows."""

    def nbytes(self, n_tokens: int) -> int:
        return 0

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Nothing to keep."""

    def snapshot(self, start: int, stop: int) -> KVRows:
        return {}

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to release."""


def _texts(committed: Sequence[int], tree: TokenTree) -> list[tuple[int, ...]]:
    """Returns for each token of ``tree`` the text that ends with it, ``committed`` before it."""
    texts: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        texts.append((*texts[parent], token) if parent >= 0 else (*committed, token))
    return texts


def _stats_of(stats: RowStats, i: int) -> RowStats:
    return RowStats(
        stats.argmax[i : i + 1].copy(),
        stats.log_sum_exp[i : i + 1].copy(),
        stats.entropy[i : i + 1].copy(),
        stats.top_ids[i : i + 1].copy(),
        stats.top_logits[i : i + 1].copy(),
    )


def _together(rows: Sequence[_Row], vocab_size: int) -> Rows:
    """Returns the rows as one pass would."""
    if not rows:
        return Rows(np.empty((0, vocab_size), np.float32))
    stats = [row.stats for row in rows]
    return Rows(
        np.stack([row.logits for row in rows]),
        {},
        RowStats(
            np.concatenate([one.argmax for one in stats]),
            np.concatenate([one.log_sum_exp for one in stats]),
            np.concatenate([one.entropy for one in stats]),
            np.concatenate([one.top_ids for one in stats]),
            np.concatenate([one.top_logits for one in stats]),
        ),
    )
