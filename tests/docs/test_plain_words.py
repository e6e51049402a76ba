"""Pages, help and messages are in plain English, as `docs/style-guide.md` asks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = ROOT / "docs" / "style-guide.md"  # shows what not to write
FOLDERS = (
    "apps", "autocomplete", "export", "kernels", "labs", "models", "runtime", "system", "src",
    "targets", "training", "widgets",
)  # fmt: skip
PROGRAMS = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]

BANNED = re.compile(
    r"on the mean|at the least|\b(?:is|are|was|were) told\b|what was told|told of\b|unless told"
    r"|forgotten how to|not to be had|goes on to be|go on to be|\bbits a weight|\btokens a second"
    r"|\b(?:is|are) no (?:UTF-8|JSON|ONNX|GGUF|text file|number any)",
    re.IGNORECASE,
)
MAX_WORDS = 30  # the style guide asks for 25

_CODE = re.compile(r"<!--.*?-->|^```.*?^```$", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.?!:])\s+(?=[A-Z\[`*(\"])")
_SAYING = ("Error", "note", "BadParameter", "Option", "Argument", "warning", "_fail")


def prose(page: Path) -> str:
    """Returns a page without its code."""
    return _CODE.sub("\n\n", page.read_text(encoding="utf-8"))


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of paragraphs and lists; tables and headings are none."""
    for part in re.split(r"\n\s*\n|\n(?=[-#|]|\d+\. )", text):
        joined = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", " ".join(part.split())))
        if joined and not joined.startswith(("|", "#", "!")):
            yield from _SENTENCE.split(joined)


def said(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and text of what a program's file says to people."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
            if name.endswith(_SAYING):
                parts = (*node.args, *(keyword.value for keyword in node.keywords))
                yield node.lineno, " ".join(text for part in parts for text in literals(part))


def literals(node: ast.expr) -> Iterator[str]:
    """Yields the pieces of text in an expression, but for those of calls inside."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(v.value if isinstance(v, ast.Constant) else "X" for v in node.values)
    elif isinstance(node, ast.BinOp):
        yield from literals(node.left)
        yield from literals(node.right)


def test_pages_do_without_the_worst_words() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in PAGES
        if page != GUIDE
        for match in BANNED.finditer(" ".join(prose(page).split()))
    ]
    assert not found, "\n".join(found)


def test_sentences_of_pages_are_short() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}"
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for sentence in sentences(prose(page))
        if len(sentence.split()) > MAX_WORDS
    ]
    assert not found, "\n".join(found)


def test_messages_and_help_do_without_the_worst_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in PROGRAMS
        for line, text in said(path)
        for match in BANNED.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_a_bad_message_would_be_found(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text('raise ConfigError(f"{x} is no JSON: " + "that is told, on the mean")\n')
    ((line, text),) = said(bad)
    assert (line, BANNED.findall(text)) == (1, ["is no JSON", "is told", "on the mean"])
