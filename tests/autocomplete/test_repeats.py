"""Suggestions leave out what stands behind the cursor already."""

from __future__ import annotations

import pytest

from edgedec.autocomplete.answer import first_line
from edgedec.autocomplete.repeats import without_repeats

PLACES = [
    # offered, before the cursor, behind it, what is left
    ("5, 3))", "print(add(", "))\nx = 1\n", "5, 3"),
    ("5, 3)", "print(add(", "))\n", "5, 3"),
    ("5, 3", "print(add(", "))\n", "5, 3"),
    ("))", "f(g(1", "))", ""),
    ('key"]', 'd["', '"]\n', "key"),
    ("a, b):", "def add(", "):\r\n    return\r\n", "a, b"),
    ("my_name)", "f(", "name)\n", "my_"),
    ("x", "foo.", "xyz\n", "x"),
    ("i in range(3)]", "[i for ", "]\n", "i in range(3)"),
    ("a;  ", "", ";\n", "a"),
    ("5)\nprint(6)", "f(", ")\n", "5"),
    ("5\nprint(6)", "f(", ")\n", "5\nprint(6)"),
    ("return y", "    ", "\n    return y\n", ""),
    ("rn y", "    retu", "\n    return y\n", ""),
    ("return x", "    ", "\n    return y\n", "return x"),
    ("return y", "    ", "\n\n    return y  \n", ""),
    ("return y", "    ", "\r\n    return y\r\n", ""),
    ("return y", "    ", "\n        return y\n", "return y"),
    ("}", "    ", "\n}\n", "}"),
    ("y = 1\n    return y", "    ", "\n    return y\n", "y = 1"),
    ("y = 1\n\n    return y\n", "    ", "\n    return y\nz\n", "y = 1"),
    ("y = 1\n    return x", "    ", "\n    return y\n", "y = 1\n    return x"),
    ("\n    return y", "x = 1", "\n    return y\n", ""),
    ("1", "x = ", "", "1"),
    ("", "x = ", ")", ""),
]


@pytest.mark.parametrize(("text", "before", "after", "expected"), PLACES)
def test_what_repeats_is_cut(text: str, before: str, after: str, expected: str) -> None:
    assert without_repeats(text, before, after) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\r\nb = 2\r\n", "a = 1"), ("\r\n  a\r\nb", "\r\n  a"), ("a\r\n", "a"),
        ("a\nb", "a"), ("a", "a"), ("\n", "\n"),
    ],
)  # fmt: skip
def test_a_line_ends_before_its_line_end(text: str, line: str) -> None:
    assert first_line(text) == line
