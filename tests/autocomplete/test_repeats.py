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
    # blocks that end where the document goes on
    (
        "\n  return a;\n}\n\nint main(void) {\n",
        "int f(int a) {",
        "\n\nint main() {\n  f(1);\n}\n",
        "\n  return a;\n}\n",
    ),
    (
        "\n  return a;\n}\n\nint main(){",
        "int f(int a) {",
        "\n\n// entry\nint main() {\n}\n",
        "\n  return a;\n}\n",
    ),
    (
        "\n  return a;\n}\n\nint g() {",
        "int f(int a) {",
        "\n}\n\nint main() {\n}\n",
        "\n  return a;",
    ),
    ("\n    a();\n  }\n  b();\n}\n", "  if (x) {", "\n}\n", "\n    a();\n  }\n  b();"),
    ("\n    a();\n  }\n  b();\n}\n", "  if (x) {", "\n  }\n}\n", "\n    a();"),
    ("\n  x: 1,\n];\nlet b", "let a = [", "\n];\n", "\n  x: 1,"),
    (
        "\n    return 1\n\ndef g(y):\n",
        "def f():",
        "\n\ndef g(x):\n    return x\n",
        "\n    return 1\n",
    ),
    (
        "\n  if (a) {\n  }\n  if (b) {",
        "void f() {",
        "\n}\nvoid g() {\n}\n",
        "\n  if (a) {\n  }\n  if (b) {",
    ),
    ('\n  s = "}";\n  t();\n}', "void f() {", "\n}\n", '\n  s = "}";\n  t();'),
    # brackets and quotes that stand there already
    ("a, b) + c", "f(", ")\n", "a, b"),
    ("range(3)) + 1", "len(", ")", "range(3)"),
    ("g(1), h(2)", "f(", ")", "g(1), h(2)"),
    ("0] + y[1]", "x[", "]\n", "0"),
    ("1)", "foo(", " )\n", "1"),
    ("1 )", "foo(", " )\n", "1"),
    ("a: 1}", "d = {", " }", "a: 1"),
    ('key"] = value', 'd["', '"]\n', "key"),
    ('hello")', 'print("', '")', "hello"),
    ("hello'", "x = '", "'\n", "hello"),
    ('a + "b"', "f(", '"x")', 'a + "b"'),
    ("it's", 'x = "', '"', "it's"),
    ("x) {", "if (", ") {\n", "x"),
    ("x) { y();", "if (", ") {\n", "x"),
    (" > 0 and y == 1:", "if x", " == 1:", " > 0 and y"),
    (" == 1:", "if x", " == 1:\n", ""),
    ("item, })", "f({ ", "})", "item, "),
    ("<b>x</b>", "<p>", "</p>", "<b>x</b>"),
    ("x</p>", "<p>", "</p>\n", "x"),
    (" -> int:", "def f()", ":\n    pass", " -> int"),
    ("name}", "f'{", "}'", "name"),
    # several lines within brackets that are closed there already
    ("{\n  a: 1\n})", "f(", ");\n", "{\n  a: 1\n}"),
    ("() => {\n  g();\n});\nh();", "f(", ")\n", "() => {\n  g();\n}"),
    ("1,\r\n  2)\r\n", "f(", ")\r\n", "1,\r\n  2"),
    ("[\n  1\n])", "f(", " )\n", "[\n  1\n]"),
    ("1,\n  f(2),\n  3", "f(", ")\n", "1,\n  f(2),\n  3"),
    # quotes behind a backslash
    ('\\"q\\"")', 'printf("', '");\n', '\\"q\\"'),
    ("don\\'t')", "f('", "')\n", "don\\'t"),
    ('a\\\\" + b', 'x = "', '"\n', "a\\\\"),
    # a word that stands there as a whole
    ("oo", "f", "oo(1)\n", ""),
    ("x", "y = ", "x + 1\n", ""),
    ("not x", "if ", "x:\n", "not "),
    ("foo", "", "foobar\n", "foo"),
    # next lines
    ("5\n    return y", "f(", ")\n    return y\n", "5"),
    ("return y\n\ndef g():", "    ", "\n    return y\nz\n", ""),
    ("y = 1\n    return y\n\ndef g():", "    ", "\n    return y\nz\n", "y = 1"),
    ("x();\n  }\n  y();", "  ", "\n  }\n}\n", "x();"),
    ("x();\n  }", "  ", "\n  }\n}\n", "x();"),
    ("x();\n  }\n}", "  ", "\n  }\n}\n", "x();"),
    ("# note\n", "", "# note\n", ""),
    ("else:", "    ", "\n    else:\n        x()\n", ""),
    ("a = 1\nb = 2", "", "\n\n\nb = 2\n", "a = 1"),
    ("import os", "", "\nimport os\n", ""),
    ("import os", "", "\nimport sys\nimport os\n", "import os"),
    ("b,", "  a,\n  ", "\n  b,\n]", ""),
    ("- two", "", "\n- two\n- three", ""),
    # documents with CRLF
    ("y = 1\r\n    return y", "    ", "\r\n    return y\r\n", "y = 1"),
    ("y = 1\n    return y", "    ", "\r\n    return y\r\n", "y = 1"),
    ("y = 1\r\n", "    ", "\n    return y", "y = 1\r\n"),
    ("5, 3))\r", "print(add(", "))\r\n", "5, 3"),
    ("5)\r\nprint(6)", "f(", ")\r\n", "5"),
    ("5\r\n    return y\r\n", "f(", ")\r\n    return y\r\n", "5"),
    ("return y\r", "    ", "\r\nx\r\n", "return y"),
    ("a\r\nb\r", "", "\r\n", "a\r\nb"),
    ("\r\n    return y", "x = 1", "\r\n    return y\r\n", ""),
    ("x();\r\n  }", "  ", "\r\n  }\r\n}", "x();"),
    ("", "x = ", ")", ""),
]


@pytest.mark.parametrize(("text", "before", "after", "expected"), PLACES)
def test_what_repeats_is_cut(text: str, before: str, after: str, expected: str) -> None:
    assert without_repeats(text, before, after) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\r\nb = 2\r\n", "a = 1"), ("\r\n  a\r\nb", "\r\n  a"), ("a\r\n", "a"),
        ("a\r", "a"), ("\r\na\r", "\r\na"), ("  a b\r", "  a b"), ("a\r\n\r\nb", "a"),
        ("a\nb", "a"), ("a", "a"), ("\n", "\n"),
    ],
)  # fmt: skip
def test_a_line_ends_before_its_line_end(text: str, line: str) -> None:
    assert first_line(text) == line
