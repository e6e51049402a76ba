"""Outputs that begin with a given text, spelt by whatever tokens the model likes.

A text that ends in the middle of a word ends in tokens that such words are not made of, and what
follows them is poor. So its last piece is left out of the prompt and asked for again.

Source: token healing (Lundberg, guidance, 2023).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edgedec.runtime.sampling.token_mask import Allowed
from edgedec.runtime.text.tokenizer import Codec


class Spellings:
    """The bytes of a tokenizer's tokens, in order."""

    def __init__(self, codec: Codec, n_ids: int) -> None:
        """n_ids: the model's logits, of which the last may stand for no token."""
        self.n_ids = n_ids
        self.of: dict[int, bytes] = {
            token: spelling
            for token, spelling in codec.spellings().items()
            if token < n_ids and isinstance(spelling, bytes) and spelling
        }
        self._tokens = _in_order(self.of)

    def agreeing(self, text: bytes) -> Allowed:
        """Returns the tokens that begin with ``text``, or that it begins with. Shapes: [V] bool."""
        row = np.zeros(self.n_ids, np.bool_)
        start = self._first(lambda spelling: spelling >= text)
        stop = self._first(lambda spelling: spelling[: len(text)] > text)
        row[self._tokens[start:stop]] = True
        for n in range(1, len(text)):
            row[self._tokens[self._spelt(text[:n])]] = True
        return row

    def beginning_with(self, text: bytes) -> list[int]:
        """Returns the tokens that begin with ``text``."""
        start = self._first(lambda spelling: spelling >= text)
        stop = self._first(lambda spelling: spelling[: len(text)] > text)
        return [int(token) for token in self._tokens[start:stop]]

    def _spelt(self, text: bytes) -> slice:
        """Returns the places of tokens that are spelt ``text``."""
        start = self._first(lambda spelling: spelling >= text)
        return slice(start, self._first(lambda spelling: spelling > text))

    def _first(self, is_so: Callable[[bytes], bool]) -> int:
        """Returns the place of the first spelling that, as all behind it, ``is_so``."""
        return bisect_left(self._tokens, True, key=lambda token: is_so(self.of[int(token)]))


def _in_order(spellings: Mapping[int, bytes]) -> npt.NDArray[np.intp]:
    """Returns the tokens in the order of their spellings. Shapes: [N].

    Made in parts, between which other threads, such as a window's, go on. A list would take long to
    index by, and to be looked through for garbage.
    """
    parts: dict[bytes, list[int]] = {}
    for token, spelling in spellings.items():
        parts.setdefault(spelling[:2], []).append(token)
    ordered = [np.zeros(0, np.intp)]
    for beginning in sorted(parts):
        ordered.append(np.array(sorted(parts[beginning], key=spellings.__getitem__), np.intp))
    return np.concatenate(ordered)


class PrefixMask:
    """A `TokenMask` of outputs that begin with a text; whatever comes after it is allowed."""

    is_finished = False

    def __init__(self, spellings: Spellings, text: str) -> None:
        self._spellings = spellings
        self._text = text.encode()
        self._rest = self._text

    @property
    def is_free(self) -> bool:
        """The whole text was emitted."""
        return not self._rest

    def begin(self, prompt: Sequence[int]) -> None:
        """A new output starts; the prompt is no part of it."""
        self._rest = self._text

    def row_after(self, tokens: Sequence[int]) -> Allowed | None:
        """Returns the tokens allowed after the accepted ones and ``tokens``; None allows all.

        Shapes: [V] bool.
        """
        rest = self._after(tokens)
        return self._spellings.agreeing(rest) if rest else None

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted."""
        self._rest = self._after((token,))

    def forced(self) -> Sequence[int]:
        """Returns no tokens: which of those that agree is the model's choice."""
        return ()

    def _after(self, tokens: Sequence[int]) -> bytes:
        rest = self._rest
        for token in tokens:
            rest = rest[len(self._spellings.of.get(token, b"")) :]
        return rest
