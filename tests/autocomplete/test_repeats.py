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


BLOCKS = [
    # What Qwen2.5-Coder 0.5B wrote into blocks that were cut out of published files; names changed.
    (  # Java: further methods behind the one that was asked for
        "\n        return a;\n    }\n\n    // --\n    @Override\n    public int b() {\n        re",
        "    public int a() {",
        "\n\n    // --\n    @Override\n    public String c() {\n        return s;\n    }\n",
        "\n        return a;\n    }\n",
    ),
    (  # C++: results on lines of their own
        "\n    if (n)\n    {\n        n.clear();\n    }\n}\n\nvoid\nT::set(int a)\n{\n    n =",
        "{",
        "\n\nbool\nT::get() const\n{\n    return n;\n}\n",
        "\n    if (n)\n    {\n        n.clear();\n    }\n}\n",
    ),
    (  # C++: a label of a class follows
        "\n        n = a;\n    }\n\n    void g()\n    {\n        x();",
        "    {",
        "\n\nprivate:\n    // A list.\n    void g();\n",
        "\n        n = a;\n    }\n",
    ),
    (  # C++: one that closes, and opens, ends no block
        "\n    a();\n  } else {\n    b();\n  }\n  c();",
        "  if (x) {",
        "\n  d();\n}\n",
        "\n    a();\n  } else {\n    b();\n  }",
    ),
    (  # C: it closes once too often
        "\n                t[n] = s;\n                n++;\n            }\n        }\n        g();",
        "        if (n) {",
        "\n        /* search */\n        if (m) {\n            t[n] = s;\n        }\n    }\n",
        "\n                t[n] = s;\n                n++;\n            }",
    ),
    (  # C++: the last of the closing brackets stands there
        "free(a);\n            a = b;\n        }\n    }\n    x();",
        "            ",
        "}\n\n    c = d;\n}\n",
        "free(a);\n            a = b;\n        }\n    ",
    ),
    (
        "}\n\n        int a = 1;\n        return a;\n    }\n\n    int g() {",
        "        ",
        "}\n\n\npublic:\n    // Next.\n    int g();\n",
        "}\n\n        int a = 1;\n        return a;\n    ",
    ),
    (
        "a = 1;\n    }\n    b = 2;\n  }\n}\n",
        "      ",
        "}\n}\n",
        "a = 1;\n    }\n    b = 2;\n  ",
    ),
    (  # Java: the line goes on behind the bracket
        "\n        return a;\n    } catch (E e) {\n        throw e;",
        "    try {",
        " catch (E e) {\n        return b;\n    }\n",
        "\n        return a;\n    }",
    ),
    (
        "\n    return a;\n    }",
        "    try {",
        " catch (E e) {\n        return b;\n    }\n",
        "\n    return a;\n    }",
    ),
    (  # Go: tabs
        "\n\t\treturn 0, err\n\t}\n\treturn i, nil\n}\n\nfunc g() {",
        "\tif err != nil {",
        "\n\treturn i, nil\n}\n\nfunc h() {\n}\n",
        "\n\t\treturn 0, err\n\t}",
    ),
    (  # CSS: a hash is no comment
        "\n    font-size: 77%;\n}\n\na { color: red; }",
        ".small {",
        "\n\np {\n    margin: 0;\n}\n\nspan#login {\n    float: right;\n}\n",
        "\n    font-size: 77%;\n}\n",
    ),
    (  # Rust
        "\n        a + 1\n    }\n\n    /// Docs.\n    fn b(&self) -> u8 {\n        self.a()",
        "    fn a(&self) -> u8 {",
        "\n\n    /// Others.\n    fn c(&self) -> u8 {\n        1\n    }\n}\n",
        "\n        a + 1\n    }\n",
    ),
    (  # Python: clauses and lines that follow, indented otherwise
        "\n                x()\n            except Stop:\n                y()",
        "            while True:",
        "\n        except Stop:\n            y()\n",
        "\n                x()",
    ),
    (
        "e(r, k)\n            n += 1\n        r.sort()\n        return [a for a in r]\n\n    z = 1",
        "            _heapr",
        "\n    r.sort()\n    return [a for a in r]\n\ndef g():\n",
        "e(r, k)\n            n += 1",
    ),
    (
        "x()\n    y()\ndef test():\n    pass",
        "        ",
        "\n    return z\n",
        "x()",
    ),
    (
        "\n        x()\n    else:\n        y()\n    z()",
        "    if a:",
        "\n    return z\n",
        "\n        x()\n    else:\n        y()",
    ),
    ("x()\n    y()\n    z()", "    ", "\n    return z\n", "x()\n    y()\n    z()"),
    # HTML: end tags
    ("<p>Sorry.</p>\n</body>\n", "  ", "</body>\n\n</html>\n", "<p>Sorry.</p>\n"),
    ("Home</a></li>", "<li><a>", "</a></li>\n", "Home"),
    ("<b>x</b> y</p>", "<p>", "</p>", "<b>x</b> y"),
    ("<div>\n  a\n</div>\n</div>\n<p>", "<div>", "\n</div>\n", "<div>\n  a\n</div>"),
    ("\n  <br/><div/>a\n</div>", "<div>", "</div>", "\n  <br/><div/>a\n"),
    ("a <b", "<p>", "</p>", "a <b"),
]


@pytest.mark.parametrize(("text", "before", "after", "expected"), BLOCKS)
def test_a_block_ends_where_the_document_goes_on(
    text: str, before: str, after: str, expected: str
) -> None:
    assert without_repeats(text, before, after).rstrip() == expected.rstrip()


@pytest.mark.parametrize(("text", "before", "after", "expected"), BLOCKS)
def test_the_right_block_stays_whole(text: str, before: str, after: str, expected: str) -> None:
    """What was cut out, and then the document itself: that is a perfect suggestion."""
    found = without_repeats(expected + after, before, after)
    assert found.startswith(expected.rstrip())


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
