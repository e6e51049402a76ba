"""The spans of a text as a trie of tokens, which is built as far as somebody walks down it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from edgedec.runtime.text.tokenizer import Codec

_WORD = re.compile(r"[^\W_]+|\S")
_TOKEN_CHARACTERS = 16
"""Enough of them for each token of a span, but for rare long ones."""


@dataclass(frozen=True, eq=False)
class SpanSet:
    """A set of spans of a text that begin with the same tokens: a place in the trie.

    rows: in `Spans.tokens`, in the order of their offsets. depth: tokens that they begin with.
    """

    rows: npt.NDArray[np.intp]
    depth: int


class Spans:
    """Every span of a text that begins and ends where a token does, as its tokens.

    A span behind a blank is there twice: with the blank and without, for a model may write either.

    tokens: [R, max_tokens] int32, what begins at an offset; -1 behind the end of the text.
    offsets: [R] of each row, in characters.
    """

    def __init__(self, codec: Codec, text: str, max_tokens: int) -> None:
        rows = list(_rows(codec, text, max_tokens))
        self.text = text
        self.max_tokens = max_tokens
        self.tokens = np.full((len(rows), max_tokens), -1, np.int32)
        self.offsets = np.array([offset for offset, _ in rows], np.intp)
        for i, (_, ids) in enumerate(rows):
            self.tokens[i, : len(ids)] = ids

    @property
    def root(self) -> SpanSet:
        """All spans."""
        return SpanSet(np.arange(len(self.tokens)), 0)

    def followers(self, place: SpanSet) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]:
        """Returns the tokens that follow at a place, rising, and for each row which of them."""
        if place.depth == self.max_tokens:
            return np.zeros(0, np.int32), np.zeros(0, np.intp)
        column = self.tokens[place.rows, place.depth]
        ids, which = np.unique(column, return_inverse=True)
        n_ended = int(len(ids) > 0 and ids[0] < 0)
        return ids[n_ended:], which - n_ended

    def count(self) -> int:
        """Returns how many different spans there are, as tokens."""
        order = np.lexsort(self.tokens.T[::-1])
        rows = self.tokens[order]
        is_new = np.ones(rows.shape, np.bool_)
        is_new[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
        return int((is_new & (rows >= 0)).sum())

    def quoted(self, place: SpanSet, tokens: list[int], decode: Callable[[list[int]], str]) -> str:
        """Returns the span that ends at a place; empty where it ends within a character."""
        text = decode(tokens).strip()
        return text if self.text.startswith(text, self.offsets[place.rows[0]]) else ""


def token_ends(codec: Codec, text: str) -> list[int]:
    """Returns where tokens of ``text`` end, in characters; words where tokens do not say."""
    stream = codec.detokenizer()
    pieces = [stream.push(token) for token in codec.encode(text)]
    pieces.append(stream.flush())
    if "".join(pieces) != text:  # a tokenizer that changes texts
        ends = [match.end() for match in _WORD.finditer(text)]
        return sorted({*ends, len(text)})
    return sorted({*accumulate(map(len, pieces))} - {0})


def _rows(codec: Codec, text: str, max_tokens: int) -> Iterator[tuple[int, list[int]]]:
    """Yields each offset where a span may begin, and the tokens from there on."""
    known = -1
    for end in [0, *token_ends(codec, text)]:
        offset = end + len(text[end:]) - len(text[end:].lstrip())
        if offset in (known, len(text)):
            continue
        known = offset
        rest = text[offset : offset + _TOKEN_CHARACTERS * max_tokens]
        yield offset, codec.encode(rest)[:max_tokens]
        if offset and text[offset - 1].isspace():
            yield offset, codec.encode(" " + rest)[:max_tokens]
