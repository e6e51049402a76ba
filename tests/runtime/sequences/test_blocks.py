"""Blocks of tokens that see each other, beside chains and trees."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import ToyModel


def test_a_block_states_where_its_tokens_are() -> None:
    block = TokenTree.block([5, 6, 7], [9, 2, 4])
    assert block.is_block
    assert list(block.positions(30)) == [9, 2, 4]
    np.testing.assert_array_equal(block.ancestry(), np.ones((3, 3), bool))
    assert block.part([2, 0]) == TokenTree.block([7, 5], [4, 9])


def test_places_of_others_follow_from_depths() -> None:
    tree = TokenTree((5, 6, 7), (-1, 0, 0))
    assert not tree.is_block
    assert list(tree.positions(30)) == [30, 31, 31]


def test_each_token_of_a_block_has_a_place() -> None:
    with pytest.raises(SessionError, match="a block has 3 tokens and 2 places"):
        TokenTree.block([5, 6, 7], [9, 2])


def test_no_block_for_a_model_that_writes_from_left_to_right() -> None:
    sequence = TokenSequence(ToyModel(50), 32)
    with pytest.raises(SessionError, match="writes from left to right: use a chain or a tree"):
        sequence.forward(TokenTree.block([5, 6], [0, 1]), [0])
