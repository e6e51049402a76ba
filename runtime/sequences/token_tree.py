"""The tokens of one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError


@dataclass(frozen=True)
class TokenTree:
    """Tokens of one pass and what each hangs on. A chain is the special case.

    tokens: token ids, parents before children.
    parents: index within this pass of each token's parent; -1 hangs on the committed prefix.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise SessionError("a pass needs at least one token, got none")
        if len(self.parents) != len(self.tokens):
            raise SessionError(
                f"token tree has {len(self.tokens)} tokens and {len(self.parents)} parents, "
                "expected as many of each"
            )
        for i, parent in enumerate(self.parents):
            if not -1 <= parent < i:
                raise SessionError(f"parent of token {i} is {parent}, expected -1 to {i - 1}")

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Self:
        """Returns the tree in which every token follows the one before it."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    def part(self, rows: Sequence[int]) -> TokenTree:
        """Returns the tree of the tokens ``rows``, in this order; their parents are among them."""
        place = {-1: -1} | {row: i for i, row in enumerate(rows)}
        parents = tuple(place[self.parents[row]] for row in rows)
        return TokenTree(tuple(self.tokens[row] for row in rows), parents)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each token from the committed prefix, 0 for its first followers."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @cached_property
    def is_chain(self) -> bool:
        """Every token follows the one before it."""
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def ancestry(self) -> npt.NDArray[np.bool_]:
        """Returns ``a[i, j]``: token j is token i or one of its ancestors.

        Shapes: [T, T] bool.
        """
        mask = np.eye(len(self), dtype=np.bool_)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                mask[i] |= mask[parent]
        return mask
