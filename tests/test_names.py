"""Names say what they hold: words that name anything do not come back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "apps", "autocomplete", "examples", "export", "heads", "kernels", "labs", "models", "runtime",
    "src", "system", "targets", "tools", "training", "widgets",
)  # fmt: skip

HOUSE_WORDS = frozenset({"asked", "found", "given", "one", "own", "stated", "told", "wanted"})
"""As whole names of variables, arguments, attributes, functions, fields and modules."""

BOUNDS = {"LEAST": "MIN", "MOST": "MAX"}
"""In names of constants, the field's word for each."""


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and name of all that a file binds, however it does."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.MatchAs(name=str(name)):
                yield node.lineno, name


def faults(text: str) -> list[str]:
    """Returns what is wrong with the names of a file."""
    wrong = []
    for line, name in bound_names(ast.parse(text)):
        if name.strip("_").lower() in HOUSE_WORDS:
            wrong.append(f"{line}: {name!r} says nothing: name what it holds")
        elif name.isupper() and (words := BOUNDS.keys() & set(name.split("_"))):
            wrong.append(f"{line}: {name}: write {BOUNDS[words.pop()]}")
    return wrong


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_what_they_hold(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_bad_name_would_be_noticed() -> None:
    bad = "_FOUND = found = 1\nfor one in x: pass\nMAX_LEAST = 2\n"
    bad += "def told(own=1): self.wanted = given = asked\n"
    assert len(faults(bad)) == 8
    assert faults("result = founder = [key for key in asked]\nMAX_ROWS = 2\n") == []
