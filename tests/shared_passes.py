"""Passes of several sequences as one, against the same passes each by itself, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.passes import Pass, compute
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

_MAX_NEW = 300


@dataclass
class _Twin:
    """A text twice: computed among others, and alone."""

    shared: TokenSequence
    alone: TokenSequence

    def close(self) -> None:
        self.shared.close()
        self.alone.close()


def check_random_mixes(
    model: Model,
    seed: int,
    n_rounds: int,
    n_texts: int = 6,
    with_mtp: bool = False,
    context: int = 640,
) -> None:
    """Asserts that every row equals that of a pass alone."""
    rng = np.random.default_rng(seed)
    twins: list[_Twin] = []
    for _ in range(n_rounds):
        while len(twins) < n_texts:
            twins.append(_Twin(TokenSequence(model, context), TokenSequence(model, context)))
        if rng.random() < 0.5:
            _begin_alike(rng, twins)
        chosen = [twins[i] for i in rng.permutation(n_texts)[: rng.integers(2, n_texts + 1)]]
        asked = [_random_pass(rng, twin.shared, with_mtp) for twin in chosen]
        found = compute(asked)
        for twin, wanted, rows in zip(chosen, asked, found, strict=True):
            same = wanted._replace(sequence=twin.alone)
            check_same(rows, twin.alone.run(same))
            _go_on(rng, twin, wanted.tree)
        if rng.random() < 0.2:  # a text is cancelled, and another one gets its place
            twins.pop(int(rng.integers(len(twins)))).close()
    for twin in twins:
        twin.close()


def _begin_alike(rng: np.random.Generator, twins: Sequence[_Twin]) -> None:
    """Has one text begin like another, alone by computing it once more."""
    one, other = (twins[i] for i in rng.permutation(len(twins))[:2])
    n_tokens = int(rng.integers(0, other.shared.n_tokens + 1))
    n_tokens = other.shared.reachable(n_tokens)
    one.shared.begin_like(other.shared, n_tokens)
    assert one.shared.tokens == other.alone.tokens[:n_tokens]
    one.alone.truncate(0)
    while (start := one.alone.n_tokens) < n_tokens:
        chunk = other.shared.tokens[start : min(start + 128, n_tokens)]
        one.alone.forward(TokenTree.chain(chunk), ())
        one.alone.commit(range(len(chunk)))


def check_same(found: Rows, expected: Rows) -> None:
    """Asserts equal bits of all arrays."""
    for ours, theirs in zip(_arrays(found), _arrays(expected), strict=True):
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()


def _arrays(rows: Rows) -> list[np.ndarray]:
    mtp = () if rows.mtp is None else (rows.mtp.ids, rows.mtp.log_probs)
    hidden = [rows.hidden[layer] for layer in sorted(rows.hidden)]
    return [rows.logits, *hidden, *vars(rows.stats).values(), *mtp]


def _random_pass(rng: np.random.Generator, sequence: TokenSequence, with_mtp: bool) -> Pass:
    """Returns a chunk of a prompt, a row, or a tree, with whatever may be asked of it."""
    room, model = sequence.context - sequence.n_tokens, sequence.model
    kind = rng.choice(["chunk", "row", "tree"], p=[0.3, 0.4, 0.3])
    size = {"chunk": int(rng.integers(1, _MAX_NEW)), "row": 1, "tree": int(rng.integers(2, 9))}
    n = min(size[kind], room)
    tokens = tuple(int(token) for token in rng.integers(0, model.n_token_ids, n))
    tree = TokenTree.chain(tokens)
    if kind == "tree":
        tree = TokenTree(tokens, tuple(int(rng.integers(-1, i)) if i else -1 for i in range(n)))
    rows: Sequence[int] = [i for i in range(n) if i == n - 1 or rng.random() < 0.2]
    hidden = [layer for layer in model.capabilities.hidden if rng.random() < 0.3]
    return Pass(
        sequence, tree, rows, hidden,
        with_logits=bool(rng.random() < 0.5), with_mtp=with_mtp and bool(rng.random() < 0.5),
    )  # fmt: skip


def _go_on(rng: np.random.Generator, twin: _Twin, tree: TokenTree) -> None:
    """Commits a way down the tree, or nothing, and sometimes goes back."""
    way: list[int] = []
    node = int(rng.integers(-1, len(tree)))
    while node >= 0:
        way.insert(0, node)
        node = tree.parents[node]
    n_left = int(rng.integers(0, twin.shared.n_tokens + 1)) if rng.random() < 0.1 else None
    for sequence in (twin.shared, twin.alone):
        sequence.commit(way)
        if n_left is not None or sequence.n_tokens > sequence.context - 16:
            sequence.rewind(n_left or 0)
