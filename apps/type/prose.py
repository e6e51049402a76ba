"""Which part of a model's continuation is shown to somebody who writes prose."""

from __future__ import annotations

import re

_WORD = re.compile(r"\s*(?:[«„“]\s)?\S+(?:[^\S\n][:;!?»]+(?!\S))?")
"""With the marks that French writes behind or before a blank."""

_HALF_WORD = re.compile(r"\S*\Z")
_BEFORE_LETTERS = re.compile(r"\W*(?:(?:\w|\w*qu)['’])?", re.IGNORECASE)
"""Marks and elisions, such as French ``l'`` and ``qu'``, behind which a word begins."""

_SENTENCE_END = re.compile(r"(\S*)[.!?](?:\s?[»\"'”’“)\]])*\s+[¿¡«„“\"'(]*\s?\Z")
"""Its group is the word before the mark."""

_ABBREVIATION = re.compile(
    r".*\d|(?:.*\W)?\w|[b-df-hj-np-tv-xz]+"
    r"|approx|art|ca|dra|ej|env|etc|evtl|ggf|ing|inkl|máx|mín|núm|pág|prof|sra|uds?|usw|vol",
    re.IGNORECASE,
)
"""Of English, German, Spanish and French: after it a sentence may go on."""

_NO_PROSE = re.compile(r"[\d@/\\_#<>={}|~^]|\.\w|\w:\w")
"""In numbers, addresses, paths and programs, not in words."""

_NO_WORD_AFTER = (",", ";", ":")
"""Marks that a blank follows."""

_REACH = 100
"""Characters before the cursor that may say whether a sentence begins there."""

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
    return word == "" or word[-1:].isalnum() or word[-1:] in "'’,;:-–—\"(«„“¿¡"


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
    half_word = _BEFORE_LETTERS.sub("", half.group() if half else "", count=1)
    if shown[:1].isalnum():
        if len(half_word) == 1 or before[-1:] in _NO_WORD_AFTER:
            return ""
        shown = _in_capitals(half_word, shown)
    if before[-1:].isspace():
        shown = shown.lstrip()
    if _begins_sentence(before):
        shown = _with_a_capital(shown)
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
    part = half_word.rpartition("-")[2]  # not `E-`, nor `U-B`
    if not part.isupper() or len(part) < 2:
        return shown
    rest = first_word(shown)
    return rest.upper() + shown[len(rest) :]


def _begins_sentence(before: str) -> bool:
    """Says whether a sentence begins at the cursor of somebody who begins them in capitals."""
    end = _SENTENCE_END.search(before[-_REACH:])
    if end is None or _ABBREVIATION.fullmatch(end.group(1).lstrip("([\"'«„“")):
        return False
    return not before.lstrip()[:1].islower()


def _with_a_capital(shown: str) -> str:
    """Returns ``shown`` with its first letter in capitals, such as that behind ``¿``."""
    at = next((i for i, character in enumerate(shown) if character.isalnum()), 0)
    return shown[:at] + shown[at : at + 1].upper() + shown[at + 1 :]
