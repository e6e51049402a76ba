"""Token ids of a text that grows: what was encoded before is not encoded again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from edgedec.runtime.text.tokenizer import Codec

_PIECE = 256
"""Characters of a piece, at least: what a key encodes again, and how long Python is held up."""

_N_KEPT = 1024
"""Pieces that are remembered."""

_CUT = re.compile(r"(?<=[^\W_])(?=\r?\n)")
"""Between a word and the end of its line: the splitting rules of byte-level tokenizers part these
everywhere, so the tokens on both sides are those of the whole text."""


class PieceEncoder:
    """Encodes texts in pieces that it remembers, where that gives the tokens of the whole."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._encode = lru_cache(_N_KEPT)(lambda piece: tuple(codec.encode(piece)))
        self.keeps_spaces = codec.decode(codec.encode(" a")) == " a"
        """Of some tokenizers the first token of a text is another than within it."""

    def encode(self, text: str) -> list[int]:
        """Returns the ids of ``text``."""
        if not self.keeps_spaces:
            return self._codec.encode(text)
        return [token for piece in _pieces(text) for token in self._encode(piece)]


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _PIECE)
        stop = len(text) if cut is None else cut.start()
        yield text[start:stop]
        start = stop
