"""Which pieces of a text are words that a dictionary can be asked about."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_RUN = re.compile(r"\S+")
_LETTERS = r"[^\W\d_](?:[^\W\d_]|[\u0300-\u036f])*"
_WORD = re.compile(f"{_LETTERS}(?:['’]{_LETTERS})*")
_NO_PROSE = re.compile(r"[\d_@/\\`#<>{}=]|\w\.\w|\w\(")
"""Within numbers, addresses, names of files, and code."""

_MIN = 3
"""Letters of a word; shorter ones are units and the like, which dictionaries lack."""


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """Yields where the words of ``text`` begin and end; names such as NASA and iPhone are none."""
    for run in _RUN.finditer(text):
        if _NO_PROSE.search(run[0]):
            continue
        for word in _WORD.finditer(text, run.start(), run.end()):
            rest = word[0][1:]
            if len(word[0]) >= _MIN and rest == rest.lower():
                yield word.span()


def plain(word: str) -> str:
    """Returns a word as dictionaries write it, its case apart."""
    return unicodedata.normalize("NFC", word).replace("’", "'")
