"""A session that computes each row once per text: 20,000 outputs of one prompt cost few passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.runtime.sessions.row_stats import RowStats
from edgedec.runtime.sessions.session import ModelSession, Rows, TokenLedger, TokenTree

MOST_ROWS = 4000
"""Rows remembered, 0.2 MB each of SmolLM2's."""

_CHECKED_EVERY = 50


@dataclass(frozen=True)
class _Row:
    """What a pass says after one text, copied."""

    logits: npt.NDArray[np.float32]
    stats: RowStats


class MemoSession:
    """A `ModelSession` over ``model``, which always holds ``prefix`` and nothing after it.

    Rows depend on the text before them and nothing else, so that they may be remembered. That is
    checked as it goes: now and then a pass whose rows are all known runs nevertheless.
    """

    def __init__(self, model: ModelSession, prefix: Sequence[int]) -> None:
        """Takes over ``model``, which `close` closes."""
        model.truncate(0)
        model.forward(TokenTree.chain(prefix), ())
        model.commit(range(len(prefix)))
        self._model = model
        self._ledger = TokenLedger(model.context)
        self._ledger.tokens = list(prefix)
        self._n_prefix = len(prefix)
        self._known: OrderedDict[tuple[int, ...], _Row] = OrderedDict()
        self.n_asked = self.n_computed = self.n_checked = 0

    @property
    def tokens(self) -> Sequence[int]:
        return self._ledger.tokens

    @property
    def n_tokens(self) -> int:
        return len(self._ledger.tokens)

    @property
    def context(self) -> int:
        return self._model.context

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def forward(
        self,
        tree: TokenTree,
        logit_rows: Sequence[int],
        hidden_layers: Sequence[int] = (),
        *,
        n_known: int = 0,
        with_logits: bool = True,
        layer_gates: Sequence[bool] | None = None,
    ) -> Rows:
        assert not hidden_layers
        assert layer_gates is None
        self._ledger.check_room(tree)
        self._ledger.check_known(tree, n_known)
        self._ledger.expect(tree, n_known, False)
        self.n_asked += 1
        texts = self._texts(tree)
        wanted = [texts[i] for i in logit_rows]
        is_new = any(text not in self._known for text in wanted)
        if is_new or self.n_asked % _CHECKED_EVERY == 0:
            self._compute(tree, texts)
            self.n_checked += not is_new
        for text in wanted:
            self._known.move_to_end(text)
        rows = [self._known[text] for text in wanted]
        while len(self._known) > MOST_ROWS:
            self._known.popitem(last=False)
        return _together(rows, self.vocab_size)

    def commit(self, path: Sequence[int]) -> None:
        self._ledger.accept(self._ledger.check_path(path), path)

    def truncate(self, n_tokens: int) -> None:
        assert n_tokens >= self._n_prefix
        self._ledger.check_truncate(n_tokens)
        self._ledger.truncate(n_tokens)

    def close(self) -> None:
        self._model.close()

    def _texts(self, tree: TokenTree) -> list[tuple[int, ...]]:
        """Returns for each token of ``tree`` the text after the prefix that ends with it."""
        committed = tuple(self._ledger.tokens[self._n_prefix :])
        texts: list[tuple[int, ...]] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            texts.append((*texts[parent], token) if parent >= 0 else (*committed, token))
        return texts

    def _compute(self, tree: TokenTree, texts: list[tuple[int, ...]]) -> None:
        """Runs the pass as asked for and remembers all its rows; known ones have to be equal."""
        tail = self._ledger.tokens[self._n_prefix :]
        n = len(tail)
        parents = (*range(-1, n - 1), *(n + p if p >= 0 else n - 1 for p in tree.parents))
        rows = self._model.forward(
            TokenTree((*tail, *tree.tokens), parents), range(n, n + len(tree))
        )
        self._model.truncate(self._n_prefix)
        self.n_computed += 1
        for i, text in enumerate(texts):
            row = _Row(rows.logits[i].copy(), _stats_of(rows.stats, i))
            if text in self._known:
                assert np.array_equal(row.logits, self._known[text].logits)
            self._known[text] = row


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
