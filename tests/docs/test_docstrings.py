"""What others may call says what it returns or does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "apps",
    "autocomplete",
    "examples",
    "export",
    "kernels",
    "labs",
    "models",
    "runtime",
    "targets",
    "tools",
    "training",
    "widgets",
)
CONTRACTS = {"ABC", "Protocol", "NodeVisitor"}


def is_contract(node: ast.ClassDef) -> bool:
    """Says whether a class states what others implement."""
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(base, ast.Name) and base.id in CONTRACTS for base in bases)


def contracted(tree: ast.Module) -> set[str]:
    """Returns the methods that a contract documents, so that those who implement it need not."""
    return {
        method.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and is_contract(node)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
    }


def undocumented(
    node: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, str | None]]:
    """Yields the public functions, classes and methods in ``node`` that say nothing.

    With each comes the name by which a contract may document it, if one may.
    """
    is_implementing = isinstance(node, ast.ClassDef) and not is_contract(node)
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            if not ast.get_docstring(child):
                yield prefix + child.name, child.name if is_implementing else None
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{prefix}{child.name}.")


def test_public_names_have_docstrings() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 20
    known, silent = set[str](), list[tuple[str, str | None]]()
    for path in files:  # no tree is kept: the collector would go through all of them each time
        tree = ast.parse(path.read_text(encoding="utf-8"))
        known |= contracted(tree)
        silent += ((f"{path.relative_to(ROOT)}: {name}", n) for name, n in undocumented(tree))
    found = [name for name, by_contract in silent if by_contract not in known]
    assert not found, "\n".join(found)
