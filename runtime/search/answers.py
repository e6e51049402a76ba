r"""The answer within a text: what votes count, and what evaluations judge.

A number is the one after the last `####`; failing that, the one in the last `\boxed{}` or
`\fbox{}`; failing that, in the last `<answer>`; failing that, the one after "answer is" or
"answer:"; failing that, the last one. Behind a mark, it is the number after the last `=` of the
line. What follows a marked answer as a further question does not count.

Marks between thousands (a comma, also as LaTeX's `{,}`; a blank; an apostrophe; a low line),
currency signs and a trailing full stop are no part of a number. U+2212 is a minus. Fractions,
powers of ten, and words such as million are read by their value.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

_MARKED = (
    re.compile(r"####[ \t]*\n*((?:(?!####)[^\n])*)"),
    re.compile(r"\\(?:boxed|fbox)\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}?"),
    re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL),
    re.compile(
        r"\banswer(?:\*\*)?\s*(?:is|:|=)[ \t*:$\\(\[]*\n*"
        r"((?=[-$€£₹¥]*\.?\d)[^\n]*?)(?:[.;](?!\d)|\n|\Z)",
        re.IGNORECASE,
    ),
)
"""Where an answer stands; the earlier ones count more."""
_NEXT_QUESTION = re.compile(r"^\s*\W*(?:Question|Problem|Q)(?: ?\d+)?\W*:", re.MULTILINE)
_WORDS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_DIGITS = (
    r"(?:(?<!\d)(?:\d{1,2}(?:,\d{2})+,\d{3}|"
    r"\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+|(?:'\d{3})+|(?:_\d{3})+))(?!\d)|\d+)(?:\.\d+)?"
)
# A minus belongs to a number unless it takes something from what stands before it.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])(?:-(?!\s)|(?<![\w)\]] )-\s))?"
    rf"[$€£₹¥]?\s?(?:{_DIGITS}|(?<!\d)\.\d+)"
    r"(?:[eE][-+]?\d{1,3}(?!\w)|\s?(?:x|\*|×|\\times|\\cdot)\s?10\^\{?[-+]?\d{1,3}\}?)?"
    rf"(?:(?<!\d/)/\d+(?![\d/]))?(?:\s(?:{'|'.join(_WORDS)})\b)?"
)
_LATEX = re.compile(r"(-?)\s*\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d))")
_EUROPEAN = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d)")
_DATE = re.compile(r"(\d+)/(\d+)/(\d+)")
_MIXED = re.compile(r"(?<![\d/.,])(\d{1,6}) (\d{1,3})/(\d{1,3})(?![\d/])")
_SPELLINGS = (
    (re.compile("[\u2212\uff0d\u2010\u2011\ufe63]"), "-"),
    (re.compile(r"\{,\}|(?<=\d)\uff0c(?=\d)|(?<=\d),\\!(?=\d)"), ","),
    (re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\\[,;: ]|~|\{ \})(?=\d)"), " "),
    (re.compile(r"(?<=\d)\u2019(?=\d)"), "'"),
    (re.compile(r"\\(?=[$€£])"), ""),
    (re.compile(r"(?<=[$€£])\*\*"), ""),
)
"""Other ways to write what a number has."""
_CODE = re.compile(r"```[\w+-]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


def final_number(text: str) -> Decimal | None:
    """Returns the number an answer ends with, None if it has none."""
    text = _respelt(text)
    for place in _MARKED:
        parts = list(place.finditer(text))
        if parts and (question := _NEXT_QUESTION.search(text, parts[0].end())):
            text = text[: question.start()]
            parts = list(place.finditer(text))
        for part in reversed(parts):
            if match := _NUMBER.search(part[1].rpartition("=")[2]) or _NUMBER.search(part[1]):
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
    block = _CODE.search(text)
    return block[1] if block else text


def _respelt(text: str) -> str:
    for pattern, usual in _SPELLINGS:
        text = pattern.sub(usual, text)
    text = _EUROPEAN.sub(lambda m: m[0].replace(".", "").replace(",", "."), text)
    text = _LATEX.sub(_slashed, text)
    text = _DATE.sub(r"\1 / \2 / \3", text)
    text = _MIXED.sub(lambda m: f"{int(m[1]) * int(m[3]) + int(m[2])}/{m[3]}", text)
    return re.sub(r"(\d*) ?([¼-¾⅐-⅞])", _mixed, text)


def _slashed(match: re.Match[str]) -> str:
    """Returns a fraction of LaTeX with a slash, apart from a number before it."""
    before = match.string[match.start() - 1 : match.start()]
    fraction = f"{match[1]}{match[2] or match[4]}/{match[3] or match[5]}"
    return f" {fraction}" if before.isdigit() else fraction


def _mixed(match: re.Match[str]) -> str:
    """Returns a number and a fraction of one character as a decimal number."""
    fraction = Decimal(unicodedata.numeric(match[2])).quantize(Decimal("1e-9"))
    return format((Decimal(match[1] or 0) + fraction).normalize(), "f")


def _value(number: str) -> Decimal:
    """Returns the value of a number as `_NUMBER` finds it."""
    *_, word = number.split() or [""]
    factor = Decimal(10) ** _WORDS.get(word, 0)
    plain = re.sub(r"\s?(?:x|\*|×|\\times|\\cdot)\s?10\^\{?([-+]?\d+)\}?", r"e\1", number)
    plain = re.sub(r"[$€£₹¥,'_\s]|[a-df-z]{2,}", "", plain)
    top, _, bottom = plain.partition("/")
    is_fraction = bool(bottom) and Decimal(bottom) != 0
    return factor * (Decimal(top) / Decimal(bottom) if is_fraction else Decimal(top))
