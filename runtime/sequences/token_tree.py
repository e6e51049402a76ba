"""The tokens of one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError


@dataclass(frozen=True, init=False)
class TokenTree:
    """Tokens of one pass and what each hangs on. A chain is the special case.

    Those of a *block* hang on nothing: they are from anywhere in the text, and see each other.

    tokens: token ids, parents before children.
    parents: index within this pass of each token's parent; -1 hangs on the committed prefix.
    places: of a block, position of each token in the text; none of a tree, where depths decide.
    depths: distance of each token from the committed prefix, 0 for its first followers.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    places: tuple[int, ...]
    depths: tuple[int, ...] = field(compare=False, repr=False)

    def __init__(
        self, tokens: tuple[int, ...], parents: tuple[int, ...], places: tuple[int, ...] = ()
    ) -> None:
        if not tokens:
            raise SessionError("a pass needs at least one token, got none")
        if len(parents) != len(tokens):
            raise SessionError(
                f"token tree has {len(tokens)} tokens and {len(parents)} parents, expected as many "
                "of each"
            )
        if places and len(places) != len(tokens):
            raise SessionError(
                f"a block has {len(tokens)} tokens and {len(places)} places, expected as many of "
                "each"
            )
        depths: list[int] = []
        for i, parent in enumerate(parents):
            if not -1 <= parent < i:
                raise SessionError(f"parent of token {i} is {parent}, expected -1 to {i - 1}")
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        vars(self).update(tokens=tokens, parents=parents, places=places, depths=tuple(depths))

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Self:
        """Returns the tree in which every token follows the one before it."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    @classmethod
    def block(cls, tokens: Sequence[int], places: Sequence[int]) -> Self:
        """Returns the block of ``tokens``, which are at ``places`` of the text."""
        return cls(tuple(tokens), (-1,) * len(tokens), tuple(places))

    def part(self, rows: Sequence[int]) -> TokenTree:
        """Returns the tree of the tokens ``rows``, in this order; their parents are among them."""
        place = {-1: -1} | {row: i for i, row in enumerate(rows)}
        parents = tuple(place[self.parents[row]] for row in rows)
        places = tuple(self.places[row] for row in rows) if self.places else ()
        return TokenTree(tuple(self.tokens[row] for row in rows), parents, places)

    def __len__(self) -> int:
        return len(self.tokens)

    def positions(self, n_past: int) -> Sequence[int]:
        """Returns where in the text each token is, after ``n_past`` committed ones."""
        return self.places or [*map(n_past.__add__, self.depths)]

    @property
    def is_block(self) -> bool:
        """Its tokens see each other."""
        return bool(self.places)

    @cached_property
    def is_chain(self) -> bool:
        """Every token follows the one before it."""
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def ancestry(self) -> npt.NDArray[np.bool_]:
        """Returns ``a[i, j]``: token i sees token j: itself, an ancestor, or any of a block.

        Shapes: [T, T] bool.
        """
        if self.is_block:
            return np.ones((len(self), len(self)), np.bool_)
        mask = np.eye(len(self), dtype=np.bool_)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                mask[i] |= mask[parent]
        return mask
