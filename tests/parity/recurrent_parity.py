"""What families with recurrent layers have to hold besides `FamilyParity`."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import UnsupportedModelError
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from tests.parity.family_parity import TOKENS, FamilyParity, Logits, Toy, one_by_one
from tests.parity.toy_parity import same_bits

TREE = TokenTree(
    (5, 9, 8, 6, 4, 5, 5, 90, 33, 1, 2, 17, 60, 60, 41, 3),
    (-1, -1, 0, 0, 1, 2, 2, 3, 4, 5, 5, 9, 9, 11, 12, 14),
)
"""Sixteen tokens on branches of all lengths, two of them alike."""


class StateParity:
    """What states hold, for a fixture ``sequence`` of a bundle that keeps `RING_ROOM` rows."""

    def same(self, a: Logits, b: Logits) -> None:
        """Checks rows of passes of other sizes."""
        same_bits(a, b)

    def test_sessions(self, sequence: TokenSequence) -> None:
        """A snapshot is of the latest token that a state is behind, here the one computed last."""
        alone, n = one_by_one(sequence, TOKENS), len(TOKENS) - 3
        sequence.truncate(n - 1)
        sequence.forward(TokenTree.chain(TOKENS[n - 1 : n]), [])
        sequence.commit([0])
        state = sequence.snapshot()
        assert len(state.tokens) == n
        sequence.truncate(0)
        sequence.restore(state)
        self.same(sequence.forward(TokenTree.chain(TOKENS[n:]), range(3)).logits, alone[n:])

    def test_rewinding_at_every_position(self, sequence: TokenSequence) -> None:
        """What is too far back for the rows that are kept begins anew."""
        alone = one_by_one(sequence, TOKENS)
        for n in reversed(range(len(TOKENS))):
            n_left = sequence.rewind(n)
            assert n_left == n or (n_left == 0 and len(TOKENS) - n > len(TREE))
            tree = TokenTree.chain(TOKENS[n_left:])
            self.same(sequence.forward(tree, range(len(tree))).logits, alone[n_left:])
            if n_left == 0:
                break

    def test_a_tree_of_sixteen_with_any_path_kept(self, sequence: TokenSequence) -> None:
        n = 7
        for leaf in range(len(TREE)):
            path = way_to(leaf)
            own = [*TOKENS[:n], *(TREE.tokens[i] for i in path)]
            alone = one_by_one(sequence, [*own, 11, 12])
            for n_kept in range(len(path) + 1):
                sequence.truncate(n)
                rows = sequence.forward(TREE, range(len(TREE))).logits
                self.same(rows[path], alone[n : n + len(path)])
                sequence.commit(path[:n_kept])
                rest = TokenTree.chain([*own[n + n_kept :], 11, 12])
                rows = sequence.forward(rest, range(len(rest))).logits
                self.same(rows, alone[n + n_kept :])

    def test_a_tree_that_grows(self, sequence: TokenSequence) -> None:
        sequence.truncate(0)
        sequence.forward(TokenTree.chain(TOKENS[:5]), [])
        sequence.commit(range(5))
        whole = sequence.forward(TREE, range(len(TREE))).logits.copy()
        for n_known, n_nodes in itertools.pairwise((0, 2, 5, 6, 12, 16)):
            grown = TREE.part(range(n_nodes))
            rows = sequence.forward(grown, range(n_known, n_nodes), n_known=n_known)
            self.same(rows.logits, whole[n_known:n_nodes])

    def test_texts_longer_than_what_is_kept(self, sequence: TokenSequence) -> None:
        """Chunks of any size, longer than the rows that are kept; the text goes round those."""
        rng = np.random.default_rng(4)
        tokens = [int(i) for i in rng.integers(0, 97, 60)]
        alone = one_by_one(sequence, tokens)
        for size in (3, 16, 41, 60):
            sequence.truncate(0)
            for start in range(0, 60, size):
                tree = TokenTree.chain(tokens[start : start + size])
                rows = sequence.forward(tree, range(len(tree))).logits
                self.same(rows, alone[start : start + size])
                sequence.commit(range(len(tree)))


class RecurrentParity(StateParity, FamilyParity):
    """Inherit from it as ``TestParity``."""

    def test_gates(self, toy: Toy, bundle: Path) -> None:
        """Recurrent layers run in every pass, so there are none."""

    def test_ort(self, toy: Toy, tmp_path: Path) -> None:
        config = ExportConfig(str(toy.folder), tmp_path / "b", device_target="ort")
        with pytest.raises(UnsupportedModelError, match=r"recurrent layers .* compiler ort"):
            export(config)

    def test_ort_in_float16(self) -> None:
        """As `test_ort`."""


def way_to(node: int) -> list[int]:
    """Returns the nodes of `TREE` from the root down to ``node``."""
    way: list[int] = []
    while node >= 0:
        way.insert(0, node)
        node = TREE.parents[node]
    return way
