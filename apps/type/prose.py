"""Which part of a model's continuation is shown to somebody who writes prose."""

from __future__ import annotations

import re

_WORD = re.compile(r"\s*\S+")
_HALF_WORD = re.compile(r"\S*\Z")
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+\Z")
_NO_PROSE = re.compile(r"[\d@/\\_#<>={}|~^]|\.\w|\w:\w")
"""In numbers, addresses, paths and programs, not in words."""

MIN_SAVED = 2
"""Fewest characters that are worth a key and a look."""

N_WORDS = 3
"""Words that are shown at a time."""


def is_worth_asking(before: str, after: str) -> bool:
    """Says whether a suggestion may be shown at a cursor at all."""
    half = _HALF_WORD.search(before)
    word = half.group() if half else ""
    if not before.strip() or after[:1].isalnum() or _NO_PROSE.search(word):
        return False
    return word == "" or word[-1:].isalnum() or word[-1:] in "'’,;:-–—\"("


def fitted(before: str, after: str, text: str, is_complete: bool, n_words: int = N_WORDS) -> str:
    """Returns what is shown of ``text``, which continues ``before``; empty if nothing.

    At most ``n_words`` words of one line; a word that may still grow is left out.
    """
    if not is_worth_asking(before, after):
        return ""
    line = text.split("\n", 1)[0]
    is_complete = is_complete or line != text
    words = [match.group() for match in _WORD.finditer(line)]
    if not is_complete:
        words = words[:-1]
    shown = "".join(_prose_words(words[:n_words]))
    half = _HALF_WORD.search(before)
    word = half.group() if half else ""
    if word and shown[:1].isalnum():
        if len(word) < 2:
            return ""
        shown = _in_capitals(word, shown)
    if before[-1:].isspace():
        shown = shown.lstrip()
    if _begins_sentence(before):
        shown = shown[:1].upper() + shown[1:]
    is_worth = len(shown) >= MIN_SAVED and any(map(str.isalnum, shown))
    return shown if is_worth and not after.startswith(shown) else ""


def first_word(text: str) -> str:
    """Returns the first word of a suggestion, with the space before it."""
    match = _WORD.match(text)
    return match.group() if match else text


def _prose_words(words: list[str]) -> list[str]:
    """Returns ``words`` up to the first that is a number or an address."""
    bad = (i for i, word in enumerate(words) if _NO_PROSE.search(word))
    return words[: next(bad, len(words))]


def _in_capitals(half_word: str, shown: str) -> str:
    """Returns ``shown`` with its first word in capitals if what it completes is."""
    if not half_word.isupper():
        return shown
    rest = first_word(shown)
    return rest.upper() + shown[len(rest) :]


def _begins_sentence(before: str) -> bool:
    """Says whether a sentence begins at the cursor of somebody who begins them in capitals."""
    return bool(_SENTENCE_END.search(before)) and not before.lstrip()[:1].islower()
