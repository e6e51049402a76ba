"""An index of a fixed token array: the places of the longest end of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedec.runtime.drafting.ngrams.ngram_file import SEPARATOR, Tokens

LONGEST, SHORTEST = 16, 2
"""Tokens of a match."""

Positions = npt.NDArray[np.int64]

_POSITION_BITS = 28
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_HASH_BITS = 64 - _POSITION_BITS
_FACTOR = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_SIZES = (4, SHORTEST)  # n-grams looked up by hash, the longer first
_N_COMPARED = 512  # newest places with the right n-gram that are compared further
_N_FOUND = 32  # newest places of the longest match that are returned


class NgramIndex:
    """Sorted arrays of n-gram hashes with their positions in the low bits.

    Only places with a token after them are found; nothing is matched across a SEPARATOR.
    """

    def __init__(self, tokens: Tokens) -> None:
        """Sorts ``tokens``, of which there may be 2**28."""
        pad = np.full(LONGEST, SEPARATOR, np.uint32)
        self._tokens = np.concatenate([pad, tokens, pad])
        self._keys = {size: self._sorted_keys(size) for size in _SIZES}

    def find(self, text: Sequence[int]) -> tuple[int, Positions]:
        """Returns the longest match of the end of ``text``, and the places after it, newest first.

        0 tokens and no places when there is none. Of n-grams found at very many places the
        newest are compared only.
        """
        for size in _SIZES:
            if len(text) < size:
                continue
            ends = self._places(text[len(text) - size :])
            lengths = self._match_lengths(ends, text)
            longest = int(lengths.max(initial=0))
            if longest >= size:
                return longest, ends[lengths == longest][::-1][:_N_FOUND] + 1
        return 0, np.empty(0, np.int64)

    def following(self, places: Positions, n_tokens: int) -> list[list[int]]:
        """Returns the tokens from each of ``places`` on, SEPARATOR where the text ends."""
        columns = np.arange(min(n_tokens, LONGEST))
        rows: list[list[int]] = self._tokens[places[:, None] + columns].tolist()
        return rows

    def _sorted_keys(self, size: int) -> npt.NDArray[np.uint64]:
        """Returns the key of every n-gram of ``size`` tokens that has a token after it."""
        tokens = self._tokens
        n_grams = len(tokens) - size
        hashes = np.zeros(n_grams, np.uint64)
        is_whole = np.ones(n_grams, np.bool_)
        for offset in range(size):
            part = tokens[offset : offset + n_grams]
            hashes *= np.uint64(_FACTOR)
            hashes += part
            is_whole &= part != SEPARATOR
        is_whole &= tokens[size:] != SEPARATOR
        hashes *= np.uint64(_FACTOR)
        hashes &= np.uint64(_WORD ^ _POSITION_MASK)
        hashes |= np.arange(size - 1, len(tokens) - 1, dtype=np.uint64)
        keys = hashes[is_whole]
        keys.sort()
        return keys

    def _places(self, ngram: Sequence[int]) -> Positions:
        """Returns the newest places where n-grams with the hash of ``ngram`` end, in order."""
        code = 0
        for token in ngram:
            code = (code * _FACTOR + token) & _WORD
        code = (code * _FACTOR & _WORD) >> _POSITION_BITS << _POSITION_BITS
        keys = self._keys[len(ngram)]
        bounds = np.array([code, code | _POSITION_MASK], np.uint64)
        start, end = np.searchsorted(keys, bounds).tolist()
        places = keys[max(start, end - _N_COMPARED) : end] & np.uint64(_POSITION_MASK)
        return places.astype(np.int64)

    def _match_lengths(self, ends: Positions, text: Sequence[int]) -> Positions:
        """Returns how many tokens up to each of ``ends`` are those at the end of ``text``."""
        suffix = np.array(text[-LONGEST:][::-1], np.uint32)
        is_equal = self._tokens[ends[:, None] - np.arange(len(suffix))] == suffix
        lengths: Positions = np.where(is_equal.all(axis=1), len(suffix), is_equal.argmin(axis=1))
        return lengths
