r"""The answer within a text: what votes count, and what evaluations judge.

A number is the one after the last `####`; failing that, the one after the last `\boxed{`; failing
that, the last one. Marks between thousands (a comma, also as LaTeX's `{,}`; a blank; an
apostrophe), currency signs and a trailing full stop are no part of it. U+2212 is a minus.
"""

from __future__ import annotations

import re
from decimal import Decimal

_MARKS = ("####", r"\boxed{")
# A minus belongs to a number unless it takes something from what stands before it.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])(?:-(?!\s)|(?<![\w)\]] )-\s))?"
    r"[$€£]?\s?(?:(?<!\d)\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+|(?:'\d{3})+)(?!\d)|\d+)"
    r"(?:\.\d+)?|(?<!\d)\.\d+"
)
_SPELLINGS = (
    (re.compile("[\u2212\uff0d\u2010\u2011\ufe63]"), "-"),
    (re.compile(r"\{,\}|(?<=\d)\uff0c(?=\d)"), ","),
    (re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\\[,;: ]|~|\{ \})(?=\d)"), " "),
    (re.compile(r"(?<=\d)\u2019(?=\d)"), "'"),
    (re.compile(r"\\(?=[$€£])"), ""),
)
"""Other ways to write what a number has."""
_CODE = re.compile(r"```[\w+-]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


def final_number(text: str) -> Decimal | None:
    """Returns the number an answer ends with, None if it has none."""
    text = _respelt(text)
    for mark in _MARKS:
        _, found, rest = text.rpartition(mark)
        if found and (match := _NUMBER.search(rest)):
            return _value(match[0])
    return last_number(text)


def last_number(text: str) -> Decimal | None:
    """Returns the last number in ``text``, None if it has none."""
    numbers = _NUMBER.findall(_respelt(text))
    return _value(numbers[-1]) if numbers else None


def short_answer(text: str) -> str | None:
    """Returns what two texts that mean the same answer have in common; None for an empty text.

    That is the final number, by its value; the whole text where there is none.
    """
    number = final_number(text)
    if number is not None:
        return format(number.normalize(), "f")
    return " ".join(text.split()).casefold() or None


def code_of(text: str) -> str:
    """Returns the first block of code in ``text``, or all of it if there is none."""
    found = _CODE.search(text)
    return found[1] if found else text


def _respelt(text: str) -> str:
    for pattern, usual in _SPELLINGS:
        text = pattern.sub(usual, text)
    return text


def _value(number: str) -> Decimal:
    return Decimal(re.sub(r"[$€£,'\s]", "", number))
